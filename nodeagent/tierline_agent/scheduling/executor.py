"""The device at work: from the lease to the stream and back.

A job gets the lease, what it needs is brought in (`DeviceJob.prepare`), its flag words are zeroed,
the client is told, and its stream begins (in this order: waking the stream's thread first would
make the client wait for the interpreter). When it ends, for whatever reason, its stream is
cancelled and the lease goes on as soon as the last copy into the ring has ended. This is the one
place that knows this order; sessions say when jobs begin, yield and end.

A preemptible job is asked, by its flag words, to give the device away when an earlier deadline
waits. It is *parked* then: it waits for the lease again, and `policy.preemption` says what of its
ring and its stream is left when it goes on. A stream that is displaced is cancelled and another one
begun later, once the link has let go of the ring.

When the stream of a job is complete and nobody else wants the device, the device goes on ahead,
with the first extents of that task's next job (`prefetch`).

When a job that streams nothing has the device, or had it last, and nobody wants it, the lease may
be left open to its client (`cached_lease`). The jobs that take it have no part in any of the above:
they have no stream, nobody else's is under way or due, and none is begun while the lease is open.

Invariants: a stream that is not cancelled has a job that is not over (`mend`); at most one stream
writes to fast memory: the lease holder's, or, while the holder streams nothing, that of the parked
job whose ring it leaves alone, or one that goes ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tierline_agent.concurrency import note_fault
from tierline_agent.devices.base import Device, Stream, StreamOrder, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Rings, goes_on_at
from tierline_agent.policy.prefetch import Situation, may_prefetch
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.cached_lease import CachedLease
from tierline_agent.scheduling.execution import DeviceJob, Execution, StreamStart, Timer, Yielding
from tierline_agent.scheduling.leases import LeaseManager, in_running_loop
from tierline_agent.scheduling.prefetch import Prefetcher
from tierline_agent.telemetry.accounting import FastMemory

_DRAINING = "the last job's copies"
_PREPARING = "the next job's workspace"


def _in_vain() -> None:
    """A job that has no gate does not hear it; how long it keeps others waiting is counted."""


class Executor:
    """Runs the jobs of one device. For the event loop's thread only."""

    def __init__(
        self,
        *,
        device: Device,
        leases: LeaseManager,
        mark: LeaseMark,
        memory: FastMemory,
        on_placed: Callable[[int, float], None] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        later: Callable[[float, Callable[[], None]], Timer] = in_running_loop,
    ) -> None:
        """`later` calls back after so many seconds of the clock."""
        self._device = device
        self._leases = leases
        self._mark = mark
        self._memory = memory
        self._on_placed = on_placed
        self._clock_ns = clock_ns
        self._later = later
        self._streams: set[Stream] = set()
        self._served: dict[Stream, Execution] = {}
        """The jobs of those that are not ahead of one."""
        self._cancelled: set[Stream] = set()
        """Those that were told to stop and have not yet."""
        self._draining: set[Stream] = set()
        """Those of jobs that are over."""
        self._rings = Rings()
        self._parked: dict[int, Execution] = {}
        """By key of their claims."""
        self._opening: Execution | None = None
        """Its stream begins when those before it have ended."""
        self._preparing: set[asyncio.Task[None]] = set()
        self._prefetch = Prefetcher(device, self._streams, self._stream_finished, on_placed)
        self._promised: Execution | None = None
        """While its stream runs, the links begin no loads."""
        self._fences: Counter[str] = Counter()
        """By domain."""
        self._fence_ends: dict[str, asyncio.Event] = {}
        self._fenced: list[tuple[Execution, Callable[[int], None]]] = []
        """Requests for the lease that wait for the end of a fence."""
        self._last: Execution | None = None
        """The one that got the device last, until its job is over."""

    def prepare(self, job: DeviceJob, failed: Callable[[StreamFailed], None]) -> Execution:
        """Make what `begin` and `end` take; `failed` is told when the job cannot be streamed."""
        asked = job.yielding.words.ask if job.yielding is not None else None
        if job.gateless_ns is not None:
            asked = _in_vain
        ticket = self._leases.ticket(job.deadline_ns, job.rank, asked, job.eligible_ns)
        ticket.wanted, ticket.task = job.wanted, job.task
        return Execution(job, ticket, failed)

    def begin(self, execution: Execution, granted: Callable[[int], None]) -> None:
        """Ask for the device; `granted` may be called, and may call `end`, before this returns."""
        self._prefetch.stop_for_others(execution.job)
        self._request(execution, lambda now_ns: self._tell(execution, self._start, now_ns, granted))

    def _tell(self, execution: Execution, step: Callable[..., None], *arguments: Any) -> None:
        """The job has the lease, in the middle of what somebody else does.

        What fails now is this job's end, and not that one's.
        """
        try:
            step(execution, *arguments)
        except Exception:
            note_fault("leases")
            if not execution.ended:
                execution.failed(StreamFailed("the agent failed at its begin", corrupt=False))

    def _request(self, execution: Execution, granted: Callable[[int], None]) -> None:
        """Ask for the lease, as soon as nobody may compute from what the job writes to."""
        job = execution.job
        if job.domain in self._fences and (job.streams or job.prepare is not None):
            self._fenced.append((execution, granted))
        else:
            self._leases.request(execution.ticket, granted)

    def fence(self, domain: str) -> None:
        """Until `unfence` no job of this domain writes to its ring or to its workspace.

        A job of it that no agent has in hand computes from there.
        """
        self._fences[domain] += 1

    def is_fenced(self, domain: str) -> bool:
        """Whether a domain's ring and workspace are left as they are."""
        return domain in self._fences

    async def unfenced(self, domain: str) -> None:
        """Wait until they are not."""
        while domain in self._fences:
            await self._fence_ends.setdefault(domain, asyncio.Event()).wait()

    def unfence(self, domain: str) -> None:
        """Take back one `fence`; jobs that waited for the last one ask for the lease."""
        self._fences[domain] -= 1
        if not self._fences[domain]:
            del self._fences[domain]
            self._fence_ends.pop(domain, asyncio.Event()).set()
            waiting, self._fenced = self._fenced, []
            for execution, granted in waiting:
                if not execution.ended:
                    self._request(execution, granted)

    def resume(self, execution: Execution) -> bool:
        """Go on with a job that ran while the agent was away; False if it cannot.

        Its counters in the control page stand where they stood. They are the client's to write: a
        count that is out of range only means that the job cannot go on.
        """
        job = execution.job
        published = job.words.published if job.words is not None else 0
        if published > len(job.sources) or not self._leases.resume(execution.ticket):
            return False
        self._occupy(execution)
        self._take_ring(execution, from_start=False)
        self._stream(execution, published)
        return True

    def rewind(self, execution: Execution, job: DeviceJob, start: StreamStart) -> Awaitable[bool]:
        """Stream the arena of a running job again, from there; False if the job ended.

        `job` is what it needs from now on, of the same arena or another one. The client has nothing
        in flight that touches either. From this call on the job is being rewound, also while nobody
        waits for the answer; that comes when the flag words are set and the stream has begun.
        """
        if execution.rewinding:
            raise ValueError("a job is rewound once at a time")
        stream = execution.stream
        execution.rewinding = True
        if execution is self._opening:  # or it would begin before it is rewound, and be forgotten
            self._opening = None
        if execution.job.words is not None and stream is not None:
            self._cancel(stream)
        return self._rewound(execution, stream, job, start)

    async def _rewound(
        self, execution: Execution, stream: Stream | None, job: DeviceJob, start: StreamStart
    ) -> bool:
        words = job.words
        try:
            if words is None:
                return not execution.ended
            if stream is not None:
                await asyncio.shield(stream.finished)
            if execution.ended:
                return False
            execution.drop_stream()
            execution.position = start.consumed  # what a YIELD says is no less
            if job is not execution.job:
                job = self._exchange(execution, job)
            first = start.published
            if first == 0:
                first = self._prefetch.claim_prefix(execution)
                words.reset(first)
            else:
                self._prefetch.ring_is_taken(job, from_start=False)
                words.restart(first, start.consumed)
            if execution.asked and job.yielding is not None:
                job.yielding.words.ask()
            self._stream(execution, first, on_demand=start.consumed < start.published)
        finally:
            execution.rewinding = False
        return True

    def _exchange(self, execution: Execution, job: DeviceJob) -> DeviceJob:
        """A running job goes on with another arena."""
        self._release_links(execution)
        ticket = execution.ticket
        if execution.job.yielding is None:  # a job that keeps the device does so to its end
            job = replace(job, yielding=None, gateless_ns=execution.job.gateless_ns)
        elif job.yielding is not None:
            ticket.asked = job.yielding.words.ask
        execution.job = job
        self._take_ring(execution, from_start=True)
        return job

    # -- jobs that take a cached lease

    def leave_open(self, lease: CachedLease, after: Execution, job: int, arena: int) -> None:
        """Leave the device to the client's jobs after this one, which streams nothing."""
        quiet = self._leases.may_leave_open(after.ticket) and not self._parked
        quiet = quiet and not self._streams and self._prefetch.candidate is None
        if quiet and lease.open(job, arena):
            self._leases.leave_open(lease, after.ticket)

    def took(self, execution: Execution, lease: CachedLease, since_ns: int) -> None:
        """A job began by the cached lease at that time.

        It may be over, and the device somebody else's.
        """
        execution.took = lease
        execution.since_ns = since_ns
        self._leases.taken()
        if self._leases.opened is lease:
            self._memory.set_workspace(execution.job.workspace_bytes)

    def has_device(self, execution: Execution) -> bool:
        """Whether what is known of the device's use is of this job."""
        took, holder = execution.took, self._leases.holder
        return holder is execution.ticket or (took is not None and took is self._leases.opened)

    @property
    def holder(self) -> Execution | None:
        """The job that was granted the device, and has it."""
        last = self._last
        return last if last is not None and self._leases.holder is last.ticket else None

    # -- giving the device away

    def park(self, execution: Execution, position: int, resumed: Callable[[], None]) -> None:
        """The job stands at a gate, and its ring is closed.

        Its stream needs `position` first. If the ring stays its own, the stream goes on, or begins
        as soon as those before it have ended. `resumed` is called, maybe before this returns, when
        it has the device again and its flag words say where its stream goes on.
        """
        yielding = execution.job.yielding
        if yielding is None:
            raise ValueError("a job that keeps the device to its end cannot be parked")
        self._judge(execution)
        execution.position = position
        if not self._leases.must_yield(execution.ticket):  # those that wanted it have left
            execution.ticket.asked_ns = None
            yielding.words.ask_no_more()
            resumed()
            return
        execution.preemptions += 1
        execution.held_ns += self._clock_ns() - execution.since_ns
        self._mark.clear()
        self._memory.set_workspace(0)
        self._wait_parked(execution, yielding)
        key, domain = execution.ticket.claim.key, execution.job.domain
        self._prefetch.invalidate(execution)
        if self._rings.yields(domain, key, yielding.terms.scheduling):
            self._lose_ring(execution)
        self._leases.park(
            execution.ticket, lambda _now_ns: self._tell(execution, self._go_on, resumed)
        )

    def adopt_parked(
        self, execution: Execution, position: int, resumed: Callable[[], None]
    ) -> None:
        """A job that had given the device away when the agent before this one ended; see `park`."""
        yielding = execution.job.yielding
        if yielding is None:
            raise ValueError("a job that keeps the device to its end cannot be parked")
        execution.position = execution.first = position
        execution.halted = execution.lost = True
        self._wait_parked(execution, yielding)
        self._prefetch.stop()
        self._request(execution, lambda _now_ns: self._tell(execution, self._go_on, resumed))

    def _wait_parked(self, execution: Execution, yielding: Yielding) -> None:
        execution.parked = True
        self._parked[execution.ticket.claim.key] = execution
        self._memory.park(execution.job.token, yielding.terms.parked_bytes)
        self._stop_limit(execution)

    def _go_on(self, execution: Execution, resumed: Callable[[], None]) -> None:
        yielding = execution.job.yielding
        if yielding is None:
            raise ValueError("only a parked job goes on")
        self._leave_parking(execution)
        if not execution.contained:
            execution.ways_back += 1
            execution.restarts += execution.halted
        self._occupy(execution)
        self._take_ring(execution, from_start=False)
        stream = execution.stream
        if execution.halted and stream is not None and self._device.copies_itself:
            # what it was given to do still writes the flag words
            stream.finished.add_done_callback(
                lambda _: self._go_on_now(execution, yielding, resumed)
            )
            return
        self._go_on_now(execution, yielding, resumed)

    def _go_on_now(
        self, execution: Execution, yielding: Yielding, resumed: Callable[[], None]
    ) -> None:
        if execution.ended:
            return
        halted, lost = execution.halted, execution.lost
        execution.halted = execution.lost = False
        first = execution.in_place
        if halted:
            first = goes_on_at(execution.position, first, lost=lost)
            execution.drop_stream()
            yielding.words.restart(first, execution.position)
        else:
            yielding.words.ask_no_more()
            if execution.under_way is not None or execution is self._opening:
                self._promise_links(execution)
        if execution.asked:  # again, while its old stream came to its end
            yielding.words.ask()
        resumed()
        if halted and not execution.ended:  # the client may be found dead by telling it
            self._stream(execution, first)

    def _leave_parking(self, execution: Execution) -> None:
        execution.parked = False
        self._parked.pop(execution.ticket.claim.key, None)
        self._memory.unpark(execution.job.token)

    def _take_ring(self, execution: Execution, *, from_start: bool) -> None:
        """The job has the device: if it streams, others' streams stop, and one loses its ring.

        `from_start`: it streams from its start, so what lies there for its arena is of use.
        """
        job = execution.job
        if not job.streams:
            return
        self._prefetch.ring_is_taken(job, from_start=from_start)
        loser = self._rings.takes(execution.job.domain, execution.ticket.claim.key)
        for key, other in self._parked.items():
            if key == loser or self._spoils_ring(other):
                self._lose_ring(other)
            else:
                self._halt(other)

    def _spoils_ring(self, execution: Execution) -> bool:
        """Whether stopping its stream lets copies into the ring for which there is no room yet."""
        return execution.under_way is not None and self._device.copies_itself

    def _lose_ring(self, execution: Execution) -> None:
        if execution.position < max(execution.in_place, execution.first):
            execution.rings_lost += 1
        execution.lost = True
        if execution.position < len(execution.job.sources):
            execution.halted = True
        self._halt(execution)

    def _halt(self, execution: Execution) -> None:
        """Stop a parked job's stream; what has arrived stays where it is."""
        stream = execution.under_way
        if execution is self._opening:
            self._opening = None
            execution.halted = True
            self._release_links(execution)
        elif stream is not None:
            execution.halted = True
            self._cancel(stream)

    def _cost_ns(self, execution: Execution) -> int:
        """How long it kept other tasks waiting beyond its charge, since it has the device."""
        now_ns, job, ticket = self._clock_ns(), execution.job, execution.ticket
        others_ns = self._leases.kept_waiting_ns(execution.since_ns, besides=job.task)
        if job.within_ns is not None:
            beyond_ns = 0 if ticket.asked_ns is None else now_ns - ticket.asked_ns - job.within_ns
        elif ticket.claim.rank is Rank.GUARANTEED:
            beyond_ns = execution.held_for_ns(now_ns) - job.charged_ns
        else:  # it may have the device for as long as nobody comes: what they wait was charged
            beyond_ns = others_ns - job.charged_ns
        return max(0, min(others_ns, beyond_ns))

    def _judge(self, execution: Execution) -> None:
        """Count how long a job kept others waiting, and whether it stands at its gate in time."""
        execution.cost_ns += self._cost_ns(execution)
        if execution.ticket.claim.rank is not Rank.GUARANTEED:
            blocked_ns = self._leases.kept_waiting_ns(execution.since_ns)
            execution.blocked_ns = max(execution.blocked_ns, blocked_ns)
        asked_ns, within_ns = execution.ticket.asked_ns, execution.job.within_ns
        if asked_ns is None or within_ns is None:
            return
        took_ns = self._clock_ns() - asked_ns
        execution.yield_worst_ns = max(execution.yield_worst_ns, took_ns)
        execution.late_yields += took_ns > within_ns

    def _limit(self, execution: Execution) -> None:
        """See that a job has the device no longer than it may, before others' deadlines."""
        may_ns = execution.budget_ns
        if may_ns and not execution.contained:
            left_s = max(0, may_ns - execution.held_ns) / 1e9
            execution.limit = self._later(left_s, partial(self._contain, execution))

    def _contain(self, execution: Execution) -> None:
        execution.limit = None
        execution.contained = self._leases.demote(execution.ticket)

    def _stop_limit(self, execution: Execution) -> None:
        if execution.limit is not None:
            execution.limit.cancel()
            execution.limit = None

    # -- the end

    def end(self, execution: Execution, costs: Callable[[int], None] | None = None) -> None:
        """The job is over, or gives up waiting; does nothing the second time.

        `costs` is told what it cost others, before the next one may be granted the device.
        `is_over` is called after it, when nobody waits for the interpreter.
        """
        if execution.ended:
            return
        execution.ended = True
        if self._last is execution:
            self._last = None
        self._stop_limit(execution)
        self._release_links(execution)
        ticket, stream = execution.ticket, execution.under_way
        self._rings.ends(execution.job.domain, ticket.claim.key)
        if execution is self._opening:
            self._opening = None
        if execution.parked:
            self._leave_parking(execution)
            if stream is not None:
                self._cancel(stream)
        elif execution.took is not None:
            if self.has_device(execution):
                self._judge(execution)
                self._memory.set_workspace(0)
        elif ticket.granted_ns is not None:
            self._judge(execution)
            execution.held_ns += self._clock_ns() - execution.since_ns
            self._mark.clear()
            self._memory.set_workspace(0)
            if stream is not None:
                self._leases.block(_DRAINING)
                self._draining.add(stream)
                self._cancel(stream)
            self._prefetch.job_ends(execution)
        if costs is not None:
            costs(execution.cost_ns)
        self._leases.release(ticket)
        self._begin_prefetch()

    def is_over(self, execution: Execution) -> None:
        """A job that has ended needs nothing of its ring any more."""
        self._prefetch.job_is_over(execution)

    def forget(self, words: Words) -> None:
        """The arena of these flag words has no next job."""
        self._prefetch.arena_removed(words)

    async def quiet(self, words: Words) -> None:
        """Wait until no stream touches these flag words any more; no job will use them again."""
        self.forget(words)
        for stream in [stream for stream in self._streams if stream.words is words]:
            await asyncio.shield(stream.finished)

    def mend(self) -> list[str]:
        """Cancel streams that no job has and nobody has cancelled; returns a sentence for each.

        There is none unless something here is wrong. It would write to fast memory, and keep the
        device from all others, until the agent ends.
        """
        astray = [
            stream
            for stream, execution in self._served.items()
            if stream not in self._cancelled and (execution.ended or execution.stream is not stream)
        ]
        sentences = []
        for stream in astray:
            job = self._served[stream].job
            sentences.append(f"a stream of a job of client {job.token} had no job, and was ended")
            self._cancel(stream)
        return sentences

    def _cancel(self, stream: Stream) -> None:
        if stream in self._streams:
            self._cancelled.add(stream)
        stream.cancel()

    def close(self) -> None:
        """Stop the stream so that the next agent can go on with it, and end the runner."""
        self._prefetch.close()
        for stream in self._streams:
            stream.cancel(resumable=True)
        self._device.close()

    # -- the begin

    def _start(self, execution: Execution, now_ns: int, granted: Callable[[int], None]) -> None:
        job = execution.job
        self._occupy(execution)
        self._take_ring(execution, from_start=True)
        if job.prepare is None:
            self._grant(execution, now_ns, granted)
            return
        self._leases.block(_PREPARING)
        preparing = asyncio.get_running_loop().create_task(self._prepare(execution, granted))
        self._preparing.add(preparing)
        preparing.add_done_callback(self._preparing.discard)

    async def _prepare(self, execution: Execution, granted: Callable[[int], None]) -> None:
        prepare = execution.job.prepare
        try:
            ready = prepare is not None and await prepare()
        finally:
            self._leases.unblock(_PREPARING)
        if ready and not execution.ended:
            self._grant(execution, self._clock_ns(), granted)

    def _grant(self, execution: Execution, now_ns: int, granted: Callable[[int], None]) -> None:
        job = execution.job
        first = self._prefetch.claim_prefix(execution)
        if job.words is not None:
            job.words.reset(first)
        granted(now_ns)
        if not execution.ended:  # the client may be found dead by telling it
            self._stream(execution, first)

    def _occupy(self, execution: Execution) -> None:
        job = execution.job
        self._last = execution
        self._mark.set(job.token, job.process, job.task)
        self._memory.set_workspace(job.workspace_bytes)
        execution.since_ns = self._clock_ns()
        self._limit(execution)
        self._promise_meanwhile(job)

    def _stream(self, execution: Execution, first: int, *, on_demand: bool = False) -> None:
        execution.first, execution.on_demand = first, on_demand
        if not execution.job.streams:
            return
        self._prefetch.set_candidate(execution)
        if first == len(execution.job.sources) and not self._prefetch.under_way:
            self._begin_prefetch()
            return
        self._promise_links(execution)
        self._opening = execution
        self._open_next()

    def _promise_links(self, execution: Execution) -> None:
        """No load begins during a stream that was proved, for as long as planned.

        A job that has had its time is not waited for: what it loads itself may be all it lacks.
        """
        self._release_links(self._promised)
        if execution.job.planned_ns:
            self._promised = execution
            self._promise_for(execution.job, 0)

    def _promise_for(self, job: DeviceJob, meanwhile_ns: int) -> None:
        until_ns = self._clock_ns() + meanwhile_ns + job.planned_ns
        for link, device in {(source.link, source.device) for source in job.sources}:
            link.promise(device, until_ns)

    def _promise_meanwhile(self, holder: DeviceJob) -> None:
        """While another job has the device, a parked one's stream has its links no shorter."""
        if self._promised is not None and self._promised.parked:
            self._promise_for(self._promised.job, holder.planned_ns)

    def _release_links(self, execution: Execution | None) -> None:
        if execution is not None and execution is self._promised:
            self._promised = None
            for link, device in {(source.link, source.device) for source in execution.job.sources}:
                link.release(device)

    def _open_next(self) -> None:
        """Begin the stream that waits, if no other one writes to fast memory any more."""
        execution = self._opening
        if execution is None or execution.job.words is None:
            return
        job, words = execution.job, execution.job.words
        order = StreamOrder(
            sources=job.sources,
            ring=job.ring,
            words=words,
            deadline_ns=job.deadline_ns,
            published=execution.first,
            on_finished=self._stream_finished,
            on_failure=self._stream_failed,
            on_placed=self._on_placed,
            following=self._prefetch.order(execution, words)
            if self._may_prefetch(execution)
            else None,
            yields=job.yielding is not None,
            on_demand=execution.on_demand,
        )
        stream = self._prefetch.adopt(execution, order)
        if stream is None:
            if self._streams:
                return
            stream = self._device.open_stream(order)
            self._streams.add(stream)
        self._opening, execution.stream = None, stream
        self._served[stream] = execution
        self._prefetch.stream_begun(execution, stream, order)

    def _stream_failed(self, stream: Stream, failure: StreamFailed) -> None:
        execution = self._served[stream]
        self._prefetch.drop_candidate(execution)
        if not execution.ended:
            execution.failed(failure)

    def _stream_finished(self, stream: Stream) -> None:
        self._prefetch.stream_ended(stream)
        self._streams.discard(stream)
        self._served.pop(stream, None)
        self._cancelled.discard(stream)
        self._draining.discard(stream)
        if self._promised is not None and self._promised.stream is stream:
            self._release_links(self._promised)
        self._open_next()
        if not self._draining:
            self._leases.unblock(_DRAINING)
        self._begin_prefetch()

    # -- prefetching for the next job

    def _begin_prefetch(self) -> None:
        """Begin to copy for the next job of the arena that was streamed last, if that may be."""
        execution = self._prefetch.candidate
        if execution is None or execution.job.words is None:
            return
        if not (self._streams or self._opening) and self._may_prefetch(execution):
            self._prefetch.begin(execution, execution.job.words)

    def _may_prefetch(self, execution: Execution) -> bool:
        """Whether copies for the next job may begin, once this job's own are complete."""
        holder, last = self._leases.holder, self._last
        accompanies = (
            last is not None
            and holder is last.ticket
            and last.job.is_outside_jobs_of(execution.job)
        )
        situation = Situation(
            waiting=self._leases.waiting,
            parked=len(self._parked),
            blocked=self._leases.blocked,
            others_hold=execution.rewinding
            or self._leases.opened is not None
            or not (holder in (None, execution.ticket) or accompanies),
        )
        return may_prefetch(situation)
