"""MemTask: a periodic inference task with its deadline, or one that trains, and its memory.

Field by field this is the user's interface; the cluster's CRD is generated from it. What a MemTask
asks is judged by admission, not here: here it only has to make sense.
"""

from math import ceil
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_serializer, model_validator

from tierline_api.devices.device import DeviceKind, DeviceSelector
from tierline_api.objects.memtask_status import MemTaskStatus
from tierline_api.objects.realtime import Criticality, Realtime
from tierline_api.objects.swap import Memory, OverBudget, Swap
from tierline_api.objects.template import PodTemplate
from tierline_api.schema.base import API_VERSION, ApiModel, Rule, is_stored
from tierline_api.schema.fields import PositiveCount, Reference, as_bytes, guarded, is_bytes
from tierline_api.schema.metadata import LABEL_NAME, ObjectMeta
from tierline_api.schema.quantities import exact_bytes, format_quantity

TRAINS_IN_GAPS: Final = "the criticality of a task with training is BestEffort; write that"
_LONGEST_S: Final = 86_400.0
_SPINS: Final = "4000"
"""Looks before a thread sleeps: about 0.2 ms."""


def _no_deadline() -> Realtime:
    """Of a task that trains: among those without a deadline it comes last."""
    return Realtime(period_s=_LONGEST_S, deadline_s=_LONGEST_S, criticality=Criticality.BEST_EFFORT)


class Training(ApiModel):
    """The task trains: its program makes steps, in what the jobs of others leave."""

    steps: Annotated[PositiveCount, Field(le=10**12)] | None = None
    """After so many steps the task is complete: its program ends, by SystemExit from the step. The
    program decides if absent."""

    def environment(self) -> dict[str, str]:
        """What its program needs to know.

        Its threads sleep where it waits: those of OpenMP else look out for work for milliseconds,
        on the processors of the job that it has made room for. To sleep at once
        (OMP_WAIT_POLICY=passive) makes a step a tenth longer, or more: it is hundreds of pieces of
        work for them.
        """
        most = {} if self.steps is None else {"TIERLINE_TRAINING_STEPS": str(self.steps)}
        return {"TIERLINE_TRAINING": "1", "GOMP_SPINCOUNT": _SPINS, **most}


def _amount(field: str) -> str:
    path = f"self.memory.{field}"
    return f"(has({path}) ? {as_bytes(path)} : quantity('0'))"


def _malformed(field: str) -> str:
    path = f"self.memory.{field}"
    return f"(has({path}) && !({is_bytes(path)}))"


class MemTaskSpec(ApiModel):
    """What the task needs."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.realtime) || has(self.training)",
            "realtime is missing; write it, or training: {} for a task that trains",
            ".realtime",
        ),
        Rule(
            "!has(self.training) || !has(self.realtime) || self.realtime.criticality == "
            "'BestEffort'",
            TRAINS_IN_GAPS,
            ".realtime.criticality",
        ),
        Rule(
            "!has(self.training) || self.device.kind == 'cpu'",
            "a task with training runs on a cpu device; write cpu",
            ".device.kind",
        ),
        Rule(
            "self.swap.onBudgetExceeded == 'Spill' || "
            "!(has(self.memory.weights) || has(self.memory.workspace)) || "
            f"{_malformed('weights')} || {_malformed('workspace')} || "
            + guarded(
                f"{_amount('weights')}.add({_amount('workspace')})"
                f".compareTo({as_bytes('self.memory.budget')}) <= 0",
                sizes=("self.memory.budget",),
            ),
            "memory.weights and memory.workspace must fit in memory.budget unless "
            "swap.onBudgetExceeded is Spill",
            ".memory.budget",
        ),
    )

    realtime: Annotated[Realtime, Field(default_factory=_no_deadline)]
    """When jobs are released and when they must end; may be left out with `training`."""
    training: Training | None = None
    """The task trains: steps take the place of jobs, and have no deadline."""
    memory: Memory
    """How much memory the task may use."""
    swap: Swap = Swap()
    """Where bytes go that are not in fast memory."""
    device: DeviceSelector
    """Which devices the task may run on."""
    profile: Reference | None = None
    """Name of the MemProfile in the same namespace; the task is profiled first if absent."""
    replicas: Annotated[
        int, Field(strict=True, ge=0, le=1000, json_schema_extra={"format": "int32"})
    ] = 1
    """How many pods the template makes, each admitted by itself."""
    template: PodTemplate | None = None
    """A pod template; its container with a command is the task's program."""

    @model_validator(mode="after")
    def _has_releases_or_steps(self) -> Self:
        if self.training is None:
            if "realtime" not in self.model_fields_set:
                raise ValueError(
                    "realtime is missing; write it, or training: {} for a task that trains"
                )
            return self
        if self.realtime.criticality is not Criticality.BEST_EFFORT:
            raise ValueError(TRAINS_IN_GAPS)
        if self.device.kind is not DeviceKind.CPU:
            raise ValueError("a task with training runs on a cpu device; write cpu")
        return self

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        parts = (self.memory.weights_bytes or 0, self.memory.workspace_bytes or 0)
        needed_bytes = sum(map(exact_bytes, parts))
        spills = self.swap.on_budget_exceeded == OverBudget.SPILL
        if needed_bytes > exact_bytes(self.memory.budget_bytes) and not spills:
            raise ValueError(
                f"memory.budget {format_quantity(self.memory.budget_bytes)} is less than"
                " weights and workspace together; write a budget of at least"
                f" {format_quantity(ceil(needed_bytes))}, or swap.onBudgetExceeded Spill"
            )
        return self

    @field_serializer("template")
    def _template_as_written(self, template: PodTemplate | None) -> dict[str, Any] | None:
        return template.to_api() if template else None


class MemTask(ApiModel):
    """A periodic inference task with a deadline, whose weights need not fit in fast memory, or one
    that trains in what such tasks leave."""

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
