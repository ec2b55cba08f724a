"""Jobs of a program that is swapped whole.

Its library takes the lease by itself and gives it back when the GPU has been idle for a while. A
block that says it is a job keeps the lease to its end, and has the deadline that it names.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tierline_client import Client, ClientError, Device
from tierline_torch.errors import TierlineError

_connecting = threading.Lock()
_inside = threading.local()
_client: Client | None = None


@contextmanager
def job(deadline_s: float | None) -> Iterator[None]:
    """The block is one job. Inside another job of the same thread it is part of that one.

    Raises TierlineError: the agent cannot be reached and TIERLINE_REQUIRED=1, or this thread has
    not used the GPU yet.
    """
    if getattr(_inside, "job", False):
        yield
        return
    try:
        client = _connected()
        now_ns = time.monotonic_ns()
        relative_ns = client.terms().deadline_ns if deadline_s is None else round(deadline_s * 1e9)
        number = client.job_begin(None, now_ns, now_ns + relative_ns)
    except ClientError as error:
        if os.environ.get("TIERLINE_REQUIRED") == "1":
            raise TierlineError(f"could not begin a job: {error}") from error
        yield
        return
    _inside.job = True
    try:
        yield
    finally:
        _inside.job = False
        client.job_end(number)


def _connected() -> Client:
    global _client  # noqa: PLW0603  # one per process is what it is
    with _connecting:
        if _client is None:
            _client = Client(os.environ["TIERLINE_SOCKET"], "tierline.job", Device.CUDA)
        return _client
