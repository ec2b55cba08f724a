"""Why weights have no home, in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.request import TaskDemand, TierCapacity
from tierline_operator.planning.wishes import Wish


def gone(task: TaskDemand, tiers: Sequence[str]) -> Infeasible:
    """Bytes that a running pod holds lie where there is nothing any more."""
    where = " and ".join(tiers)
    return Infeasible(
        kind="tier",
        reason="TierUnknown",
        sentence=(
            f"the weights of {task.name} live in {where}, which this device does not have any "
            "more; start its pod again"
        ),
        task=task.name,
    )


def unknown(
    task: TaskDemand, tiers: Mapping[str, TierCapacity], unmeasured: Collection[str]
) -> Infeasible:
    """None of the tiers that a task may use is there."""
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


def no_tier(task: TaskDemand, wish: Wish, tiers: Sequence[str], *, slow: bool) -> Infeasible:
    """A wish names a tier that is not there, or of whose link nothing is known (`slow`)."""
    why = (
        "whose link to this device was not measured; have its agent measure it or name another one"
        if slow
        else "which this device does not have; "
        + (f"name one of its tiers instead: {', '.join(tiers)}" if tiers else "leave the tier out")
    )
    return Infeasible(
        kind="tier",
        reason="TierUnknown",
        sentence=f"the object {wish.name!r} of {task.name} is {wish.words}: {wish.tier}, {why}",
        task=task.name,
        missing_bytes=len(wish.homed) * task.layout.extent_bytes,
        wish=(task.name, wish.name),
    )


def no_room(task: TaskDemand, wish: Wish, missing: int) -> Infeasible:
    """A wish asks for more of a tier than is left, by so many bytes."""
    return Infeasible(
        kind="tier",
        reason="TierFull",
        sentence=(
            f"the object {wish.name!r} of {task.name} is {wish.words}, where "
            f"{missing / 2**20:.1f} MiB are missing; make {wish.tier} larger by that much or let "
            "the object use another tier"
        ),
        task=task.name,
        missing_bytes=missing,
        wish=(task.name, wish.name),
    )


def full(task: TaskDemand, known: Sequence[str], missing: int) -> Infeasible:
    """The weights of a task have no place, by so many bytes."""
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
