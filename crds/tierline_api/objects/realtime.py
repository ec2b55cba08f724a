"""When the jobs of a task are released and when they must end."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tierline_api.schema.base import ApiModel, Check
from tierline_api.schema.checks import at_least, at_most
from tierline_api.schema.fields import PositiveSeconds

_NONE_IN_TIME: Final = "no job could end in time: write a longer"


class Criticality(StrEnum):
    """How much a missed deadline matters."""

    HARD = "Hard"
    SOFT = "Soft"
    BEST_EFFORT = "BestEffort"


class Realtime(ApiModel):
    """When jobs are released and when they must end."""

    checks: ClassVar[tuple[Check, ...]] = (
        at_most("deadline_s", "period_s", "write a deadline of at most the period"),
        at_most("execution_time_s", "period_s", f"{_NONE_IN_TIME} period"),
        at_most("execution_time_s", "deadline_s", f"{_NONE_IN_TIME} deadline"),
        at_least(
            "measuring_limit_s",
            "execution_time_s",
            "a job that takes longer is ended, so write a limit of at least executionTime",
        ),
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
