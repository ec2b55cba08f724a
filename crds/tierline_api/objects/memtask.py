"""MemTask: one periodic inference task, its deadline, and the memory it may use.

Field by field this is the user's interface; the cluster's CRD is generated from it. What a MemTask
asks is judged by admission, not here: here it only has to make sense.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_serializer, model_validator

from tierline_api.devices.device import DeviceSelector
from tierline_api.objects.memtask_status import MemTaskStatus
from tierline_api.objects.realtime import Realtime
from tierline_api.objects.swap import Memory, OverBudget, Swap
from tierline_api.objects.template import PodTemplate
from tierline_api.schema.base import API_VERSION, ApiModel, Rule
from tierline_api.schema.fields import Subdomain, as_bytes, guarded, is_bytes
from tierline_api.schema.metadata import LABEL_NAME, ObjectMeta
from tierline_api.schema.quantities import format_quantity


class MemTaskSpec(ApiModel):
    """What the task needs."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.swap.onBudgetExceeded == 'Spill' || !has(self.memory.weights) || "
            + guarded(
                f"{as_bytes('self.memory.weights')}.add(has(self.memory.workspace) ? "
                f"{as_bytes('self.memory.workspace')} : quantity('0'))"
                f".compareTo({as_bytes('self.memory.budget')}) <= 0",
                sizes=("self.memory.weights", "self.memory.budget"),
            )
            + f" || (has(self.memory.workspace) && !({is_bytes('self.memory.workspace')}))",
            "memory.weights and memory.workspace must fit in memory.budget unless "
            "swap.onBudgetExceeded is Spill",
            ".memory.budget",
        ),
    )

    realtime: Realtime
    """When jobs are released and when they must end."""
    memory: Memory
    """How much memory the task may use."""
    swap: Swap = Swap()
    """Where bytes go that are not in fast memory."""
    device: DeviceSelector
    """Which devices the task may run on."""
    profile: Subdomain | None = None
    """Name of the MemProfile in the same namespace; the task is profiled first if absent."""
    replicas: Annotated[
        int, Field(strict=True, ge=0, le=1000, json_schema_extra={"format": "int32"})
    ] = 1
    """How many pods the template makes, each admitted by itself."""
    template: PodTemplate | None = None
    """A pod template; its container with a command is the task's program."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        needed_bytes = (self.memory.weights_bytes or 0) + (self.memory.workspace_bytes or 0)
        spills = self.swap.on_budget_exceeded == OverBudget.SPILL
        if self.memory.weights_bytes and needed_bytes > self.memory.budget_bytes and not spills:
            raise ValueError(
                f"memory.budget {format_quantity(self.memory.budget_bytes)} is less than"
                " weights and workspace together; write a budget of at least"
                f" {format_quantity(needed_bytes)}, or swap.onBudgetExceeded Spill"
            )
        return self

    @field_serializer("template")
    def _template_as_written(self, template: PodTemplate | None) -> dict[str, Any] | None:
        return template.to_api() if template else None


class MemTask(ApiModel):
    """A periodic inference task with a deadline, whose weights need not fit in fast memory."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (LABEL_NAME,)

    api_version: Literal["tierline.io/v1alpha1"] = API_VERSION
    """tierline.io/v1alpha1."""
    kind: Literal["MemTask"] = "MemTask"
    """MemTask."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: MemTaskSpec
    """What the task needs."""
    status: MemTaskStatus | None = None
    """What has become of it; written by the operator."""

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.metadata.name

    @property
    def domain(self) -> str:
        """Its trust domain: the namespace."""
        return self.metadata.namespace
