"""The lease of an observed program that is measured next to tasks with plans (TIERLINE_SOCKET).

It takes the lease for each of its jobs as any task does, and has no arena. Its jobs are warm-up
jobs: they come after everybody else's, and nobody counts their deadlines. How long one may take the
agent knows, which ends the program otherwise.
"""

from __future__ import annotations

from tierline_client.afterwards import GiveBack
from tierline_client.errors import ClientError, ErrorCode
from tierline_torch.backends.connecting import connected
from tierline_torch.errors import TierlineError
from tierline_torch.learning.site import Window

NESTED = 0
"""The number of no job: a call that a job of another process of the task waits for."""


class ObservedLease:
    """The lease of an observed program: taken for each job, and given back."""

    def __init__(self, socket_path: str) -> None:
        """Connect to the agent. Raises TierlineError."""
        self._job = NESTED
        self._client = connected(socket_path, name="measured")

    @property
    def waits(self) -> bool:
        """Whether a thread waits for the agent now."""
        return self._client.waits

    @property
    def over(self) -> GiveBack:
        """Gives the lease back, if there is one: for `afterwards`."""
        return self._client.job_over

    def take(self, window: Window) -> None:
        """Wait for the lease. Raises TierlineError."""
        try:
            self._job = self._client.job_begin(
                None, window.release_ns, window.deadline_ns, warmup=True
            )
        except ClientError as error:
            self._job = NESTED
            if error.code != ErrorCode.NESTED:
                raise TierlineError(f"could not begin a job to be measured: {error}") from error

    def give_back(self) -> None:
        """End the job that `take` began. Raises TierlineError."""
        if self._job == NESTED:
            return
        try:
            self._client.job_end(self._job, 0)
        except ClientError as error:
            if error.code != ErrorCode.REVOKED:
                raise TierlineError(f"could not end a job that was measured: {error}") from error
