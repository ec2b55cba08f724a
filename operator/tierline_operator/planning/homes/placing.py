"""Which lower tier holds each extent of each task.

Every extent has a home below fast memory, resident or not, so that evicting it costs nothing. What
running pods hold stays where it is. Then comes what tasks wish of a tier. What no wish names lies
in its task's preferred tier where all tasks have room for that. Where they do not, there are two
placements, of which the planner takes the first that it can prove:

* by gain (sharing.py): scarce tiers go first to what deadlines need, then to whom an extent there
  gains most, up to where it gains nothing; what is left of them goes by preference. A task's tiers
  alternate along its stream (interleaving.py).
* in order: each task, in the order given, fills the first of its tiers that has room, then the
  next. A set that holds so is never refused.

Where all have room in the tier that they prefer, but prefer a slow one, these are asked the other
way round. Equal weights of one trust domain are stored once, as far as their wishes agree.

Gain is reckoned with the share of its extents that a task is likely to stream: what fast memory has
no room for, of all tasks alike. What is resident in every plan needs no fast tier.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.planning.answer import HomeRun, HomesBy, Infeasible
from tierline_operator.planning.homes import refusals
from tierline_operator.planning.homes.interleaving import interleave
from tierline_operator.planning.homes.sharing import MOST_TIERS, Lot, share
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.working_memory import workspace_bytes

Homes = tuple[str, ...]
_Content = tuple[str, str, tuple[int, ...]]
_LEAST_STREAMED: Final = 0.05
"""Share of its extents: some are streamed where all of them would fit, too."""


@dataclass(frozen=True)
class Placement:
    """Homes of all tasks."""

    homes: tuple[Homes, ...]
    """By task, in the order given, the tier of each extent."""
    by: HomesBy
    """The rule for those that neither a pod holds nor a wish names."""


def placements(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, stay: Sequence[Homes] = ()
) -> tuple[Placement, ...] | Infeasible:
    """Those worth trying, one or two, or which task has no place and by how many bytes.

    `stay` has homes of the first tasks, which do not move although no pod holds them.
    """
    room = _Room.of(tasks, device, stay)
    if isinstance(room, Infeasible):
        return room
    in_order = _in_order(tasks, device, room)
    by_speed = _by_speed(tasks, device)
    preferred, fastest = isinstance(in_order, tuple), True
    for index, lie in enumerate(in_order) if isinstance(in_order, tuple) else ():
        task, fixed = tasks[index], room.fixed[index]
        known = [name for name in task.tiers if name in device.tiers]
        if fixed is None and known:
            others = {home for e, home in enumerate(lie) if e not in task.wished_homes}
            preferred = preferred and others <= {known[0]}
            fastest = fastest and known[0] == min(known, key=by_speed.index)
    ordered = in_order if isinstance(in_order, Infeasible) else Placement(in_order, HomesBy.ORDER)
    gaining = None if preferred and fastest else _by_gain(tasks, device, room, by_speed)
    if gaining is None or gaining == in_order:
        return ordered if isinstance(ordered, Infeasible) else (ordered,)
    better = Placement(gaining, HomesBy.GAIN)
    if isinstance(ordered, Infeasible):
        return (better,)
    return (ordered, better) if preferred else (better, ordered)


@dataclass
class _Room:
    """The rest of the tiers, what is stored there or will be, and which tasks do not move."""

    free: dict[str, int]
    """Bytes, without what wishes take."""
    stored: dict[_Content, list[Homes]]
    """Homes of each copy of a content."""
    fixed: list[Homes | None]
    """By task: homes that are not to be chosen any more."""
    wished: dict[int, dict[str, int]]
    """Bytes that wishes have taken, by task and tier."""

    @classmethod
    def of(
        cls, tasks: Sequence[TaskDemand], device: DeviceCapacity, stay: Sequence[Homes]
    ) -> _Room | Infeasible:
        """With what stays, and what tasks wish."""
        room = cls(
            free={name: tier.capacity_bytes for name, tier in device.tiers.items()},
            stored=defaultdict(list),
            fixed=[None] * len(tasks),
            wished={},
        )
        for index, task in enumerate(tasks):
            homes = stay[index] if index < len(stay) else None
            homes = homes if task.held is None else task.held.home_of_extent
            if homes is None:
                continue
            if not set(homes) <= set(device.tiers):
                return refusals.gone(task, sorted(set(homes) - set(device.tiers)))
            room.fixed[index] = homes
            if not task.weights_digest or homes not in room.stored[_content(task)]:
                for name, count in Counter(homes).items():
                    room.free[name] -= count * task.layout.extent_bytes
            room.stored[_content(task)].append(homes)
        refusal = room._take_wished(tasks, device.unmeasured)
        return room if refusal is None else refusal

    def copy(self) -> _Room:
        """One that may be filled."""
        stored = defaultdict(list, {content: list(own) for content, own in self.stored.items()})
        return _Room(dict(self.free), stored, list(self.fixed), self.wished)

    def _take_wished(
        self, tasks: Sequence[TaskDemand], unmeasured: Collection[str]
    ) -> Infeasible | None:
        """Take what tasks wish to have in a tier; a refusal names a wish that cannot be.

        Tasks of equal content and equal wishes will share a copy, which is taken for the first.
        """
        asked: set[tuple[object, ...]] = set()
        for index, task in enumerate(tasks):
            if self.fixed[index] is not None or not task.wished_homes or self.shared(task):
                continue
            if task.weights_digest and _alike(task) in asked:
                continue
            asked.add(_alike(task))
            size = task.layout.extent_bytes
            extents_of = Counter(task.wished_homes.values())
            mine = self.wished[index] = dict.fromkeys((str(wish.tier) for wish in extents_of), 0)
            for wish in (wish for wish in task.wishes if wish in extents_of):
                tier, need = str(wish.tier), extents_of[wish] * size
                if tier not in self.free:
                    return refusals.no_tier(task, wish, list(self.free), slow=tier in unmeasured)
                missing = need - max(0, self.free[tier]) // size * size
                if missing > 0:
                    return refusals.no_room(task, wish, missing)
                self.free[tier] -= need
                mine[tier] += need
        return None

    def shared(self, task: TaskDemand) -> Homes | None:
        """Homes of equal weights that are as this task may have them, too; the latest of them."""
        wished = task.wished_homes.items()
        for homes in reversed(self.stored[_content(task)]) if task.weights_digest else ():
            if set(homes) <= set(task.tiers) and all(homes[e] == wish.tier for e, wish in wished):
                return homes
        return None

    def share(self, index: int, task: TaskDemand) -> Homes | None:
        """The same; what wishes took for the task is free again then."""
        homes = self.shared(task)
        for name, size_bytes in self.wished.get(index, {}).items() if homes is not None else ():
            self.free[name] += size_bytes
        return homes


def _in_order(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, before: _Room
) -> tuple[Homes, ...] | Infeasible:
    room = before.copy()
    placed = []
    for index, task in enumerate(tasks):
        homes = room.fixed[index] or room.share(index, task)
        if homes is None:
            known = [name for name in task.tiers if name in room.free]
            if not known and task.layout.extent_count:
                return refusals.unknown(task, device.tiers, device.unmeasured)
            filled = _fill(task, known, room.free)
            if isinstance(filled, Infeasible):
                return filled
            homes = filled
            room.stored[_content(task)].append(homes)
        placed.append(homes)
    return tuple(placed)


def _fill(task: TaskDemand, known: Sequence[str], free: dict[str, int]) -> Homes | Infeasible:
    """Take from what is `free` for what no wish has taken for already."""
    size = task.layout.extent_bytes
    homes = {extent: str(wish.tier) for extent, wish in task.wished_homes.items()}
    others = [e for e in range(task.layout.extent_count) if e not in homes]
    for name in known:
        taken = min(len(others), max(0, free[name] // size))
        free[name] -= taken * size
        homes |= dict.fromkeys(others[:taken], name)
        others = others[taken:]
    if others:
        return refusals.full(task, known, len(others) * size)
    return tuple(homes[extent] for extent in range(task.layout.extent_count))


def _by_gain(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, before: _Room, by_speed: Sequence[str]
) -> tuple[Homes, ...] | None:
    """None where there is nothing to choose, or the rule finds no place for all."""
    if not 2 <= len(by_speed) <= MOST_TIERS:
        return None
    room = before.copy()
    placed: list[Homes | None] = []
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, task in enumerate(tasks):
        placed.append(room.fixed[index] or room.share(index, task))
        if placed[index] is None:
            key = _alike(task) if task.weights_digest else (index,)
            groups.setdefault(key, []).append(index)
    chosen = [[tasks[index] for index in group] for group in groups.values()]
    if any(not set(group[0].tiers) & set(by_speed) for group in chosen):
        return None
    share_streamed = _share_streamed(tasks, device)
    still = [_still(group[0]) for group in chosen]
    lots = [
        *(
            _moving(group, device, by_speed, share_streamed, len(kept))
            for group, kept in zip(chosen, still, strict=True)
        ),
        *(
            Lot(len(kept), _numbers(group[0], by_speed), (0.0,) * len(by_speed))
            for group, kept in zip(chosen, still, strict=True)
        ),
    ]
    size = tasks[0].layout.extent_bytes
    shares = share(lots, [room.free[name] // size for name in by_speed], in_turn=device.in_turn)
    if shares is None:
        return None
    of_moving, of_still = shares[: len(chosen)], shares[len(chosen) :]
    for group, kept, moving, resting in zip(
        groups.values(), still, of_moving, of_still, strict=True
    ):
        task = tasks[group[0]]
        homes = {extent: str(wish.tier) for extent, wish in task.wished_homes.items()}
        rest = (name for name, count in zip(by_speed, resting, strict=True) for _ in range(count))
        homes |= dict(zip(kept, rest, strict=True))
        counts = list(zip(by_speed, moving, strict=True))
        for index in group:
            placed[index] = interleave(task.layout.extent_count, homes, counts)
    return tuple(homes for homes in placed if homes is not None)


def _moving(
    group: Sequence[TaskDemand],
    device: DeviceCapacity,
    by_speed: Sequence[str],
    share_streamed: float,
    still: int,
) -> Lot:
    """The extents of tasks with equal weights that may stream, and that no wish has a home for."""
    first, margins = group[0], device.margins
    size, layout = first.layout.extent_bytes, first.layout
    passes = first.release_calls / max(1, layout.arena_count)
    streamed = 1.0 if first.policy in {SwapPolicy.STREAM, SwapPolicy.SWAP} else share_streamed
    links = [device.tiers[name].link.slowed(margins.bandwidth) for name in by_speed]
    again_s = min(link.copy_s(size) for link in links) if device.in_turn else 0.0
    due = [task for task in group if task.criticality is not Criticality.BEST_EFFORT]
    return Lot(
        extents=layout.extent_count - len(first.wished_homes) - still,
        tiers=_numbers(first, by_speed),
        copy_s=tuple(
            (link.copy_s(size) + (again_s if link.staged else 0.0)) * passes * streamed
            for link in links
        ),
        compute_s=passes * min(sum(t.compute_s) for t in group) * margins.compute,
        limit_s=min((t.deadline_s - t.jitter_s * margins.compute for t in due), default=math.inf),
        weight=sum(1 / task.period_s for task in group),
    )


def _numbers(task: TaskDemand, by_speed: Sequence[str]) -> tuple[int, ...]:
    return tuple(by_speed.index(name) for name in task.tiers if name in by_speed)


def _still(task: TaskDemand) -> list[int]:
    """Extents that never stream, and that no wish has a home for."""
    layout = task.layout
    kept = layout.pinned_extents | task.kept
    if task.policy is SwapPolicy.RESIDENT:
        kept = frozenset(range(layout.extent_count))
    return sorted(kept - set(task.wished_homes))


def _share_streamed(tasks: Sequence[TaskDemand], device: DeviceCapacity) -> float:
    """The share of their extents that Auto tasks stream where memory is spread evenly."""
    size = tasks[0].layout.extent_bytes
    room = device.fast_bytes - workspace_bytes(tasks, overlay=device.workspaces_overlay)
    extents, wanted = room // size, 0
    for task in tasks:
        count = task.layout.extent_count
        if task.held is not None:
            extents -= len(task.held.resident_extents)
        elif task.policy is SwapPolicy.RESIDENT:
            extents -= count
        elif task.policy is SwapPolicy.AUTO:
            wanted += count
    return min(1.0, max(_LEAST_STREAMED, 1 - extents / wanted)) if wanted else 1.0


def _by_speed(tasks: Sequence[TaskDemand], device: DeviceCapacity) -> list[str]:
    """The tiers, the one first from which an extent takes least."""
    size = tasks[0].layout.extent_bytes if tasks else 1
    return sorted(device.tiers, key=lambda name: device.tiers[name].link.copy_s(size))


def runs(homes: Sequence[str]) -> tuple[HomeRun, ...]:
    """The same, run by run."""
    return tuple(HomeRun(tier, len(list(run))) for tier, run in groupby(homes))


def _content(task: TaskDemand) -> _Content:
    return (task.domain, task.weights_digest, task.layout.extent_sizes)


def _alike(task: TaskDemand) -> tuple[object, ...]:
    """Equal for tasks that will share a copy of equal weights."""
    wished = tuple((wish.tier, wish.homed) for wish in task.wishes)
    return (_content(task), wished, tuple(task.tiers))
