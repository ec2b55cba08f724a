"""The device at work: from the lease to the stream and back.

A job gets the lease, what it needs is brought in (`Job.prepare`), its flag words are zeroed, the
client is told, and its stream begins (in this order: waking the stream's thread first would make
the client wait for the interpreter). When it ends, for whatever reason, its stream is cancelled and
the lease goes on as soon as the last copy into the ring has ended. This is the one place that knows
this order; sessions say when jobs begin and end.

Invariant: at most one stream writes to fast memory, and it is the lease holder's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tierline_agent.accounting import FastMemory
from tierline_agent.devices.base import Device, Extent, Stream, StreamOrder, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.identity import Process
from tierline_agent.leases import LeaseManager, Ticket
from tierline_agent.policy.leases import Rank
from tierline_agent.sources import Source
from tierline_agent.state import LeaseMark

_DRAINING = "the last job's copies"
_PREPARING = "the next job's workspace"


@dataclass(frozen=True)
class Job:
    """What a job needs of the device."""

    token: int
    process: Process
    deadline_ns: int
    rank: Rank
    workspace_bytes: int
    sources: list[Source]
    """Streamed extents in order; none if the job streams nothing."""
    ring: list[Extent]
    words: Words | None
    """Flag words of the job's arena, None if it needs the lease alone."""
    prepare: Callable[[], Awaitable[bool]] | None = None
    """What is awaited, with the lease held, before the job is granted; False if it has been given
    up instead. Nobody else gets the lease meanwhile, also when the job ends."""


@dataclass(eq=False)
class Execution:
    """A job that wants, or has, the device."""

    job: Job
    ticket: Ticket
    failed: Callable[[StreamFailed], None]
    stream: Stream | None = None
    ended: bool = False
    rewinding: bool = False
    earlier_bytes: int = 0
    """What its streams brought in before it was rewound."""

    @property
    def streamed_bytes(self) -> int:
        """Bytes that its streams brought in so far."""
        now = self.stream.streamed_bytes if self.stream is not None else 0
        return self.earlier_bytes + now


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
    ) -> None:
        self._device = device
        self._leases = leases
        self._mark = mark
        self._memory = memory
        self._on_placed = on_placed
        self._streams: set[Stream] = set()
        self._preparing: set[asyncio.Task[None]] = set()

    def prepare(self, job: Job, failed: Callable[[StreamFailed], None]) -> Execution:
        """Make what `begin` and `end` take; `failed` is told when the job cannot be streamed."""
        return Execution(job, self._leases.ticket(job.deadline_ns, job.rank), failed)

    def begin(self, execution: Execution, granted: Callable[[int], None]) -> None:
        """Ask for the device; `granted` may be called, and may call `end`, before this returns."""
        self._leases.request(
            execution.ticket, lambda now_ns: self._start(execution, now_ns, granted)
        )

    def resume(self, execution: Execution) -> bool:
        """Go on with a job that ran while the agent was away; False if it cannot.

        Its counters in the control page stand where they stood. They are the client's to write: a
        count that is out of range only means that the job cannot go on.
        """
        job = execution.job
        published = job.words.published if job.words is not None else 0
        if published > len(job.sources) or not self._leases.resume(execution.ticket):
            return False
        self._occupy(job)
        self._stream(execution, published)
        return True

    async def rewind(self, execution: Execution) -> bool:
        """Stream the arena of a running job from the start again; False if the job ended meanwhile.

        The client has nothing in flight that touches the arena. Returns when its flag words are
        zero and its stream has begun.
        """
        job, stream = execution.job, execution.stream
        if job.words is None:
            return not execution.ended
        execution.rewinding = True
        try:
            if stream is not None:
                stream.cancel()
                await asyncio.shield(stream.finished)
            if execution.ended:
                return False
            execution.earlier_bytes = execution.streamed_bytes
            execution.stream = None
            job.words.reset()
            self._stream(execution, 0)
        finally:
            execution.rewinding = False
        return True

    def end(self, execution: Execution) -> None:
        """The job is over, or gives up waiting; does nothing the second time."""
        if execution.ended:
            return
        execution.ended = True
        ticket = execution.ticket
        if ticket.granted_ns is not None:
            self._mark.clear()
            self._memory.set_workspace(0)
            stream = execution.stream
            if stream is not None and not stream.finished.done():
                self._leases.block(_DRAINING)
                stream.cancel()
        self._leases.release(ticket)

    async def quiet(self, words: Words) -> None:
        """Wait until no stream touches these flag words any more."""
        for stream in [stream for stream in self._streams if stream.words is words]:
            await asyncio.shield(stream.finished)

    def close(self) -> None:
        """Stop the stream so that the next agent can go on with it, and end the runner."""
        for stream in self._streams:
            stream.cancel(resumable=True)
        self._device.close()

    def _start(self, execution: Execution, now_ns: int, granted: Callable[[int], None]) -> None:
        job = execution.job
        self._occupy(job)
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
            self._grant(execution, time.monotonic_ns(), granted)

    def _grant(self, execution: Execution, now_ns: int, granted: Callable[[int], None]) -> None:
        job = execution.job
        if job.words is not None:
            job.words.reset()
        granted(now_ns)
        if not execution.ended:  # the client may be found dead by telling it
            self._stream(execution, 0)

    def _occupy(self, job: Job) -> None:
        self._mark.set(job.token, job.process)
        self._memory.set_workspace(job.workspace_bytes)

    def _stream(self, execution: Execution, published: int) -> None:
        job = execution.job
        if job.words is None or published == len(job.sources):
            return
        execution.stream = self._device.open_stream(
            StreamOrder(
                sources=job.sources,
                ring=job.ring,
                words=job.words,
                deadline_ns=job.deadline_ns,
                published=published,
                on_finished=self._stream_finished,
                on_failure=lambda _stream, failure: self._stream_failed(execution, failure),
                on_placed=self._on_placed,
            )
        )
        self._streams.add(execution.stream)

    def _stream_failed(self, execution: Execution, failure: StreamFailed) -> None:
        if not execution.ended:
            execution.failed(failure)

    def _stream_finished(self, stream: Stream) -> None:
        self._streams.discard(stream)
        self._leases.unblock(_DRAINING)
