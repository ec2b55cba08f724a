"""Copies for a task's next job: which stream makes them, and what it leaves in the ring.

When the stream of a job is complete and nobody else wants the device, the device goes on *ahead*,
with the first extents of that task's next job (`policy.ahead` says when, and what is left of them);
also when the job is over. It is told to stop as soon as anybody else asks for the device. If the
next job that takes the ring is the same arena's, it begins with what has arrived, and a stream that
is still under way becomes its own. Nothing of it is published before that job is granted, so to the
client it is as if these extents had arrived at once.

Where the job's stream is allowed to (`StreamOrder.following`), it begins the one ahead by itself,
in a thread of the device; here that is found out when something depends on it.

Invariant: at most one stream goes ahead, and no job streams meanwhile, but for what the stream that
began it has under way. Before it is stopped, that stream has been told to begin none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tierline_agent.devices.base import Ahead, Device, Stream, StreamOrder, Words
from tierline_agent.errors import StreamFailed
from tierline_agent.policy.ahead import Aheads, Lying, reach
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.scheduling.execution import Execution, Job


@dataclass(eq=False)
class _Current:
    """A stream without a job."""

    last: Execution
    """The job that streamed the arena last."""
    stream: Stream
    before: Lying
    """What lay in the ring when it began."""
    stopped: bool = False
    """It was told to stop."""
    lost: bool = False
    """Its ring was taken by a job."""


class GoingAhead:
    """What one device copies ahead. For the event loop's thread."""

    def __init__(
        self,
        device: Device,
        streams: set[Stream],
        on_finished: Callable[[Stream], None],
        on_placed: Callable[[int, float], None] | None,
    ) -> None:
        """`streams` are all that are under way: those ahead are added here."""
        self._device = device
        self._streams = streams
        self._on_finished = on_finished
        self._on_placed = on_placed
        self._lying = Aheads()
        self._known: _Current | None = None
        self._leader: tuple[Execution, Stream] | None = None
        """The stream of a job that may begin one ahead by itself."""
        self._last: Execution | None = None
        """The one for whose next job the device goes ahead."""

    @property
    def _current(self) -> _Current | None:
        """What goes ahead."""
        if self._leader is not None:
            execution, stream = self._leader
            if stream.follower is not None:
                self._leader = None
                self._begun(execution, stream.follower)
        return self._known

    # -- jobs that stream

    def streams(self, execution: Execution, stream: Stream, order: StreamOrder) -> None:
        """A job's stream has begun with this order."""
        self._leader = None if order.following is None else (execution, stream)

    def last(self, execution: Execution) -> None:
        """A job streams: copies ahead are for the task's next one."""
        self._last = execution

    def becomes(self, execution: Execution, order: StreamOrder) -> Stream | None:
        """The stream ahead that is the job's from now on; None if there is none for it."""
        current = self._current
        if current is None or current.stream.words is not execution.job.words:
            return None
        if not current.stream.go(order):
            return None
        self._known = None
        return current.stream

    def find(self, execution: Execution) -> int:
        """How many first extents lie in the ring for a job that streams from its start."""
        job, current = execution.job, self._current
        if not job.streams:
            return 0
        lying = self._lying.take(job.domain, job.words)
        if current is not None and current.stream.words is job.words:
            current.lost = True
            execution.earlier_bytes += current.before.size_bytes
            return current.before.extents if current.stopped else current.stream.in_place
        execution.earlier_bytes += lying.size_bytes
        return lying.extents

    def ring_is_taken(self, job: Job, *, from_start: bool) -> None:
        """A job that streams has the device; `from_start`: what lies there for it is of use."""
        self._lying.overwritten(job.domain, by=job.words if from_start else None)
        current = self._current
        if current is not None and not (from_start and current.stream.words is job.words):
            current.lost = current.lost or current.last.job.domain == job.domain
            self.stop()

    def job_ends(self, execution: Execution) -> None:
        """A job gives the device back, and begins no stream any more; see `job_is_over`."""
        current = self._current
        if current is not None and current.last is execution:
            current.stream.hold()

    def job_is_over(self, execution: Execution) -> None:
        """Its ring is free; nothing is left to do if the next job has taken what goes ahead."""
        current = self._current
        if current is not None and current.last is execution:
            current.stream.ring_is_free()

    def ended(self, stream: Stream) -> None:
        """A stream is over; it may be one ahead."""
        current = self._current
        if self._leader is not None and self._leader[1] is stream:
            self._leader = None
        if current is None or current.stream is not stream:
            return
        self._known = None
        if not current.lost:
            size_bytes = current.before.size_bytes + stream.streamed_bytes
            self._lying.lies(
                current.last.job.domain, Lying(stream.words, stream.in_place, size_bytes)
            )

    # -- the beginning

    @property
    def under_way(self) -> bool:
        """Whether a stream goes ahead."""
        return self._current is not None

    @property
    def wanted(self) -> Execution | None:
        """The one for whose next job something is to be copied, as soon as that may be."""
        last = self._last
        if last is None or last.job.words is None or self._current is not None:
            return None
        within = reach(len(last.job.sources), len(last.job.ring))
        return last if self._lying.reaches(last.job.domain, last.job.words) != within else None

    def order(self, execution: Execution, words: Words) -> StreamOrder:
        """What is to be copied for the job after this one."""
        job = execution.job
        return StreamOrder(
            sources=job.sources,
            ring=job.ring,
            words=words,
            deadline_ns=BACKGROUND_NS,
            published=self._lying.reaches(job.domain, words),
            on_finished=self._on_finished,
            on_failure=self._stream_failed,
            on_placed=self._on_placed,
            ahead=Ahead.BETWEEN_JOBS if execution.ended else Ahead.AFTER_A_JOB,
            yields=job.yielding is not None,
        )

    def _stream_failed(self, stream: Stream, _failure: StreamFailed) -> None:
        current = self._current
        if current is not None and current.stream is stream:
            self.forget(current.last)

    def begin(self, execution: Execution, words: Words) -> None:
        """Begin."""
        self._begun(execution, self._device.open_stream(self.order(execution, words)))

    def _begun(self, execution: Execution, stream: Stream) -> None:
        before = self._lying.take(execution.job.domain, stream.words)
        self._streams.add(stream)
        self._known = _Current(execution, stream, before)

    # -- the end

    def stop(self) -> None:
        """Copy nothing ahead any more; what has arrived stays good."""
        if self._leader is not None:
            self._leader[1].stay()
        current = self._current
        if current is not None:
            current.stopped = True
            current.stream.cancel()

    def stop_for_others(self, job: Job) -> None:
        """A job asks for the device: stop, unless copies are for it, or for whose job it works."""
        current, leader = self._current, self._leader
        stream = current.stream if current is not None else leader[1] if leader else None
        last = current.last if current is not None else leader[0] if leader else None
        if stream is None or last is None or stream.words is job.words:
            return
        if not job.is_outside_jobs_of(last.job):
            self.stop()

    def close(self) -> None:
        """Nothing is begun any more."""
        self._last = None
        if self._leader is not None:
            self._leader[1].stay()
        _ = self._current  # one that has begun by itself is among the streams now

    def failed(self, execution: Execution) -> None:
        """A job's stream has failed: nothing is copied for the next one."""
        if self._last is execution:
            self._last = None

    def forget(self, execution: Execution) -> None:
        """The job's ring is not what its next one finds: it was parked, or a copy ahead failed.

        What is wrong with an extent is then found by the job that needs it, in its turn.
        """
        self._lying.overwritten(execution.job.domain)
        self.failed(execution)
        if self._leader is not None and self._leader[0] is execution:
            self._leader[1].stay()
        current = self._current
        if current is not None and current.last is execution:
            current.lost = True
            self.stop()

    def gone(self, words: Words) -> None:
        """The arena of these flag words has no next job."""
        self._lying.gone(words)
        if self._last is not None and self._last.job.words is words:
            self._last = None
        if self._leader is not None and self._leader[1].words is words:
            self._leader[1].stay()
        current = self._current
        if current is not None and current.stream.words is words:
            current.lost = True
            self.stop()
