"""Where task sets come from: the families of the realtime theory notes, or real models' shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.preemption import drawn
from tests.simulation.tasksets import device_for

from tierline_operator.planning.request import DeviceCapacity, TaskDemand


@dataclass(frozen=True)
class Source:
    """Draws sets, the same for the same number and utilisation."""

    about: str
    draw: Callable[[int, float], list[TaskDemand]]
    device_for: Callable[[list[TaskDemand], float], DeviceCapacity]
    """A device whose fast memory is the set's demand over a ratio."""


def families(_: Path) -> Source:
    """Synthetic models of four families, as in the realtime theory notes."""
    return Source("four synthetic families, 32 MiB extents, 55 GB/s", drawn, device_for)


SOURCES: Final[Mapping[str, Callable[[Path], Source]]] = {"families": families}
"""By name; each is given the folder of the benchmarks' results."""
