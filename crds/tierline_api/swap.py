"""How much memory a task may use, and where its bytes go that are not in fast memory."""

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from .base import ApiModel, Rule
from .fields import Bytes, PositiveBytes, as_bytes, guarded
from .plan import Plan, Tier
from .quantities import format_quantity


class SwapPolicy(StrEnum):
    """How weights use fast memory."""

    AUTO = "Auto"
    RESIDENT = "Resident"
    STREAM = "Stream"
    SWAP = "Swap"


class WorkspacePolicy(StrEnum):
    """What becomes of the workspace between jobs."""

    DISCARD = "Discard"
    PRESERVE = "Preserve"


class OverBudget(StrEnum):
    """What happens to an allocation beyond the budget."""

    FAIL = "Fail"
    SPILL = "Spill"


class ObjectPolicy(StrEnum):
    """How allocations of a program that is swapped whole use fast memory."""

    RESIDENT = "Resident"
    STREAM = "Stream"


class Memory(ApiModel):
    """How much memory the task may use."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            guarded(
                f"{as_bytes('self.budget')}.compareTo({as_bytes('self.reserved')}) >= 0",
                sizes=("self.budget", "self.reserved"),
            ),
            "reserved must not exceed budget",
            ".reserved",
        ),
    )

    budget_bytes: Annotated[
        PositiveBytes, Field(validation_alias="budget", serialization_alias="budget")
    ]
    """What the task may allocate on the device in all: weights and workspace, such as 2Gi."""
    reserved_bytes: Annotated[
        Bytes, Field(validation_alias="reserved", serialization_alias="reserved")
    ] = 0
    """Fast memory that the task keeps whatever the plan needs, at most the budget."""
    weights_bytes: Annotated[
        PositiveBytes | None, Field(validation_alias="weights", serialization_alias="weights")
    ] = None
    """Size of the weights; measured by profiling if absent."""
    workspace_bytes: Annotated[
        Bytes | None, Field(validation_alias="workspace", serialization_alias="workspace")
    ] = None
    """Fast memory for everything that is not weights; measured by profiling if absent."""

    @field_validator("reserved_bytes")
    @classmethod
    def _within_budget(cls, reserved_bytes: int, info: ValidationInfo[Any]) -> int:
        budget_bytes = info.data.get("budget_bytes", reserved_bytes)
        if reserved_bytes > budget_bytes:
            raise ValueError(
                f"the reserved {format_quantity(reserved_bytes)} exceed the budget"
                f" {format_quantity(budget_bytes)}; write a budget of at least the reserved memory"
            )
        return reserved_bytes


ORDINALS_PATTERN: Final = r"^#[0-9]{1,9}(-([0-9]{1,9})?)?$"
_ORDINALS: Final = re.compile(r"#([0-9]{1,9})(?:-([0-9]{1,9})?)?")


class SwapObject(ApiModel):
    """A wish about allocations of a program that is swapped whole."""

    name: Annotated[str, StringConstraints(min_length=2, max_length=20, pattern=ORDINALS_PATTERN)]
    """Allocations by their numbers, as the program makes them: #0, #3-7, or #3- for the rest."""
    policy: ObjectPolicy
    """Resident: stays in fast memory; Stream: is swapped."""


class Swap(ApiModel):
    """Where bytes go that are not in fast memory."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.tiers.all(t, self.tiers.exists_one(u, u == t))",
            "tiers must not repeat a tier",
            ".tiers",
        ),
        Rule(
            "self.objects.all(o, self.objects.exists_one(p, p.name == o.name))",
            "objects must not repeat a name",
            ".objects",
        ),
        Rule(
            "self.objects.size() == 0 || self.policy == 'Swap'",
            "objects are allocations of a program that is swapped whole: write policy Swap, or "
            "leave them out",
            ".objects",
        ),
    )

    policy: SwapPolicy = SwapPolicy.AUTO
    """Auto: the plan decides; Resident: never leaves; Stream: by layer; Swap: as a whole."""
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=3)] = (Tier.DRAM,)
    """Tiers that may hold the weights, the preferred one first."""
    workspace: WorkspacePolicy = WorkspacePolicy.DISCARD
    """Discard: the workspace is dead between jobs; Preserve: it is written back and restored."""
    on_budget_exceeded: OverBudget = OverBudget.FAIL
    """Fail: the allocation fails as on a full device; Spill: host memory backs it."""
    objects: Annotated[tuple[SwapObject, ...], Field(max_length=64)] = ()
    """Wishes about allocations, with policy Swap."""

    def environment(self, plan: Plan) -> dict[str, str]:
        """What a program's library must know of its memory under this policy.

        A program without layers, of which the plan knows no weights, is swapped whole: all of its
        allocations, only those that an object names with Stream, or all but those with Resident.
        """
        if self.policy is not SwapPolicy.SWAP or plan.extent_count or not plan.workspace_bytes:
            return {}
        words = {"TIERLINE_SWAP": str(plan.workspace_bytes)}
        objects = _swapped_ordinals(self.objects)
        return words if objects is None else {**words, "TIERLINE_SWAP_OBJECTS": objects}

    @field_validator("tiers")
    @classmethod
    def _tiers_differ(cls, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        for tier in tiers:
            if tiers.count(tier) > 1:
                raise ValueError(f"the tier {tier.value} is named twice; name each tier once")
        return tiers

    @field_validator("objects")
    @classmethod
    def _objects_differ(cls, objects: tuple[SwapObject, ...]) -> tuple[SwapObject, ...]:
        names = [o.name for o in objects]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the object {name!r} is named twice; name each object once")
        return objects

    @field_validator("objects")
    @classmethod
    def _objects_are_swapped(
        cls, objects: tuple[SwapObject, ...], info: ValidationInfo[Any]
    ) -> tuple[SwapObject, ...]:
        if objects and info.data.get("policy", SwapPolicy.SWAP) is not SwapPolicy.SWAP:
            raise ValueError(
                "they are allocations of a program that is swapped whole; write policy Swap, or "
                "leave them out"
            )
        return objects


_LAST_ORDINAL: Final = 10**9


def _swapped_ordinals(objects: tuple[SwapObject, ...]) -> str | None:
    """Return ranges of allocations, such as 0-3,7,12-; None if no object names any."""
    wanted: list[tuple[int, int]] = []
    kept: list[tuple[int, int]] = []
    for one in objects:
        match = _ORDINALS.fullmatch(one.name)
        if match is not None:
            first = int(match[1])
            last = int(match[2]) if match[2] else _LAST_ORDINAL if "-" in one.name else first
            (kept if one.policy is ObjectPolicy.RESIDENT else wanted).append((first, last))
    if not wanted and not kept:
        return None
    ranges = []
    for begin, end in sorted(wanted or [(0, _LAST_ORDINAL)]):
        first = begin
        for low, high in sorted(kept):
            if low <= end and high >= first:
                if low > first:
                    ranges.append((first, low - 1))
                first = high + 1
        if first <= end:
            ranges.append((first, end))
    return ",".join(_range(first, last) for first, last in ranges)


def _range(first: int, last: int) -> str:
    return (
        f"{first}-" if last == _LAST_ORDINAL else str(first) if first == last else f"{first}-{last}"
    )
