"""What a task asks of a device, or why it cannot ask: its spec and its profile put together.

Building a demand lays out every layer, so demands are kept for as long as spec and profile stay the
same. Pure; raises nothing: a question without sense is an `Unasked` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tierline_api.conditions import Reason
from tierline_api.memnode import Device
from tierline_api.memprofile import MemProfile
from tierline_api.memtask import MemTask, MemTaskSpec
from tierline_api.realtime import Criticality
from tierline_operator.planning.from_api import QuestionError, demand_of
from tierline_operator.planning.request import TaskDemand


@dataclass(frozen=True)
class Unasked:
    """Why nothing can be asked of a device."""

    reason: Reason
    sentence: str


class Demands:
    """The demands of one task, for one spec and one profile at a time."""

    def __init__(self) -> None:
        self._basis: tuple[int, int] | None = None
        self._held: tuple[MemTaskSpec, MemProfile] | None = None
        self._by_size: dict[int, TaskDemand | Unasked] = {}

    def of(
        self, task: MemTask, spec: MemTaskSpec, profile: MemProfile, device: Device
    ) -> TaskDemand | Unasked:
        """What the task asks of `device` with that spec; its name is still the task's."""
        measured = profile.spec.device
        if measured.kind != device.kind or (
            measured.product != device.product and spec.realtime.execution_time_s is None
        ):
            return Unasked(
                Reason.PROFILE_MISSING,
                f"MemProfile/{profile.name} was measured on {measured.product} and this device is "
                f"{device.product}; measure it there, or state realtime.executionTime",
            )
        basis = (id(spec), id(profile))
        if basis != self._basis:
            # The objects are held so that their identities stay theirs.
            self._basis, self._held, self._by_size = basis, (spec, profile), {}
        if device.extent_bytes not in self._by_size:
            asking = task if spec is task.spec else task.model_copy(update={"spec": spec})
            try:
                demand: TaskDemand | Unasked = demand_of(asking, profile, device.extent_bytes)
            except (QuestionError, ValueError) as error:
                demand = Unasked(Reason.INVALID_SPEC, str(error))
            self._by_size[device.extent_bytes] = demand
        return self._by_size[device.extent_bytes]


def demoted(demand: TaskDemand) -> TaskDemand:
    """The same task without a guarantee."""
    return replace(demand, criticality=Criticality.BEST_EFFORT, mean_compute_s=None)
