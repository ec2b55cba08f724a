"""Descriptors that the kernel lets the agent not send, because too many are on their way.

The kernel counts, for each user, the descriptors that were sent and not received yet, and refuses a
process to send more when they are more than its own limit of open ones (ETOOMANYREFS). The agent's
user is root: any process of the node that runs as root, in a pod without user namespaces too, can
have as many on their way as it likes. A process with CAP_SYS_RESOURCE is not refused; the agent has
that on nodes with a device of their own, and not on those of kind `cpu`.

Jobs go on without. Whoever connects waits for that to pass (`connection`), and the log says so.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
AGAIN_S: Final = 0.05
_SAY_EVERY_S: Final = 60.0


class InFlight:
    """Says that clients are not served, and why. For the event loop's thread only."""

    def __init__(self, count: Callable[[], None]) -> None:
        """`count` is called for each message that was refused at first."""
        self._count = count
        self._said_s = -_SAY_EVERY_S

    def refused(self) -> None:
        """The kernel has refused a message with descriptors."""
        self._count()
        now_s = time.monotonic()
        if now_s - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = now_s
        _log.error(
            "cannot send descriptors to clients: processes of user %d have more of them in flight "
            "than the %d that the agent may have open (ETOOMANYREFS), so programs that start "
            "wait; end the process that sends descriptors which nobody receives (scm_fds in "
            "/proc/*/fdinfo/*), or run its pod with hostUsers: false",
            *(os.geteuid(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        )
