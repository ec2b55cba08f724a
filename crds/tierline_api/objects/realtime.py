"""When the jobs of a task are released and when they must end."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from tierline_api.schema.base import ApiModel, Rule
from tierline_api.schema.fields import PositiveSeconds, guarded
from tierline_api.schema.quantities import format_duration


class Criticality(StrEnum):
    """How much a missed deadline matters."""

    HARD = "Hard"
    SOFT = "Soft"
    BEST_EFFORT = "BestEffort"


def _not_longer(shorter: str, longer: str) -> Rule:
    compare = f"duration(self.{shorter}) <= duration(self.{longer})"
    checked = guarded(compare, durations=(f"self.{shorter}", f"self.{longer}"))
    return Rule(
        f"!has(self.{shorter}) || !has(self.{longer}) || {checked}",
        f"{shorter} must not be longer than {longer}",
        f".{shorter}",
    )


class Realtime(ApiModel):
    """When jobs are released and when they must end."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        _not_longer("deadline", "period"),
        _not_longer("executionTime", "deadline"),
        _not_longer("executionTime", "period"),
    )

    period_s: PositiveSeconds
    """Time between two releases of a job, such as 50ms."""
    deadline_s: Annotated[
        PositiveSeconds, Field(default_factory=lambda fields: float(fields["period_s"]))
    ]
    """Time from a job's release to the latest end, at most the period, which is the default."""
    criticality: Criticality = Criticality.HARD
    """Hard: guaranteed; Soft: admitted by its mean time; BestEffort: runs in what is left."""
    execution_time_s: PositiveSeconds | None = None
    """The worst compute time of a job, all weights resident; profiling measures it if absent."""
    measuring_limit_s: PositiveSeconds | None = None
    """Allows a task without a profile to be measured together with admitted ones, on a cpu device
    that can spare it so much time at once: a job, the first included, that has the device for
    longer is ended with its program. If absent the task is measured only where nothing else has
    a plan."""

    @field_validator("deadline_s")
    @classmethod
    def _within_period(cls, deadline_s: float, info: ValidationInfo[Any]) -> float:
        period_s = info.data.get("period_s", deadline_s)
        if deadline_s > period_s:
            raise ValueError(
                f"the deadline {format_duration(deadline_s)} is longer than the period"
                f" {format_duration(period_s)}; write a deadline of at most the period"
            )
        return deadline_s

    @field_validator("execution_time_s")
    @classmethod
    def _within_deadline(cls, time_s: float | None, info: ValidationInfo[Any]) -> float | None:
        deadline_s = info.data.get("deadline_s")
        if time_s is not None and deadline_s is not None and time_s > deadline_s:
            raise ValueError(
                f"the execution time {format_duration(time_s)} is longer than the deadline"
                f" {format_duration(deadline_s)}; no job could end in time: write a longer deadline"
            )
        return time_s
