"""A step under the agent: a row of warm-up jobs from gate to gate, and one that counts.

The agent says in a word of memory that others wait (`Client.wanted`): so a gate at which nobody
does costs no message. A step is counted by a last job, in which nothing is computed; it has the
release of the step, so that its record has the step's time among others.

Invariant: `held` says whether a job of this process is in progress, or may be: `take` ends first
what an interrupted call may have left.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from tierline_client import ClientError, ErrorCode
from tierline_torch.backends.connecting import connected
from tierline_torch.errors import TierlineError
from tierline_torch.training.state import Keeps

_NESTED = 0
"""The number of no job: this process's work is a part of a job of another one of its task."""
_OVER = (ErrorCode.REVOKED, ErrorCode.FORKED, ErrorCode.STATE)


class Leased:
    """See `steps.Turn`."""

    def __init__(self, socket_path: str) -> None:
        """Connect. Raises TierlineError."""
        self._client = connected(socket_path)
        terms = self._client.terms()
        self._relative_ns = terms.deadline_ns
        self._reports = terms.record_outputs
        self._release_ns: int | None = None
        self._job = _NESTED
        self.held = False

    def begins(self) -> None:
        """A step begins."""
        self._release_ns = time.monotonic_ns()

    def take(self) -> None:
        """Wait for the lease."""
        self._client.job_over()
        self._begin(warmup=True)
        self.held = True

    def _begin(self, *, warmup: bool) -> None:
        release_ns = self._release_ns or time.monotonic_ns()
        try:
            self._job = self._client.job_begin(
                None, release_ns, release_ns + self._relative_ns, warmup=warmup
            )
        except ClientError as error:
            self._job = _NESTED
            if error.code != ErrorCode.NESTED:
                raise TierlineError(f"could not go on with a step: {error}") from error

    def give_back(self) -> None:
        """End the job in progress."""
        if not self.held:
            return
        self.held = False
        if self._job == _NESTED:
            return
        try:
            self._client.job_end(self._job)
        except ClientError as error:
            if error.code not in _OVER:
                raise TierlineError(f"could not give the device away: {error}") from error

    def pass_gate(self) -> None:
        """Let others go first, if they wait."""
        if self._client.wanted:
            self.give_back()
            self.take()

    def ends(self, number: int, keeps: Keeps, rest: Callable[[], None]) -> None:
        """Count the step."""
        digest = keeps.digest(number, rest) if self._reports else None
        self.give_back()
        self._begin(warmup=False)
        job, self.held = self._job, True
        self.give_back()
        self._release_ns = None
        if digest is not None and job != _NESTED:
            try:
                self._client.output(job, step_digest(number), digest)
            except ClientError as error:
                raise TierlineError(f"could not report a step: {error}") from error


def step_digest(number: int) -> bytes:
    """The stand-in for the input of a step: which one it is."""
    return hashlib.sha256(f"step {number}".encode()).digest()
