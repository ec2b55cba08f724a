"""One job on the device: which layer is next, and what of its stream lies in the ring.

Told as the mechanism works: extents are copied in the order of the stream, each link its own one
after the other; an extent may be copied once the one `ring` places before it was given back; layer
l may start once the stream has got to the last extent that it reads; what a layer is the last to
read is given back when it ends. It shares nothing with the recursion that predicts it.

Invariant: `consumed <= published`, and no position is in flight or arrived beyond
`consumed + ring`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from tierline_api.layout import ArenaLayout


@dataclass(frozen=True)
class TaskModel:
    """A task as the simulator knows it: times, plan, and how its extents reach the device."""

    name: str
    period_s: float
    deadline_s: float | None
    """None: BestEffort."""
    layout: ArenaLayout
    compute_s: Sequence[float]
    resident: frozenset[int]
    ring_extents: int
    link_of_extent: Sequence[int]
    domain: str = "default"
    """Jobs of one domain stream through the same ring."""
    preemptible: bool = False
    budget_s: float | None = None
    """How long a job has the device with its rank, and a dispatch more for each time that it goes
    on; None: to its end."""
    penalty_s: float = 0.0
    """How much longer for each time that its stream begins again."""
    save_s: float = 0.0
    """To write a preserved workspace back before another task's job; 0: it is discarded."""
    restore_s: float = 0.0
    calls: Sequence[int] = ()
    """How many jobs of each arena a release has; one of those that are not named."""
    between_s: float = 0.0
    """Time that passes between them, in all."""
    starts: bool = False
    """Whether these are the first jobs of a program: they have no rank."""
    sections_s: Sequence[float] = ()
    """Jobs without an arena that go before the others: how long each has the device."""
    parts: list[Part] = field(init=False, repr=False, compare=False)
    """The jobs of a release, one after another; one without a stream for a task without layers."""
    streams: bool = field(init=False, repr=False, compare=False)
    """Whether any of them needs the ring: found once, for it is asked at each event."""

    def __post_init__(self) -> None:
        named = [*self.calls, *[1] * (self.layout.arena_count - len(self.calls))]
        parts: list[Part] = []
        for arena, calls in enumerate(named):
            if arena in self.layout.layer_arena:
                parts += [Part.of(self, arena)] * max(1, calls)
            elif arena < len(self.calls) and self.layout.layer_count:
                parts += [Part.plain((0.0,))] * calls
        if not parts:
            parts = [Part.plain(self.compute_s)]
        learning = [Part.plain((seconds,)) for seconds in self.sections_s]
        object.__setattr__(self, "parts", learning + parts)
        object.__setattr__(self, "streams", any(part.extents for part in parts))


@dataclass(frozen=True)
class Part:
    """The layers of one arena, and its streamed extents in order."""

    compute_s: tuple[float, ...]
    extents: tuple[int, ...]
    needs: tuple[int, ...]
    """How far the stream must have got before each layer."""
    frees: tuple[int, ...]
    """How much of the stream is given back when each layer ends."""
    of_link: dict[int, tuple[int, ...]]
    """Positions in the stream by link."""

    @classmethod
    def of(cls, task: TaskModel, arena: int) -> Part:
        """The part of one arena."""
        layout = task.layout
        layers = [index for index, owner in enumerate(layout.layer_arena) if owner == arena]
        stream = [
            extent
            for extent in layout.extents_of_arena(arena)
            if extent not in task.resident
            and extent not in layout.pinned_extents
            and layout.last_layer[extent] >= 0
        ]
        readers = [layout.last_layer[extent] for extent in stream]
        links = {task.link_of_extent[extent] for extent in stream}
        return cls(
            compute_s=tuple(task.compute_s[layer] for layer in layers),
            extents=tuple(stream),
            needs=tuple(bisect_right(stream, layout.last_extent[layer]) for layer in layers),
            frees=tuple(bisect_right(readers, layer) for layer in layers),
            of_link={
                link: tuple(p for p, e in enumerate(stream) if task.link_of_extent[e] == link)
                for link in links
            },
        )

    @classmethod
    def plain(cls, compute_s: Sequence[float]) -> Part:
        """Layers without weights that could stream."""
        count = max(1, len(compute_s))
        return cls(tuple(compute_s) or (0.0,), (), (0,) * count, (0,) * count, {})


