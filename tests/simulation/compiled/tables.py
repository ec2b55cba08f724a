"""What the compiled engine reads: tasks, parts, layers and extents as tables, once for each set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.simulation.device import Machine
from tierline_operator.simulation.job import TaskModel

Table = npt.NDArray[Any]

WAYS: Final = tuple(Scheduling)
NON_PREEMPTIVE: Final = WAYS.index(Scheduling.NON_PREEMPTIVE)
LAYER_PREEMPTIVE: Final = WAYS.index(Scheduling.LAYER_PREEMPTIVE)
RING_KEEPING: Final = WAYS.index(Scheduling.RING_KEEPING)

TASK = np.dtype(
    [
        ("period_s", "f8"),
        ("deadline_s", "f8"),
        ("domain", "i8"),
        ("preemptible", "i8"),
        ("streams", "i8"),
        ("ring", "i8"),
        ("first_part", "i8"),
        ("parts", "i8"),
        ("starts", "i8"),
    ],
    align=True,
)
PART = np.dtype(
    [
        ("first_layer", "i8"),
        ("layers", "i8"),
        ("first_extent", "i8"),
        ("extents", "i8"),
        ("longest_s", "f8"),
    ],
    align=True,
)
LAYER = np.dtype([("compute_s", "f8"), ("needs", "i8"), ("frees", "i8")], align=True)
DEVICE = np.dtype(
    [
        ("scheduling", "i8"),
        ("dispatch_s", "f8"),
        ("yields_while_waiting", "i8"),
        ("domains", "i8"),
        ("widest", "i8"),
    ],
    align=True,
)


class Tables(NamedTuple):
    """A set of tasks with its plans on a device."""

    device: Table
    """One row."""
    tasks: Table
    parts: Table
    layers: Table
    copy_s: Table
    """Time of each streamed extent on its link, all parts one after the other."""
    queues: Table
    """For each part and link where its positions begin and end in `positions`."""
    positions: Table
    foreign_s: Table
    """For each link how long something else may keep it at a dispatch; 0 for those of no task."""


def tables_of(tasks: Sequence[TaskModel], machine: Machine) -> Tables:
    """Everything that does not change from run to run."""
    domains = sorted({task.domain for task in tasks})
    links = range(len(machine.links))
    rows: list[tuple[float | bool, ...]] = []
    parts: list[tuple[float, ...]] = []
    layers: list[tuple[float, int, int]] = []
    queues: list[list[tuple[int, int]]] = []
    copy_s: list[float] = []
    positions: list[int] = []
    for task in tasks:
        limit = float("inf") if task.deadline_s is None else task.deadline_s
        place = domains.index(task.domain)
        rows.append(
            (
                task.period_s,
                limit,
                place,
                task.preemptible,
                task.streams,
                task.ring_extents,
                len(parts),
                len(task.parts),
                task.starts,
            )
        )
        for part in task.parts:
            count, longest_s = len(part.compute_s), max(part.compute_s)
            parts.append((len(layers), count, len(copy_s), len(part.extents), longest_s))
            layers += list(zip(part.compute_s, part.needs, part.frees, strict=True))
            for extent in part.extents:
                link = machine.links[task.link_of_extent[extent]]
                copy_s.append(link.copy_s(task.layout.extent_sizes[extent]))
            ends = []
            for link_number in links:
                begin = len(positions)
                positions += part.of_link.get(link_number, ())
                ends.append((begin, len(positions)))
            queues.append(ends)
    widest = max((row[3] for row in parts), default=0)
    used = {link for task in tasks for link in task.link_of_extent}
    foreign = [
        link.flight_s(machine.extent_bytes) * machine.blocked_extents * (number in used)
        for number, link in enumerate(machine.links)
    ]
    device = (
        WAYS.index(machine.scheduling),
        machine.dispatch_s,
        machine.yields_while_waiting,
        len(domains),
        widest,
    )
    return Tables(
        device=np.array([device], DEVICE),
        tasks=np.array(rows, TASK),
        parts=np.array(parts, PART),
        layers=np.array(layers, LAYER),
        copy_s=np.array(copy_s, np.float64),
        queues=np.array(queues, np.int64).reshape(len(parts), len(machine.links), 2),
        positions=np.array(positions, np.int64),
        foreign_s=np.array(foreign, np.float64),
    )
