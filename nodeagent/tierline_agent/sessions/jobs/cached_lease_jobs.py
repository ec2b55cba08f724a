"""Jobs that begin and end without the agent: JOB_TAKEN, JOB_RETURNED.

The agent hears of them when they have begun, and when they are over; it counts them as any other.
Messages come in order, so that between two answers to JOB_BEGIN each JOB_TAKEN is followed by its
JOB_RETURNED; the lease may be somebody else's by the time they are read.

Invariant: the lease is left open only to a client whose next job needs nothing but the lease, as
its last one did: all weights resident or none, no workspace in extents, nothing to be limited,
ranked or preempted, and none of this changes before it is closed.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tierline_agent.errors import ConnectionViolation
from tierline_agent.processes.interventions import KillReason
from tierline_agent.scheduling.cached_lease import DEVICE_KIND, CachedLease, cached_leases
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.job import Job
from tierline_agent.transport.protocol import NO_ARENA, DescriptorKind, JobFlags, JobTaken

_log = logging.getLogger(__name__)


class CachedLeaseJobs:
    """The cached lease of one client, and the jobs that take it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lease: CachedLease | None = None
        self._may_take = False
        """The lease was open to it since it asked last."""
        self._arena = NO_ARENA
        """The one for which it was."""
        self._said_wanted = False
        """Of what was granted, and is no job."""
        self._wanted_since_ns: int | None = None
        """Since when others are seen to wait for what the client has taken."""

    # -- the file

    def prepare(self) -> bool:
        """Make what a client that can take it is sent; returns whether there is that.

        One that trains is sent it only to be told that others wait: it is never left open to it.
        """
        client = self._client
        if client.unit.device.kind == DEVICE_KIND or client.task.registration.training:
            folder = cached_leases(Path(client.node.config.run_dir), client.unit.name)
            try:
                self._lease = CachedLease(folder, client.token, client.process)
            except OSError as failure:
                _log.warning("%s gets no cached lease: %s", client, failure)
        return self._lease is not None

    def send(self, sequence: int) -> None:
        """Send it. Raises OSError."""
        if self._lease is not None:
            descriptors = [self._lease.export()]
            self._client.send_descriptors(sequence, 0, DescriptorKind.LEASE, descriptors)

    def withdraw(self) -> None:
        """The client is gone; after this nobody waits for it."""
        if self._lease is not None:
            self._client.unit.leases.withdraw(self._lease)

    def close(self) -> None:
        """Remove the file of a client that is gone."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.remove()

    # -- jobs

    @property
    def taken_by_ns(self) -> int | None:
        """By when the client had taken what others wait for; None: they do not."""
        return None if self._lease is None else self._client.unit.leases.taken_by_ns(self._lease)

    def asked(self) -> None:
        """The client asks for the lease: it does not have it."""
        self._may_take = False
        if self._lease is not None:
            self._client.unit.leases.withdraw(self._lease)
            if self._said_wanted:
                self._said_wanted = False
                self._lease.close()

    def wanted(self) -> None:
        """Others wait for what the client was granted and is no job."""
        if self._lease is not None:
            self._said_wanted = True
            self._lease.say_wanted()

    def look(self, now_ns: int, limit_ns: int) -> None:
        """See that a client that took the lease does not keep it from others for ever.

        It may have said nothing yet of the job, which cannot be revoked then. `limit_ns` is that of
        the job that is known, or of any.
        """
        client = self._client
        leases = client.unit.leases
        if self._lease is None or leases.opened is not self._lease or not leases.waiting:
            self._wanted_since_ns = None
        elif self._wanted_since_ns is None:
            self._wanted_since_ns = now_ns
        elif now_ns - self._wanted_since_ns > limit_ns:
            sentence = (
                "a job took the device, kept it from others for more than "
                f"{limit_ns / 1e9:g} s, and the program was killed"
            )
            kill = client.node.interventions.kill
            kill(client.task.name, client.process, KillReason.JOB_TOO_LONG, sentence)

    def changes(self) -> None:
        """What its jobs need may be something else from now on."""
        if self._lease is not None and self._client.unit.leases.opened is self._lease:
            self._client.unit.leases.recall()

    def took(self, message: JobTaken) -> CachedLease:
        """Check that it could be taken for this job.

        Raises:
            ConnectionViolation: it was not open.
        """
        warmup = message.arena == NO_ARENA and JobFlags.WARMUP in message.flags
        open_to_it = self._may_take and (warmup or message.arena == self._arena)
        if self._lease is None or not open_to_it:
            raise ConnectionViolation(
                f"job {message.job} began by a lease that was not open", out_of_order=True
            )
        return self._lease

    def granted(self, job: Job, *, alone: bool) -> None:
        """A job was granted: leave the lease to those after it if they need nothing else.

        So the next one finds it open even if the end of this one is not heard of by then. `alone`:
        it has no workspace in extents.
        """
        client, lease, execution = self._client, self._lease, job.execution
        if lease is None or execution is None or client.connection.closed:
            return
        registration = client.task.registration
        if (
            alone
            and not job.warmup
            and not job.revoked
            and not execution.job.streams
            and registration.preemption is None
            and not registration.training
            and registration.job_limit_ns is None
            and not client.node.stopping
        ):
            self._arena = job.arena.index if job.arena is not None else NO_ARENA
            self._may_take = True
            client.unit.executor.leave_open(lease, execution, job.number, self._arena)

    def over(self, job: Job, *, alone: bool) -> None:
        """A job is counted."""
        client, lease, execution = self._client, self._lease, job.execution
        if lease is None or execution is None or client.connection.closed:
            return
        leases = client.unit.leases
        if execution.took is None or not leases.returned(lease):
            self.granted(job, alone=alone)
        elif not lease.counted(job.number):
            leases.recall()
