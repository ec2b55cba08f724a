"""What a search with Soft tasks need not ask, while the device has far too much to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from tests.simulation.crowds import CROWDS, crowd, crowded, softened

from tierline_operator.admission.demand import DemandTest
from tierline_operator.admission.preemption import Jobs, Scheduling
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.search.options import rings_to_try
from tierline_operator.planning.search.residents import MAX_MOVES, Effort, Outcome, Search


class _Plain(Search):
    """Asks the test about each choice, and each job about its mean."""

    def by_mean(self, chosen: Sequence[int], preemptible: Collection[int]) -> list[int]:
        return [
            index
            for index, task in enumerate(self.tasks)
            if task.planned(
                self.options[index][chosen[index]],
                preemptible=index in preemptible,
                hard=self._hard,
            ).by_mean
        ]

    def _out_of_overload(self, outcome: Outcome, _limit: int) -> tuple[Outcome, int]:
        return outcome, MAX_MOVES


def _searches(
    family: str, seed: int, count: int, load: float, way: Scheduling, soft: float = 0.5
) -> tuple[Search, _Plain, int]:
    """The same question twice, and how many extents there are."""
    tasks = softened(crowd(family, seed, count, load), soft, seed)
    device = crowded(tasks, 1.5)
    prepared = prepare(tasks, device)
    assert isinstance(prepared, list)
    ready = prepared[0].tasks
    due = [task for task in ready if task.guaranteed]
    rings = rings_to_try(ready)[1]
    room = (device.fast_bytes - prepared[0].workspace_bytes) // tasks[0].layout.extent_bytes
    made = [
        kind(
            ready,
            rings,
            DemandTest([task.period_ns for task in due], [task.deadline_ns for task in due]),
            way,
            Effort(count),
        )
        for kind in (Search, _Plain)
    ]
    search, plain = made
    assert isinstance(plain, _Plain)
    return search, plain, room - sum(rings.values())


@pytest.mark.parametrize("way", Scheduling)
@pytest.mark.parametrize("family", CROWDS)
def test_what_is_not_asked_changes_no_answer(family: str, way: Scheduling) -> None:
    rng = np.random.default_rng(3)
    kinds = set()
    for seed in range(6):
        count, load = int(rng.integers(4, 40)), float(rng.uniform(0.5, 1.6))
        soft = (0.5, 1.0)[seed % 2]  # where nobody is Hard, means count without yielding
        search, plain, room = _searches(family, seed, count, load, way, soft)
        if search.least() > room:
            continue
        found, wanted = search.near(room), plain.near(room)
        assert found == wanted
        assert search.effort._left == plain.effort._left
        kinds.add(found.kind)
    assert kinds


@pytest.mark.parametrize("way", Scheduling)
def test_figures_that_are_kept_are_those_of_the_choices(way: Scheduling) -> None:
    """Whatever was asked before, and in which order."""
    search, plain, _ = _searches("mixed", 2, 20, 0.8, way)
    rng = np.random.default_rng(5)
    most = [len(options) for options in search.options]
    chosen = [0] * 20
    for _ in range(200):
        for index in rng.choice(20, int(rng.integers(0, 6)), replace=False).tolist():
            chosen[index] = int(rng.integers(most[index]))
        yielding = frozenset(np.flatnonzero(rng.random(20) < rng.random()).tolist())
        everyone = frozenset(range(20)) if rng.random() < 0.5 else yielding
        assert search.by_mean(chosen, everyone) == plain.by_mean(chosen, everyone)
        jobs = Jobs.of(
            [
                task.planned(options[at], preemptible=index in yielding, hard=search._hard)
                for index, (task, options, at) in enumerate(
                    zip(search.tasks, search.options, chosen, strict=True)
                )
            ]
        )
        assert (search._jobs_of(chosen, search._mask(yielding)).rows == jobs.rows).all()
