"""A registration: a task with the plan that admission made, as the administrator sends it.

The admin socket and the state file carry it as JSON. Each field is checked here, and together they
are in the registry: what is read here may still not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tierline_agent.config import describe
from tierline_agent.errors import ConfigError
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Scheduling, Terms
from tierline_api.objects.plan import Plan

_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"

Nanoseconds = Annotated[int, Field(ge=0, le=1 << 62)]


class Preemption(BaseModel):
    """How a task's jobs give the device away in the middle, as its device's plan has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    scheduling: Literal["LayerPreemptive", "RingKeeping"]
    """The fate of rings; the same for all tasks of a device that have such terms."""
    layer_ns: Annotated[Nanoseconds, Field(gt=0)]
    """Within this time after it was asked a job must stand at a gate (policy/preemption.py)."""
    penalty_ns: Nanoseconds = 0
    """Time that one preemption makes a job do again, at worst."""
    parked_bytes: Nanoseconds = 0
    """Fast memory for what a preempted job has computed so far, bytes."""

    @property
    def terms(self) -> Terms:
        """The same for the policy."""
        scheduling = Scheduling(self.scheduling)
        return Terms(scheduling, self.layer_ns, self.parked_bytes)


class Registration(BaseModel):
    """The administrator's words on a task. Times in nanoseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=_NAME_PATTERN)]
    domain: Annotated[str, Field(min_length=1, max_length=253)]
    period_ns: Annotated[Nanoseconds, Field(gt=0)]
    deadline_ns: Annotated[Nanoseconds, Field(gt=0)]
    criticality: Literal["Hard", "Soft", "BestEffort"] = "Hard"
    record_outputs: bool = False
    phase_ns: Nanoseconds = 0
    memtask: Annotated[str, Field(pattern=_NAME_PATTERN)] | None = None
    """The MemTask it is a pod of, as people know it; on Kubernetes `name` is a claim's uid."""
    device: Annotated[str, Field(min_length=1, max_length=96)] | None = None
    """The device that the plan is for: its name, number or uuid; needed where there are several."""
    training: bool = False
    """It trains. A step is a row of warm-up jobs, as it gives the device back at any gate where
    others wait for it, and one more job, which computes nothing: that counts. Between them its
    workspace stays, and what it keeps from step to step is a part of that."""
    preemption: Preemption | None = None
    """None: its jobs keep the device to their end."""
    job_limit_ns: Annotated[Nanoseconds, Field(gt=0)] | None = None
    """A program whose job has the device for longer is killed; None: it is only counted."""
    plan: Plan

    @model_validator(mode="after")
    def _check_times(self) -> Registration:
        if self.deadline_ns > self.period_ns:
            raise ValueError(
                f"deadline_ns {self.deadline_ns} is later than period_ns {self.period_ns}"
            )
        if self.training and self.rank is not Rank.BEST_EFFORT:
            raise ValueError("a task that trains has the criticality BestEffort, and no other")
        return self

    @property
    def rank(self) -> Rank:
        """How its jobs stand among others."""
        return Rank.BEST_EFFORT if self.criticality == "BestEffort" else Rank.GUARANTEED

    def as_json(self) -> dict[str, Any]:
        """The values that `parse_registration` reads."""
        values = self.model_dump(exclude={"plan"})
        return {**values, "plan": self.plan.to_api()}


def parse_registration(values: Mapping[str, Any]) -> Registration:
    """Read a registration as the admin socket and the state file carry it.

    Raises:
        ConfigError: a field is missing, unknown, of the wrong type or contradictory.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"cannot register {values!r}: it is no registration")
    name = values.get("name")
    try:
        plan = Plan.from_api(values.get("plan"))
    except ValidationError as error:
        raise ConfigError(f"cannot register {name!r}: plan: {describe(Plan, error)}") from error
    try:
        return Registration.model_validate({**values, "plan": plan})
    except ValidationError as error:
        raise ConfigError(f"cannot register {name!r}: {describe(Registration, error)}") from error
