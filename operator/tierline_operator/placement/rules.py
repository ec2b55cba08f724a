"""What an administrator sets: safety margins and the run time's own costs, by kind of device.

Pure values. The defaults of `cpu` are those of `tierline run`: there the agent's copies and the
layers slow each other. On a GPU copies have engines of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tierline_api.device import DeviceKind
from tierline_operator.planning.request import Margins


@dataclass(frozen=True)
class KindRules:
    """For one kind of device. Times in seconds."""

    margins: Margins
    dispatch_s: float
    """From a free device to the start of the next job's copies."""
    gate_s: float
    """What a gate adds to a layer."""


def _by_kind() -> dict[DeviceKind, KindRules]:
    return {
        DeviceKind.CPU: KindRules(Margins(1.3, 1.3), dispatch_s=0.005, gate_s=0.000_05),
        DeviceKind.CUDA: KindRules(Margins(1.1, 1.1), dispatch_s=0.001, gate_s=0.000_01),
    }


@dataclass(frozen=True)
class Rules:
    """Everything that placement is told beside the objects of the cluster."""

    by_kind: dict[DeviceKind, KindRules] = field(default_factory=_by_kind)
    tries_per_settle: int = 64
    """Plans made in one go before the caller may look at new events."""
