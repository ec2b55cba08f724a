"""Random sets of tasks for tiers that are scarce, and how good a placement of one is.

Four families of models as in docs/design/theory.md, 3, in extents of 32 MiB; dram, pmem and nvme at
55, 30 and 3.5 GB/s. All of each model streams, and its links run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tierline_operator.planning.homes.sharing import Lot, share

EXTENT_BYTES = 32 << 20
RATES = (55e9, 30e9, 3.5e9)
COPY_S = tuple(EXTENT_BYTES / rate for rate in RATES)
LOAD = 0.35
_FAMILIES = ((0.05, 0.3, 2, 12), (0.2, 1.4, 4, 25), (1.2, 5.2, 15, 60), (2, 15, 4, 60))
"""Least and most GB, least and most milliseconds of compute."""

Shares = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Asked:
    """Tasks and tiers, in extents."""

    lots: tuple[Lot, ...]
    room: tuple[int, int, int]

    def by_rule(self) -> Shares:
        """What the planner would do."""
        shares = share(self.lots, self.room, in_turn=False)
        if shares is None:
            raise TypeError("nvme has room for everything")
        return shares

    def load(self, shares: Shares, *, one_at_a_time: bool = False) -> float:
        """Share of the time that all jobs take together."""
        return sum(
            lot.weight * lot.job_s(own, in_turn=one_at_a_time)
            for lot, own in zip(self.lots, shares, strict=True)
        )

    def late(self, shares: Shares, *, one_at_a_time: bool = False) -> float:
        """Share of the tasks whose jobs would be late, alone on the device."""
        late = [
            lot.job_s(own, in_turn=one_at_a_time) > lot.limit_s * (1 + 1e-9)
            for lot, own in zip(self.lots, shares, strict=True)
        ]
        return sum(late) / len(late)


def random_set(tasks: int, seed: int, dram: float, pmem: float) -> Asked:
    """`dram` and `pmem` are shares of all bytes; nvme has room for everything."""
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(tasks):
        low, high, least, most = _FAMILIES[rng.choice(4, p=(0.35, 0.3, 0.2, 0.15))]
        size = np.exp(rng.uniform(np.log(low), np.log(high))) * 1e9
        compute_s = np.exp(rng.uniform(np.log(least), np.log(most))) * 1e-3
        shapes.append((int(-(-size // EXTENT_BYTES)), float(compute_s)))
    loads = np.maximum(rng.dirichlet(np.full(tasks, 0.7)) * LOAD, 1e-4)
    lots = []
    for (extents, compute_s), load in zip(shapes, loads, strict=True):
        period_s = max(compute_s, extents * COPY_S[0]) / float(load)
        limit_s = period_s * float(rng.uniform(0.6, 1))
        lots.append(Lot(extents, (0, 1, 2), COPY_S, compute_s, limit_s, 1 / period_s))
    total = sum(lot.extents for lot in lots)
    return Asked(tuple(lots), (int(dram * total), int(pmem * total), total))
