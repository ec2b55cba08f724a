"""Prefetching for a task's next job: which stream does it, and what it leaves in the ring.

When the stream of a job is complete and nobody else wants the device, the device *prefetches*: it
copies the first extents of that task's next job (`policy.prefetch` says when, and what is left of
them), also when the job is over. It is told to stop as soon as anybody else asks for the device. If
the next job that takes the ring is the same arena's, it begins with what has arrived, and a stream
that is still under way becomes its own. Nothing of it is published before that job is granted, so
to the client it is as if these extents had arrived at once.

Where the job's stream is allowed to (`StreamOrder.following`), it begins the prefetching one by
itself, in a thread of the device; here that is found out when something depends on it.

Invariant: at most one stream prefetches, and no job streams meanwhile, but for what the stream that
began it has under way. Before it is stopped, that stream has been told to begin none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tierline_agent.devices.base import Ahead, Device, Stream, StreamOrder, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.policy.prefetch import Prefetched, Prefix, reach
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.scheduling.execution import DeviceJob, Execution


@dataclass(eq=False)
class _Current:
    """A prefetching stream, which has no job yet."""

    execution: Execution
    """The job that streamed the arena last."""
    stream: Stream
    before: Prefix
    """The content of the ring when it began."""
    stopped: bool = False
    """Whether it was told to stop."""
    lost: bool = False
    """Whether its ring was taken by another job."""


class Prefetcher:
    """Copies for next jobs on one device. For the event loop's thread."""

    def __init__(
        self,
        device: Device,
        streams: set[Stream],
        on_finished: Callable[[Stream], None],
        on_placed: Callable[[int, float], None] | None,
    ) -> None:
        """`streams` are all that are under way: those that prefetch are added here."""
        self._device = device
        self._streams = streams
        self._on_finished = on_finished
        self._on_placed = on_placed
        self._prefetched = Prefetched()
        self._known: _Current | None = None
        self._leader: tuple[Execution, Stream] | None = None
        """The stream of a job that may begin a prefetching one by itself."""
        self._candidate: Execution | None = None
        """The job for whose next one the device prefetches."""

    @property
    def _current(self) -> _Current | None:
        """The stream that prefetches."""
        if self._leader is not None:
            execution, stream = self._leader
            if stream.follower is not None:
                self._leader = None
                self._begun(execution, stream.follower)
        return self._known

    # -- jobs that stream

    def stream_begun(self, execution: Execution, stream: Stream, order: StreamOrder) -> None:
        """A job's stream has begun with this order."""
        self._leader = None if order.following is None else (execution, stream)

    def set_candidate(self, execution: Execution) -> None:
        """A job streams: what is prefetched from now on is for its task's next one."""
        self._candidate = execution

    def adopt(self, execution: Execution, order: StreamOrder) -> Stream | None:
        """The prefetching stream that is the job's from now on; None if there is none for it."""
        current = self._current
        if current is None or current.stream.words is not execution.job.words:
            return None
        if not current.stream.go(order):
            return None
        self._known = None
        return current.stream

    def claim_prefix(self, execution: Execution) -> int:
        """How many first extents a job that streams from its start finds in the ring."""
        job, current = execution.job, self._current
        if not job.streams:
            return 0
        prefix = self._prefetched.take(job.domain, job.words)
        if current is not None and current.stream.words is job.words:
            current.lost = True
            execution.earlier_bytes += current.before.size_bytes
            return current.before.extents if current.stopped else current.stream.in_place
        execution.earlier_bytes += prefix.size_bytes
        return prefix.extents

    def ring_is_taken(self, job: DeviceJob, *, from_start: bool) -> None:
        """A job that streams has the device; `from_start`: what lies there for it is of use."""
        self._prefetched.overwritten(job.domain, by=job.words if from_start else None)
        current = self._current
        if current is not None and not (from_start and current.stream.words is job.words):
            current.lost = current.lost or current.execution.job.domain == job.domain
            self.stop()

    def job_ends(self, execution: Execution) -> None:
        """A job gives the device back, and begins no stream any more; see `job_is_over`."""
        current = self._current
        if current is not None and current.execution is execution:
            current.stream.hold()

    def job_is_over(self, execution: Execution) -> None:
        """Its ring is free; nothing is left to do if the next job has taken the stream over."""
        current = self._current
        if current is not None and current.execution is execution:
            current.stream.ring_is_free()

    def stream_ended(self, stream: Stream) -> None:
        """A stream is over; it may be one that prefetches."""
        current = self._current
        if self._leader is not None and self._leader[1] is stream:
            self._leader = None
        if current is None or current.stream is not stream:
            return
        self._known = None
        if not current.lost:
            size_bytes = current.before.size_bytes + stream.streamed_bytes
            self._prefetched.keep(
                current.execution.job.domain, Prefix(stream.words, stream.in_place, size_bytes)
            )

    # -- the beginning

    @property
    def under_way(self) -> bool:
        """Whether a stream prefetches now."""
        return self._current is not None

    @property
    def candidate(self) -> Execution | None:
        """The job for whose next one something is to be copied, as soon as that may be."""
        execution = self._candidate
        if execution is None or execution.job.words is None or self._current is not None:
            return None
        within = reach(len(execution.job.sources), len(execution.job.ring))
        reached = self._prefetched.reaches(execution.job.domain, execution.job.words)
        return execution if reached != within else None

    def order(self, execution: Execution, words: Words) -> StreamOrder:
        """The copies for the job after this one."""
        job = execution.job
        return StreamOrder(
            sources=job.sources,
            ring=job.ring,
            words=words,
            deadline_ns=BACKGROUND_NS,
            published=self._prefetched.reaches(job.domain, words),
            on_finished=self._on_finished,
            on_failure=self._stream_failed,
            on_placed=self._on_placed,
            ahead=Ahead.BETWEEN_JOBS if execution.ended else Ahead.AFTER_A_JOB,
            yields=job.yielding is not None,
        )

    def _stream_failed(self, stream: Stream, _failure: StreamFailed) -> None:
        current = self._current
        if current is not None and current.stream is stream:
            self.invalidate(current.execution)

    def begin(self, execution: Execution, words: Words) -> None:
        """Open the stream that copies for the job after this one."""
        self._begun(execution, self._device.open_stream(self.order(execution, words)))

    def _begun(self, execution: Execution, stream: Stream) -> None:
        before = self._prefetched.take(execution.job.domain, stream.words)
        self._streams.add(stream)
        self._known = _Current(execution, stream, before)

    # -- the end

    def stop(self) -> None:
        """Prefetch nothing any more; what has arrived stays good."""
        if self._leader is not None:
            self._leader[1].stay()
        current = self._current
        if current is not None:
            current.stopped = True
            current.stream.cancel()

    def stop_for_others(self, job: DeviceJob) -> None:
        """A job asks for the device: stop, unless copies are for it, or for whose job it works."""
        current, leader = self._current, self._leader
        stream = current.stream if current is not None else leader[1] if leader else None
        last = current.execution if current is not None else leader[0] if leader else None
        if stream is None or last is None or stream.words is job.words:
            return
        if not job.is_outside_jobs_of(last.job):
            self.stop()

    def close(self) -> None:
        """Nothing is begun any more."""
        self._candidate = None
        if self._leader is not None:
            self._leader[1].stay()
        _ = self._current  # one that has begun by itself is among the streams now

    def drop_candidate(self, execution: Execution) -> None:
        """A job's stream has failed: nothing is copied for the next one."""
        if self._candidate is execution:
            self._candidate = None

    def invalidate(self, execution: Execution) -> None:
        """The job's ring is not what its next one finds: it was parked, or a prefetch failed.

        What is wrong with an extent is then found by the job that needs it, in its turn.
        """
        self._prefetched.overwritten(execution.job.domain)
        self.drop_candidate(execution)
        if self._leader is not None and self._leader[0] is execution:
            self._leader[1].stay()
        current = self._current
        if current is not None and current.execution is execution:
            current.lost = True
            self.stop()

    def arena_removed(self, words: Words) -> None:
        """The arena of these flag words has no next job."""
        self._prefetched.arena_removed(words)
        if self._candidate is not None and self._candidate.job.words is words:
            self._candidate = None
        if self._leader is not None and self._leader[1].words is words:
            self._leader[1].stay()
        current = self._current
        if current is not None and current.stream.words is words:
            current.lost = True
            self.stop()
