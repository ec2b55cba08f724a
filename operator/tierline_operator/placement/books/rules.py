"""Settings of an administrator: safety margins, and the run time's own costs, by kind of device.

Pure values. Margins nobody has set are those of tierline_api/devices/margins.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.margins import MARGINS
from tierline_api.devices.overheads import OVERHEADS
from tierline_operator.planning.request import Margins


@dataclass(frozen=True)
class KindRules:
    """For one kind of device. Times in seconds."""

    margins: Margins
    dispatch_s: float
    """Costs of a job in addition to its layers and copies (tierline_api/devices/overheads.py)."""
    gate_s: float
    """Time that a gate adds to a layer."""


def _by_kind() -> dict[DeviceKind, KindRules]:
    return {
        kind: KindRules(Margins(MARGINS[kind], MARGINS[kind]), own.dispatch_s, own.gate_s)
        for kind, own in OVERHEADS.items()
    }


@dataclass(frozen=True)
class Rules:
    """Everything that placement is told in addition to the objects of the cluster."""

    by_kind: dict[DeviceKind, KindRules] = field(default_factory=_by_kind)
    headroom: float = 0.5
    """Share of the fast memory that no pod holds which plans leave to later pods (proof.py)."""
    keep_free_s: float = 300.0
    """For so long a place is kept free for a pod that does not come."""
    work_per_settle: int = 256
    """How much is tried for waiting tasks before the caller may look at new events: 1 for a plan
    added to those that are there, `WHOLE_DEVICE` a task for one of a whole device."""
    few_waiting: int = 4
    """So many waiting tasks are each planned together with all others of their device. Of more,
    each is first added to the plans that are there."""
    crowded_from: int = 4
    """With so many on a device, planning all of them again is tried last."""


WHOLE_DEVICE: Final = 8
"""How much more work it is to plan a task together with others than to add it to what is there."""
