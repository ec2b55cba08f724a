"""Sets that need nearly all of a device's time, or a little more: an answer is soon there.

What an answer takes is counted in deadlines that the demand test looks at, so that it is the same
on any machine: two hundred million of them, as it counts, take about a second.
"""

from __future__ import annotations

import pytest
from tests.simulation.crowds import crowd, crowded

from tierline_operator.admission.demand import DemandTest
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.planner import plan

MOST = 250_000_000


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[DemandTest]:
    """All demand tests that are made meanwhile."""
    made: list[DemandTest] = []
    ask = DemandTest.worst

    def asked(test: DemandTest, *args: object) -> object:
        if test not in made:
            made.append(test)
        return ask(test, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DemandTest, "worst", asked)
    return made


@pytest.mark.parametrize("load", [0.95, 0.999, 0.9999, 0.99999, 1.0, 1.0001, 1.01])
@pytest.mark.parametrize("memory_ratio", [0.8, 1.2])
def test_an_answer_near_full_use_looks_at_few_deadlines(
    load: float, memory_ratio: float, work: list[DemandTest]
) -> None:
    for count in (12, 100):
        tasks = crowd("small", 1, count, load)
        answer = plan(tasks, crowded(tasks, memory_ratio))
        assert sum(test.work for test in work) < MOST
        assert answer.ok or load > 0.9
        work.clear()


def test_more_than_all_of_the_time_is_overload_and_a_remedy_is_named() -> None:
    tasks = crowd("small", 1, 100, 1.0001)
    answer = plan(tasks, crowded(tasks, 0.8))
    assert isinstance(answer, Infeasible)
    assert answer.reason == "Overload"
    assert "would be enough" in answer.sentence or "would hold without" in answer.sentence


def test_a_set_with_a_ten_thousandth_left_is_proven() -> None:
    tasks = crowd("small", 1, 100, 0.9999)
    assert isinstance(plan(tasks, crowded(tasks, 0.8)), Admitted)
