"""Terms: what of a MemTask's spec the agent of its node must know to run a pod of it.

The operator writes them into the pod's claim next to the plan, as they were granted: a spec that
was changed and refused never reaches a node. So an agent reads no MemTask, and its claims tell it
all.
"""

from typing import Self

from tierline_api.devices.device import DeviceSelector
from tierline_api.objects.memtask import MemTaskSpec, Training
from tierline_api.objects.realtime import Realtime
from tierline_api.objects.swap import Memory, Swap
from tierline_api.schema.base import ApiModel
from tierline_api.schema.fields import Reference


class Terms(ApiModel):
    """The part of a spec that a node acts on."""

    realtime: Realtime
    """When jobs are released and when they must end."""
    training: Training | None = None
    """The task trains."""
    memory: Memory
    """How much memory the task may use."""
    swap: Swap
    """Where bytes go that are not in fast memory."""
    device: DeviceSelector
    """Which devices the task may run on, and how."""

    profile: Reference | None = None
    """The MemProfile that the task names; without one it is the one of the task's own name."""

    @classmethod
    def of(cls, spec: MemTaskSpec) -> Self:
        """The terms in a spec."""
        return cls.of_stored(**{name: getattr(spec, name) for name in cls.model_fields})
