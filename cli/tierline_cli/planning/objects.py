"""Which object of a task lies where, and why."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from tierline_api.schema.quantities import size_for_people
from tierline_operator.planning.answer import HomesBy, TaskPlan
from tierline_operator.planning.request import TaskDemand
from tierline_operator.planning.wishes import Wish

_CHOSEN: Final = {
    HomesBy.HELD: "where its running pod has it",
    HomesBy.ORDER: "the first of its tiers with room",
    HomesBy.GAIN: "scarce tiers go first to what deadlines need, then to whom they gain most",
}


@dataclass(frozen=True)
class Lies:
    """An object of a task's plan, or all that no object names; sizes in bytes, of whole extents."""

    task: str
    object: str | None
    """None: the rest."""
    homes: dict[str, int]
    """By tier."""
    resident_bytes: int
    streamed_bytes: int
    home_wished: bool
    homes_by: HomesBy
    """The rule that decided about the homes, unless that is a wish."""
    policy_wished: bool


def objects_of(demand: TaskDemand, plan: TaskPlan) -> Iterator[Lies]:
    """Its objects in the order in which it names them, then the rest, if there is any."""
    left = set(range(plan.extent_count))
    for wish in demand.wishes:
        own = wish.extents | wish.homed
        left -= own
        yield _lies(demand, plan, own, wish)
    if left:
        yield _lies(demand, plan, left, None)


def _lies(demand: TaskDemand, plan: TaskPlan, own: Collection[int], wish: Wish | None) -> Lies:
    sizes, resident = demand.layout.extent_sizes, frozenset(plan.resident_extents)
    home = [run.tier for run in plan.homes for _ in range(run.extents)]
    homes: dict[str, int] = {}
    for extent in sorted(own):
        homes[home[extent]] = homes.get(home[extent], 0) + sizes[extent]
    kept = sum(sizes[extent] for extent in own if extent in resident)
    return Lies(
        task=plan.name,
        object=None if wish is None else wish.name,
        homes=homes,
        resident_bytes=kept,
        streamed_bytes=sum(homes.values()) - kept,
        home_wished=wish is not None and wish.tier is not None,
        homes_by=plan.homes_by,
        policy_wished=wish is not None and wish.policy is not None,
    )


def as_json(demand: TaskDemand, plan: TaskPlan) -> list[dict[str, Any]]:
    """The same for programs."""
    return [asdict(one) for one in objects_of(demand, plan)]


def sentences(demand: TaskDemand, plan: TaskPlan) -> Iterator[str]:
    """The same for people; nothing of a task without objects and with one tier."""
    for one in objects_of(demand, plan) if demand.wishes or len(demand.tiers) > 1 else ():
        yield _sentence(one, demand)


def _sentence(one: Lies, demand: TaskDemand) -> str:
    homes = [f"{size_for_people(size)} in {tier}" for tier, size in one.homes.items()]
    tiers = " and ".join(homes)
    chosen = _CHOSEN[one.homes_by] if len(demand.tiers) > 1 else "its only tier"
    home = "as it wishes" if one.home_wished else chosen
    if not one.streamed_bytes:
        where = "all of it resident"
    elif not one.resident_bytes:
        where = "all of it streamed in each job"
    else:
        where = f"{size_for_people(one.resident_bytes)} of it resident and the rest streamed"
    why = "as it wishes" if one.policy_wished else f"by the plan (policy {demand.policy.value})"
    return f"{_name(one, demand)}: {tiers} ({home}), {where} ({why})"


def _name(one: Lies, demand: TaskDemand) -> str:
    rest = "the rest" if demand.wishes else "its weights"
    return f"{one.task}, {rest if one.object is None else repr(one.object)}"
