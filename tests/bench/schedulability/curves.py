"""How much is admitted, by memory demand and utilisation: ours, others', and what is possible.

Memory demand is the sum of all weights and the largest workspace, over fast memory; utilisation is
that of computing alone. The steps of Tierline add up: each admits what the one before admits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.schedulability import swapping
from tests.bench.schedulability.bound import possible
from tests.bench.schedulability.swapping import Swapped

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

LOADS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
RATIOS: Final = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)

SCHEMES: Final = {
    "resident": "all weights resident",
    "swap": "whole tasks swapped in and out",
    "swap-partial": "swapped in and out, partial volumes",
    "copy": "whole tasks copied in",
    "copy-partial": "copied in, partial volumes",
    "stream": "Tierline, non-preemptive",
    "layers": "and layers preempt",
    "rings": "and resident preemptors keep the ring",
    "possible": "necessary for any policy",
}


@dataclass(frozen=True)
class Examined:
    """One set: for each scheme the largest memory demand of RATIOS at which it is admitted."""

    load: float
    largest: dict[str, float]

    def admitted(self, scheme: str, ratio: float) -> bool:
        """More memory never hurts: what fits a small device fits a larger one."""
        return ratio <= self.largest[scheme]


def examine(tasks: Sequence[TaskDemand], device: DeviceCapacity, load: float) -> Examined:
    """Ask every scheme, from the largest memory demand down to the first that is admitted.

    `device` has the memory of demand 1; its one tier gives the link.
    """
    prepared = prepare(tasks, device)
    if isinstance(prepared, Infeasible):
        raise TypeError(f"the lower tier is to hold everything, but {prepared.sentence}")
    link = next(iter(device.tiers.values())).link
    bandwidth = link.bandwidth_bytes_per_s
    moved = Swapped.of(tasks, bandwidth)
    largest: dict[str, float] = {}

    def ask(scheme: str, above: Sequence[str], holds: Callable[[int], bool]) -> None:
        """What `above` admits is admitted, and what is not possible is not."""
        floor = max((largest[name] for name in above), default=0.0)
        found = floor
        for ratio in reversed(RATIOS):
            if ratio <= floor:
                break
            if ratio > largest.get("possible", ratio):
                continue
            if holds(int(device.fast_bytes / ratio)):
                found = ratio
                break
        largest[scheme] = found

    def ours(way: Scheduling) -> Callable[[int], bool]:
        return lambda fast: prepared[0].holds(fast, way)

    ask("possible", (), lambda fast: possible(tasks, moved.test, fast, bandwidth))
    ask("resident", (), lambda fast: swapping.resident(moved, fast))
    for name, ways in (("swap", 2), ("copy", 1)):
        ask(name, ("resident",), lambda fast, n=ways: swapping.whole(moved, fast, ways=n))  # type: ignore[misc]
        ask(
            f"{name}-partial",
            (name,),
            lambda fast, n=ways: swapping.partial(moved, fast, ways=n),  # type: ignore[misc]
        )
    ask("stream", (), ours(Scheduling.NON_PREEMPTIVE))
    ask("layers", ("stream",), ours(Scheduling.LAYER_PREEMPTIVE))
    ask("rings", ("layers",), ours(Scheduling.RING_KEEPING))
    return Examined(load, largest)
