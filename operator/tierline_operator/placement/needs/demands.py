"""The demand of a task on a device, or why it has none: its spec and its profile put together.

Building a demand lays out every layer, so demands are kept for as long as spec and profile stay the
same. Pure; raises nothing: a question without sense is an `Unasked` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.conditions import Reason
from tierline_api.objects.memnode import Device
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.realtime import Criticality
from tierline_operator.placement.needs.remeasuring import stretched
from tierline_operator.planning.from_api import (
    QuestionError,
    demand_of,
    measured_elsewhere,
    stated_below_mean,
)
from tierline_operator.planning.request import TaskDemand


@dataclass(frozen=True)
class Unasked:
    """Why nothing can be asked of a device."""

    reason: Reason
    sentence: str


class Alike:
    """One demand of all tasks that are alike but for their names, so that they share its layout.

    It lives for as long as one of their `Demands` holds it, and with it the profile.
    """

    def __init__(self) -> None:
        self._made: WeakValueDictionary[tuple[object, ...], TaskDemand] = WeakValueDictionary()

    def of(self, task: MemTask, profile: MemProfile, extent_bytes: int) -> TaskDemand:
        """Any name; raises QuestionError and ValueError like `planning.from_api.demand_of`."""
        asked = (task.domain, task.spec.realtime, task.spec.memory, task.spec.swap)
        key = (id(profile), extent_bytes, *asked)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = demand_of(task, profile, extent_bytes)
        return made


class Demands:
    """The demands of one task, for one spec and one profile at a time."""

    def __init__(self) -> None:
        self._basis: tuple[int, int] | None = None
        self._held: tuple[MemTaskSpec, MemProfile] | None = None
        self._made: dict[tuple[int, float], TaskDemand | Unasked] = {}
        self._shared: list[TaskDemand] = []

    def of(
        self,
        task: MemTask,
        spec: MemTaskSpec,
        profile: MemProfile,
        device: Device,
        alike: Alike,
        factor: float = 1.0,
    ) -> TaskDemand | Unasked:
        """The task's demand on `device` with that spec; its name is still the task's.

        Its layers are taken to be longer by `factor` (remeasuring.py).
        """
        elsewhere = measured_elsewhere(spec, profile, device)
        if elsewhere is not None:
            return Unasked(Reason.PROFILE_MISSING, elsewhere)
        too_short = stated_below_mean(spec, profile, device)
        if too_short is not None:
            return Unasked(Reason.INVALID_SPEC, too_short)
        basis = (id(spec), id(profile))
        if basis != self._basis:
            # The objects are held so that their identities stay theirs.
            self._basis, self._held, self._made = basis, (spec, profile), {}
            self._shared.clear()
        made = (device.extent_bytes, factor)
        if made not in self._made:
            asking = task if spec is task.spec else task.model_copy(update={"spec": spec})
            try:
                shared = alike.of(asking, profile, device.extent_bytes)
                self._shared.append(shared)
                named: TaskDemand | Unasked = stretched(replace(shared, name=task.name), factor)
            except (QuestionError, ValueError) as error:
                named = Unasked(Reason.INVALID_SPEC, str(error))
            self._made[made] = named
        return self._made[made]


def until_measured(
    task: MemTask, spec: MemTaskSpec, extent_bytes: int, limit_s: float
) -> TaskDemand:
    """The demand of a task on a `cpu` device where it is measured while others run (measuring.py).

    Nothing of its memory: what it allocates meanwhile is its pod's own, not of the fast memory.
    """
    return TaskDemand(
        name=task.name,
        domain=task.domain,
        period_s=spec.realtime.period_s,
        deadline_s=spec.realtime.deadline_s,
        layout=lay_out((LayerShape(0),), extent_bytes),
        compute_s=(limit_s,),
        criticality=Criticality.BEST_EFFORT,
    )


def demoted(demand: TaskDemand) -> TaskDemand:
    """The same task without a guarantee."""
    return replace(demand, criticality=Criticality.BEST_EFFORT, mean_compute_s=None)