class Job:
    """One activation of a task."""

    def __init__(self, task: int, model: TaskModel, key: int, arrival_s: float) -> None:
        self.task = task
        self.model = model
        self.key = key
        self.arrival_s = arrival_s
        limit = model.deadline_s
        self.deadline_s = float("inf") if limit is None else arrival_s + limit
        self.part = 0
        self.layer = 0
        self.held_s = 0.0
        """How long it has had the device, up to `since_s` if it has it."""
        self.since_s = 0.0
        self.begun = False
        """Whether its stream has begun: no other one is displaced by it any more."""
        self.opens_s = 0.0
        """When the copies that were under way as it took the ring have ended."""
        self.preemptions = 0
        """How often it gave the device away."""
        self.restarts = 0
        """How often its stream was stopped meanwhile."""
        self.contained = False
        """Whether it has had its budget, and goes on without its rank."""
        self.stood = False
        """Whether it gave the device away at the gate of its next layer."""
        self.epoch = 0
        """Rises when the ring is lost: copies begun before that arrive nowhere."""
        self.published = self.consumed = 0
        self._arrived: list[bool] = []
        self._next: dict[int, int] = {}
        self._open()

    @property
    def done(self) -> bool:
        """Whether its last layer has ended."""
        return self.part == len(self.model.parts)

    @property
    def waits(self) -> bool:
        """Whether the next layer lacks data."""
        return self.published < self.model.parts[self.part].needs[self.layer]

    def compute_s(self) -> float:
        """Time of the next layer, in full."""
        return self.model.parts[self.part].compute_s[self.layer]

    def next_copy(self, link: int) -> int | None:
        """The position in the stream to copy next on `link`, or None if it must wait or is over."""
        if self.done:
            return None
        queue = self.model.parts[self.part].of_link.get(link, ())
        at = self._next.get(link, 0)
        if at == len(queue) or queue[at] - self.consumed >= self.model.ring_extents:
            return None
        return queue[at]

    def begin_copy(self, link: int) -> None:
        """That copy is under way."""
        self._next[link] = self._next.get(link, 0) + 1

    def size_of(self, position: int) -> int:
        """Bytes of the extent at a position of the stream."""
        part = self.model.parts[self.part]
        return self.model.layout.extent_sizes[part.extents[position]]

    def arrive(self, position: int) -> None:
        """A copy ended."""
        self._arrived[position] = True
        while self.published < len(self._arrived) and self._arrived[self.published]:
            self.published += 1

    def end_layer(self) -> None:
        """The layer ended: give back what it was the last to read."""
        part = self.model.parts[self.part]
        self.consumed = max(self.consumed, part.frees[self.layer])
        self.layer += 1
        self.stood = False
        if self.layer == len(part.compute_s):
            self.part += 1
            self._open()

    def begin_call(self) -> None:
        """The next part asks for the device as a job of its own does."""
        self.begun = self.stood = self.contained = False
        self.held_s = 0.0
        self.preemptions = self.restarts = 0

    def lose_ring(self) -> None:
        """The content of the ring is gone; the stream goes on from what the next layer reads."""
        self.epoch += 1
        self.published = self.consumed
        self._arrived[self.consumed :] = [False] * (len(self._arrived) - self.consumed)
        for link, queue in self.model.parts[self.part].of_link.items():
            self._next[link] = bisect_right(queue, self.consumed - 1)

    def _open(self) -> None:
        self.layer = self.published = self.consumed = 0
        self.epoch += 1
        self._next = {}
        self._arrived = [] if self.done else [False] * len(self.model.parts[self.part].extents)
