"""How much memory a task may use, and where its bytes go that are not in fast memory."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from .base import ApiModel, Rule
from .fields import Bytes, PositiveBytes, as_bytes, guarded
from .plan import Tier
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
    """How one named object uses fast memory."""

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


class SwapObject(ApiModel):
    """A wish about single weights."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of a parameter or module, such as encoder.layer.0; a * matches any characters."""
    policy: ObjectPolicy
    """Resident: stays in fast memory; Stream: may be streamed."""
    tier: Tier | None = None
    """The tier that holds it; any of the task's tiers if absent."""


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
    )

    policy: SwapPolicy = SwapPolicy.AUTO
    """Auto: the plan decides; Resident: never leaves; Stream: by layer; Swap: as a whole."""
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=4)] = (Tier.DRAM,)
    """Tiers that may hold the weights, the preferred one first."""
    workspace: WorkspacePolicy = WorkspacePolicy.DISCARD
    """Discard: the workspace is dead between jobs; Preserve: it is written back and restored."""
    on_budget_exceeded: OverBudget = OverBudget.FAIL
    """Fail: the allocation fails as on a full device; Spill: host memory backs it."""
    objects: Annotated[tuple[SwapObject, ...], Field(max_length=64)] = ()
    """Wishes about single weights."""

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
