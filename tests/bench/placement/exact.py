"""The optimum of a set by a mixed-integer program (HiGHS, extra `exact`): the yardstick.

Of each task the extents f, m, n in the three tiers, and its time E:  minimise the sum of w E with

    f + m + n = N,    E >= floor,    E >= t_m m,    E >= t_n n,    E <= limit,
    sum f <= dram,    sum m <= pmem,    sum n <= nvme.
"""

from __future__ import annotations

from typing import Any, Final

import highspy
from tests.bench.placement.sets import Asked

GAP: Final = 1e-4
_TIERS: Final = 3


def optimum(asked: Asked, limit_s: float = 20.0) -> float | None:
    """The least cost, within GAP; None if no placement keeps all deadlines."""
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", GAP)
    solver.setOptionValue("time_limit", limit_s)
    endless = highspy.kHighsInf

    def row(low: float, high: float, terms: dict[int, float]) -> None:
        solver.addRow(low, high, len(terms), list(terms), list(terms.values()))

    for at, lot in enumerate(asked.lots):
        first = at * (_TIERS + 1)
        time = first + _TIERS
        for tier in range(_TIERS):
            solver.addVar(0.0, float(lot.extents))
            solver.changeColIntegrality(first + tier, highspy.HighsVarType.kInteger)
        solver.addVar(lot.floor_s * 1e3, max(lot.floor_s, lot.limit_s) * 1e3)
        solver.changeColCost(time, lot.weight)
        row(lot.extents, lot.extents, {first + tier: 1.0 for tier in range(_TIERS)})
        for tier in range(_TIERS):
            row(0.0, endless, {time: 1.0, first + tier: -lot.copy_s[tier] * 1e3})
    for tier, extents in enumerate(asked.room):
        every = {at * (_TIERS + 1) + tier: 1.0 for at in range(len(asked.lots))}
        row(-endless, extents, every)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return float(solver.getInfo().objective_function_value) / 1e3
