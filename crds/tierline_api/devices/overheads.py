"""What the run time itself adds to jobs, by kind of device: one definition.

`dispatch_s` is charged once a job and once more for the way back to a job that was preempted, to
the one that preempts it; an agent gives a job that much more for each time that it went on.
`gate_s` once a layer. They are constants: an agent alone cannot measure them, since half of a
dispatch is the waking of the program's process.

* `cpu`: layers, copies and both processes share the processors; 5 ms a job and 50 us a layer were
  never exceeded by the benches and tests of two busy cores.
* `cuda` (one H200, docs/benchmarks/gpu.md): beginning a job is a round trip to the agent of 0.2 to
  0.3 ms when both sides have slept; all that a job takes beyond its limit is 0.4 to 1.3 ms in the
  median where nothing streams, and 0.9 to 1.6 ms where something does, of which the recursion
  charges the first extent and the last layer by itself. What a program copies between host and
  device between its jobs goes on its way without the lease, up to 16 MiB a job (launch_gates.c),
  and keeps others' extents waiting for up to 0.3 ms. A gate of three stream memory operations takes
  5.4 us, one of a graph 4.2. Charged are 2 ms and 10 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tierline_api.devices.device import DeviceKind


@dataclass(frozen=True)
class Overheads:
    """Of one kind of device, seconds."""

    dispatch_s: float
    """From a free device to the start of the next job's copies, and from a job's end to a free
    device."""
    gate_s: float
    """What a gate adds to a layer."""


OVERHEADS: Final[Mapping[DeviceKind, Overheads]] = {
    DeviceKind.CPU: Overheads(dispatch_s=0.005, gate_s=0.000_05),
    DeviceKind.CUDA: Overheads(dispatch_s=0.002, gate_s=0.000_01),
}

COPYING_AT_ONCE: Final = frozenset({DeviceKind.CPU})
"""Where extents from several tiers are copied at the same time, each by its link. A GPU's are all
in one copy stream, in the order of the job's."""

YIELDING_WHILE_WAITING: Final = frozenset({DeviceKind.CPU})
"""Where a job that waits for data can be preempted: a thread that waits can be woken, but a GPU's
stream waits until they are there."""
