"""A job as its device sees it: what it needs, and how far it is.

Invariant: `halted` and `lost` are false while a job has the device.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from tierline_agent.devices.base import Extent, Stream, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Allowance, Terms
from tierline_agent.processes.identity import Process
from tierline_agent.scheduling.leases import Opened, Ticket
from tierline_agent.tiers.sources import Source


class Timer(Protocol):
    """A call that happens later, unless it is cancelled."""

    def cancel(self) -> None:
        """It does not happen; does nothing afterwards."""
        ...


@dataclass(frozen=True)
class StreamStart:
    """Where the stream of a job begins, in streamed extents: the flag words then."""

    published: int = 0
    consumed: int = 0
    """No more than that. What lies between is not copied; it keeps its place in the ring, so the
    stream goes no further until the job has consumed again."""


@dataclass(frozen=True)
class Yielding:
    """How a job gives the device away."""

    words: Words
    """Those of its arena."""
    terms: Terms
    allowance: Allowance
    """How long it may have the device."""


@dataclass(frozen=True)
class DeviceJob:
    """The needs of a job on the device."""

    token: int
    process: Process
    domain: str
    deadline_ns: int
    rank: Rank
    eligible_ns: int
    """Its time among others (`policy.releases`)."""
    workspace_bytes: int
    sources: list[Source]
    """Streamed extents in order; none if the job streams nothing."""
    ring: list[Extent]
    words: Words | None
    """Flag words of the job's arena, None if it needs the lease alone."""
    prepare: Callable[[], Awaitable[bool]] | None = None
    """What is awaited, with the lease held, before the job is granted; False if it has been given
    up instead. Nobody else gets the lease meanwhile, also when the job ends."""
    yielding: Yielding | None = None
    """None: it keeps the device to its end."""
    gateless_ns: int | None = None
    """If it has no gate and others of its task have: how long it was charged for at most."""
    planned_ns: int = 0
    """How long its plan has it have the device; 0 if nothing was proved of it."""
    charged_ns: int = 0
    """How long it may keep others waiting, by what admission charged, if it has no gate."""
    wanted: Callable[[], None] | None = None
    """Told that others wait for the device that it has; see `leases.Ticket`."""
    task: str = ""
    """The name of its task; no other task has it."""

    @property
    def within_ns(self) -> int | None:
        """How long an earlier deadline may wait for it; None if it is a whole job that counts."""
        return self.gateless_ns if self.yielding is None else self.yielding.terms.layer_ns

    @property
    def streams(self) -> bool:
        """Whether it needs the ring."""
        return self.words is not None and bool(self.sources)

    def is_outside_jobs_of(self, other: DeviceJob) -> bool:
        """Whether it is something that the other one's client does outside its jobs.

        It needs the lease alone: rings, and what is copied ahead, are left as they are.
        """
        return self.words is None and self.token == other.token


@dataclass(eq=False)
class Execution:
    """A job that wants, or has, the device."""

    job: DeviceJob
    ticket: Ticket
    failed: Callable[[StreamFailed], None]
    stream: Stream | None = None
    ended: bool = False
    rewinding: bool = False
    parked: bool = False
    """It gave the device away, and waits for it."""
    position: int = 0
    """The streamed extent that it would need first with an empty ring."""
    first: int = 0
    """The one with which its stream began."""
    on_demand: bool = False
    """Whether it began there out of turn (`devices.base.StreamOrder`)."""
    halted: bool = False
    """Parked, and its stream is not under way."""
    lost: bool = False
    """Parked, and others have used the ring."""
    earlier_bytes: int = 0
    """Bytes that its earlier streams brought in."""
    held_ns: int = 0
    """How long it had the device, until it was parked last."""
    since_ns: int = 0
    """Since when it has it."""
    preemptions: int = 0
    ways_back: int = 0
    """How often it got the device back with its rank."""
    restarts: int = 0
    """How often its stream began again then."""
    rings_lost: int = 0
    late_yields: int = 0
    """How often it gave the device away, or ended, later after it was asked than was planned."""
    yield_worst_ns: int = 0
    blocked_ns: int = 0
    """How long at once it kept jobs with guaranteed deadlines waiting, if it has no rank itself."""
    cost_ns: int = 0
    """How long it kept those of other tasks waiting beyond what was charged."""
    took: Opened | None = None
    """The cached lease by which it began: it was never granted."""
    contained: bool = False
    """It had the device for longer than it may, and lost its rank."""
    limit: Timer | None = None

    def held_for_ns(self, now_ns: int) -> int:
        """How long it has had the device."""
        since_ns = self.since_ns if self.since_ns and not self.parked else now_ns
        return self.held_ns + now_ns - since_ns

    @property
    def budget_ns(self) -> int:
        """How long it may have the device, by what others did to it so far; 0: without limit."""
        yielding = self.job.yielding
        if yielding is None or not yielding.allowance.planned_ns:
            return 0
        return yielding.allowance.budget_ns(self.ways_back, self.restarts)

    @property
    def under_way(self) -> Stream | None:
        """Its stream, as long as that may still write to fast memory."""
        stream = self.stream
        return None if stream is None or stream.finished.done() else stream

    @property
    def streamed_bytes(self) -> int:
        """Bytes that its streams brought in so far."""
        now = self.stream.streamed_bytes if self.stream is not None else 0
        return self.earlier_bytes + now

    @property
    def in_place(self) -> int:
        """Streamed extents that have arrived."""
        return self.stream.in_place if self.stream is not None else self.first

    @property
    def asked(self) -> bool:
        """Whether it should give the device away."""
        return self.ticket.asked_ns is not None

    def drop_stream(self) -> None:
        """Remember its stream only by what it brought in."""
        self.earlier_bytes, self.first, self.stream = self.streamed_bytes, self.in_place, None
