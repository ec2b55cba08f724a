"""A CUDA stream of copies: enqueued without blocking, completion and time learned by events.

A copy whose time is wanted has an event before and one after it which keep the time; that costs
the link 3 to 4 us more than one event that does not (an H200, `tests.gpu.bench.lanes`).

It knows neither jobs nor tiers. For one thread at a time.

Invariant: a copy's events are used for no other copy before `take` was called for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import call, driver
from tierline_agent.devices.cuda.kept import KeptCalls

_NON_BLOCKING = 1  # not ordered with the default stream, in which extents are zeroed
_TIMED, _UNTIMED = 0, 2  # flags of events


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy that was enqueued."""

    begin: int | None
    """None: it is not timed."""
    end: int


class CopyLane:
    """A stream and its events."""

    def __init__(self, context: Context, kept: KeptCalls) -> None:
        """Raises CudaFailed."""
        context.enter()
        self._context = context
        self._kept = kept
        self._keep: list[Any] = []
        self._idle: dict[int, list[int]] = {_TIMED: [], _UNTIMED: []}
        self._last: Copy | None = None
        """The last one that was enqueued."""
        attempt = f"make a copy stream on GPU {context.ordinal}"
        streams = [call(attempt, driver.cuStreamCreate, _NON_BLOCKING) for _ in range(2)]
        self._keep += streams
        self.stream, self._publisher = (int(stream) for stream in streams)

    def wait(self, word: int, at_least: int) -> None:
        """Let what follows wait for a flag word. Raises CudaFailed."""
        self._kept.wait_at_least(self.stream, word, at_least)

    def copy(
        self,
        target: int,
        source: int,
        size_bytes: int,
        *,
        publish: tuple[int, int] | None = None,
        timed: bool = True,
    ) -> Copy:
        """Enqueue a copy from pinned memory; then, `publish` a value in a flag word.

        The copy has ended when that is done too. Raises CudaFailed: a part may be enqueued.
        """
        kind = _TIMED if timed else _UNTIMED
        copy = Copy(self._event(kind) if timed else None, self._event(kind))
        if copy.begin is not None:
            self._kept.record(copy.begin, self.stream)
        self._kept.copy(target, source, size_bytes, self.stream)
        if publish is not None:
            self._kept.write(self.stream, *publish)
        self._kept.record(copy.end, self.stream)
        self._last = copy
        return copy

    def publish(self, copy: Copy, word: int, value: int) -> None:
        """Publish as soon as a copy has ended that was enqueued without that.

        Later copies go on meanwhile; what is enqueued from now on, and the end of the last one
        of them, come after it. Raises CudaFailed: a part may be enqueued.
        """
        last = self._last
        if last is None or copy is last:
            self._kept.write(self.stream, word, value)
            self._kept.record(copy.end, self.stream)
            return
        self._kept.wait_for(self._publisher, copy.end)
        self._kept.write(self._publisher, word, value)
        published = self._event(_UNTIMED)
        self._kept.record(published, self._publisher)
        self._kept.wait_for(self.stream, published)
        self._kept.record(last.end, self.stream)
        self._idle[_UNTIMED].append(published)

    def is_done(self, copy: Copy) -> bool:
        """Whether a copy has ended. Raises CudaFailed: it, or something before it, failed."""
        return self._kept.has_passed(copy.end)

    def is_idle(self) -> bool:
        """Whether all that was enqueued has run, also what has no event. Raises CudaFailed."""
        return self._kept.is_idle(self.stream) and self._kept.is_idle(self._publisher)

    def take(self, copy: Copy) -> int | None:
        """The time of an ended copy, nanoseconds, if it was taken; its events are free.

        Raises CudaFailed.
        """
        if copy.begin is None:
            self._idle[_UNTIMED].append(copy.end)
            return None
        duration_s = self._kept.elapsed_s(copy.begin, copy.end)
        self._idle[_TIMED] += (copy.begin, copy.end)
        return int(duration_s * 1e9)

    def _event(self, kind: int) -> int:
        if self._idle[kind]:
            return self._idle[kind].pop()
        attempt = f"make an event on GPU {self._context.ordinal}"
        event = call(attempt, driver.cuEventCreate, kind)
        self._keep.append(event)
        return int(event)
