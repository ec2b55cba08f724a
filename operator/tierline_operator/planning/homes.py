"""Which lower tier holds each extent of each task.

Every extent has a home below fast memory, resident or not, so that evicting it costs nothing. What
running pods hold stays where it is. The other tasks are served in the order given; each fills the
first of its tiers that has room, then the next. Equal weights of one trust domain are stored once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from tierline_operator.planning.answer import HomeRun, Infeasible
from tierline_operator.planning.request import TaskDemand, TierCapacity

_Content = tuple[str, str, tuple[int, ...]]


def place_homes(
    tasks: Sequence[TaskDemand],
    tiers: Mapping[str, TierCapacity],
    unmeasured: Collection[str] = (),
) -> list[tuple[str, ...]] | Infeasible:
    """The tier of every extent of every task, or which task has no place and by how many bytes.

    The device has tiers that are `unmeasured`, too, which are good for nothing yet.
    """
    free = {name: tier.capacity_bytes for name, tier in tiers.items()}
    stored: dict[_Content, tuple[str, ...]] = {}
    for task in tasks:
        if task.held is None:
            continue
        homes_held = task.held.home_of_extent
        if not set(homes_held) <= set(tiers):
            return _gone(task, sorted(set(homes_held) - set(tiers)))
        if not task.weights_digest or stored.get(_content(task)) != homes_held:
            for name in homes_held:
                free[name] -= task.layout.extent_bytes
        stored.setdefault(_content(task), homes_held)
    placed: list[tuple[str, ...]] = []
    for task in tasks:
        if task.held is not None:
            placed.append(task.held.home_of_extent)
            continue
        size = task.layout.extent_bytes
        shared = stored.get(_content(task)) if task.weights_digest else None
        if shared is not None and set(shared) <= set(task.tiers):
            placed.append(shared)
            continue
        known = [name for name in task.tiers if name in free]
        if not known and task.layout.extent_count:
            return _unknown(task, tiers, unmeasured)
        homes: list[str] = []
        for name in known:
            taken = min(task.layout.extent_count - len(homes), max(0, free[name] // size))
            free[name] -= taken * size
            homes += [name] * taken
        missing = task.layout.extent_count - len(homes)
        if missing:
            return _full(task, known, missing * size)
        placed.append(tuple(homes))
        stored[_content(task)] = placed[-1]
    return placed


def runs(homes: Sequence[str]) -> tuple[HomeRun, ...]:
    """The same, run by run."""
    return tuple(HomeRun(tier, len(list(run))) for tier, run in groupby(homes))


def _content(task: TaskDemand) -> _Content:
    return (task.domain, task.weights_digest, task.layout.extent_sizes)


def _gone(task: TaskDemand, tiers: Sequence[str]) -> Infeasible:
    where = " and ".join(tiers)
    return Infeasible(
        kind="tier",
        reason="TierUnknown",
        sentence=(
            f"the weights of {task.name} live in {where}, which this device does not have any "
            "more; start its pod anew"
        ),
        task=task.name,
    )


def _unknown(
    task: TaskDemand, tiers: Mapping[str, TierCapacity], unmeasured: Collection[str]
) -> Infeasible:
    asked = ", ".join(task.tiers) or "none"
    slow = [name for name in task.tiers if name in unmeasured]
    if slow:
        what = f"and the link from {' and '.join(slow)} to this device was not measured; have its "
        what += "agent measure it, or name another tier"
    elif tiers:
        what = f"which this device does not have; name one of its tiers instead: {', '.join(tiers)}"
    else:
        what = "and this device has no tier that can be used; configure one in its agent"
    return Infeasible(
        kind="tier",
        reason="TierUnknown",
        sentence=f"the weights of {task.name} may only live in {asked}, {what}",
        task=task.name,
        missing_bytes=task.layout.extent_count * task.layout.extent_bytes,
    )


def _full(task: TaskDemand, known: Sequence[str], missing: int) -> Infeasible:
    where = " and ".join(known)
    return Infeasible(
        kind="tier",
        reason="TierFull",
        sentence=(
            f"the weights of {task.name} do not fit in {where}: {missing / 2**20:.1f} MiB are "
            f"missing; make {known[-1]} larger by that much or let the task use another tier"
        ),
        task=task.name,
        missing_bytes=missing,
    )
