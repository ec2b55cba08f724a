"""How much memory a task may use, and where its bytes go that are not in fast memory."""

import re
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from tierline_api.objects.plan import Plan, Tier
from tierline_api.schema.base import ApiModel, Check, Rule
from tierline_api.schema.checks import at_most
from tierline_api.schema.fields import Bytes, PositiveBytes, differ


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
    """How an object uses fast memory."""

    RESIDENT = "Resident"
    STREAM = "Stream"


class Memory(ApiModel):
    """How much memory the task may use."""

    checks: ClassVar[tuple[Check, ...]] = (
        at_most("reserved_bytes", "budget_bytes", "write a budget of at least the reserved memory"),
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
    """Size of the weights: a budget that cannot hold them is refused before they are measured."""
    workspace_bytes: Annotated[
        Bytes | None, Field(validation_alias="workspace", serialization_alias="workspace")
    ] = None
    """Fast memory for everything that is not weights; measured by profiling if absent."""


_ORDINALS: Final = re.compile(r"#([0-9]{1,9})(?:-([0-9]{1,9})?)?")
OBJECT_PATTERN: Final = r"^(#[0-9]{1,9}(-([0-9]{1,9})?)?|[^#].*)$"


class SwapObject(ApiModel):
    """A wish about layers, or about allocations of a program that is swapped whole."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.policy) || has(self.tier)", "an object needs a policy or a tier", ".policy"),
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=OBJECT_PATTERN)]
    """Layers of the profile by their names, with * for any characters and ? for one: a module's
    name.* is the module, too. With policy Swap allocations by their numbers, as the program makes
    them: #0, #3-7, or #3- for the rest."""
    policy: ObjectPolicy | None = None
    """Resident: stays in fast memory; Stream: never does, it is streamed, or swapped."""
    tier: Tier | None = None
    """The tier that holds these layers, one of tiers."""

    @model_validator(mode="after")
    def _wishes(self) -> Self:
        if self.policy is None and self.tier is None:
            raise ValueError(
                f"the object {self.name!r} wishes nothing; write a policy, a tier or both"
            )
        return self

    def matches(self, layer: str) -> bool:
        """Whether a layer of that name is meant."""
        names = (self.name, self.name.removesuffix(".*"))
        return any(_glob(name).fullmatch(layer) is not None for name in names)


@cache
def _glob(name: str) -> re.Pattern[str]:
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(sign, re.escape(sign)) for sign in name), re.DOTALL)


class Swap(ApiModel):
    """Where bytes go that are not in fast memory."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.tiers.all(t, self.tiers.exists_one(u, u == t))",
            "tiers must not repeat a tier",
            ".tiers",
        ),
        Rule(
            differ("self.objects", "name"),
            "objects must not repeat a name",
            ".objects",
        ),
        Rule(
            "self.objects.all(o, o.name.startsWith('#') == (self.policy == 'Swap'))",
            "objects are allocations, such as #0, with policy Swap, and else names of layers",
            ".objects",
        ),
        Rule(
            "self.policy != 'Swap' || self.objects.all(o, has(o.policy) && !has(o.tier))",
            "objects of a program that is swapped whole have a policy and no tier",
            ".objects",
        ),
        Rule(
            "self.objects.all(o, !has(o.tier) || o.tier in self.tiers)",
            "the tier of an object must be one of tiers",
            ".objects",
        ),
        Rule(
            "self.policy != 'Resident' || "
            "self.objects.all(o, !has(o.policy) || o.policy == 'Resident')",
            "with policy Resident no object may stream",
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
    """Wishes about layers, which hold or are refused; with policy Swap about allocations."""

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
    def _objects_can_be(
        cls, objects: tuple[SwapObject, ...], info: ValidationInfo[Any]
    ) -> tuple[SwapObject, ...]:
        if "policy" not in info.data or "tiers" not in info.data:
            return objects  # what is wrong with these is said already
        policy: SwapPolicy = info.data["policy"]
        tiers: tuple[Tier, ...] = info.data["tiers"]
        for one in objects:
            wrong = _wrong_with(one, policy)
            if not wrong and one.tier is not None and one.tier not in tiers:
                wrong = (
                    f"has the tier {one.tier.value}, which is not one of tiers; add it there, or "
                    f"write {' or '.join(tier.value for tier in tiers)}"
                )
            if wrong:
                raise ValueError(f"the object {one.name!r} {wrong}")
        return objects


def _wrong_with(one: SwapObject, policy: SwapPolicy) -> str:
    """What an object cannot be with that policy of its task; "" if it can."""
    whole = policy is SwapPolicy.SWAP
    if whole != one.name.startswith("#"):
        return (
            "names layers, and policy Swap swaps allocations; write numbers, such as #0, #3-7 or "
            "#3-, or another policy"
            if whole
            else "names allocations, which are swapped with policy Swap; write that policy, or "
            "names of layers"
        )
    if whole and (one.policy is None or one.tier is not None):
        return "is swapped whole, with a policy and no tier; write its policy, and leave tier out"
    if policy is SwapPolicy.RESIDENT and one.policy is ObjectPolicy.STREAM:
        return "is to stream, and policy Resident keeps all weights; write policy Auto or Stream"
    return ""


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
