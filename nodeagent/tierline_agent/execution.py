"""The device at work: from the lease to the stream and back.

A job is granted the lease, its flag words are zeroed, its stream begins, and only then the client
is told. When it ends, for whatever reason, its stream is cancelled and the lease goes on as soon
as the last copy into the ring has ended. This is the one place that knows this order; sessions say
when jobs begin and end.

Invariant: at most one stream writes to fast memory, and it is the lease holder's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tierline_agent.accounting import FastMemory
from tierline_agent.devices.base import Device, Extent, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.identity import Process
from tierline_agent.leases import LeaseManager, Ticket
from tierline_agent.policy.leases import Rank
from tierline_agent.state import LeaseMark
from tierline_agent.streaming import Source, Stream, StreamRunner

_DRAINING = "the last job's copies"


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


@dataclass(eq=False)
class Execution:
    """A job that wants, or has, the device."""

    job: Job
    granted: Callable[[int], None]
    failed: Callable[[StreamFailed], None]
    ticket: Ticket | None = None
    stream: Stream | None = None
    ended: bool = False

    @property
    def streamed_bytes(self) -> int:
        """Bytes that its stream brought in so far."""
        return self.stream.streamed_bytes if self.stream is not None else 0

    @property
    def granted_ns(self) -> int | None:
        """When it got the lease."""
        return self.ticket.granted_ns if self.ticket is not None else None


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
        self._runner = StreamRunner(device.kind)
        self._streams: set[Stream] = set()

    def begin(
        self, job: Job, granted: Callable[[int], None], failed: Callable[[StreamFailed], None]
    ) -> Execution:
        """Ask for the device; `granted` may be called before this returns, `failed` not."""
        execution = Execution(job, granted, failed)
        execution.ticket = self._leases.request(
            job.deadline_ns, job.rank, lambda now_ns: self._start(execution, now_ns)
        )
        return execution

    def resume(self, job: Job, failed: Callable[[StreamFailed], None]) -> Execution | None:
        """Go on with a job that ran while the agent was away; None if it cannot.

        Its counters in the control page stand where they stood. They are the client's to write: a
        count that is out of range only means that the job cannot go on.
        """
        published = job.words.published if job.words is not None else 0
        if published > len(job.sources):
            return None
        ticket = self._leases.resume(job.deadline_ns)
        if ticket is None:
            return None
        execution = Execution(job, lambda _now_ns: None, failed, ticket)
        self._occupy(execution, published)
        return execution

    def end(self, execution: Execution) -> None:
        """The job is over, or gives up waiting; does nothing the second time."""
        if execution.ended or execution.ticket is None:
            return
        execution.ended = True
        if execution.granted_ns is not None:
            self._mark.clear()
            self._memory.set_workspace(0)
            stream = execution.stream
            if stream is not None and not stream.finished.done():
                self._leases.block(_DRAINING)
                stream.cancel()
        self._leases.release(execution.ticket)

    async def quiet(self, words: Words) -> None:
        """Wait until no stream touches these flag words any more."""
        for stream in [stream for stream in self._streams if stream.words is words]:
            await asyncio.shield(stream.finished)

    def close(self) -> None:
        """Stop the stream so that the next agent can go on with it, and end the runner."""
        for stream in self._streams:
            stream.cancel(resumable=True)
        self._runner.close()

    def _start(self, execution: Execution, now_ns: int) -> None:
        words = execution.job.words
        if words is not None:
            words.reset()
        self._occupy(execution, 0)
        execution.granted(now_ns)

    def _occupy(self, execution: Execution, published: int) -> None:
        job = execution.job
        self._mark.set(job.token, job.process)
        self._memory.set_workspace(job.workspace_bytes)
        if job.words is None or published == len(job.sources):
            return
        execution.stream = Stream(
            device=self._device,
            sources=job.sources,
            ring=job.ring,
            words=job.words,
            deadline_ns=job.deadline_ns,
            published=published,
            on_finished=self._stream_finished,
            on_failure=lambda _stream, failure: self._stream_failed(execution, failure),
            on_placed=self._on_placed,
        )
        self._streams.add(execution.stream)
        self._runner.start(execution.stream)

    def _stream_failed(self, execution: Execution, failure: StreamFailed) -> None:
        if not execution.ended:
            execution.failed(failure)

    def _stream_finished(self, stream: Stream) -> None:
        self._streams.discard(stream)
        self._leases.unblock(_DRAINING)
