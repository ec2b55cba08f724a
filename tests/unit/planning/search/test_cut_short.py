"""A refusal says whether it is proven impossible, or whether the search was cut short."""

from __future__ import annotations

import pytest
from tests.simulation.crowds import crowd, crowded

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import plan
from tierline_operator.planning.refusals.reasons import NOT_PROVEN
from tierline_operator.planning.search import residents


def refusal(memory_ratio: float) -> Infeasible:
    tasks = crowd("mixed", 1, 25, 0.75)
    answer = plan(tasks, crowded(tasks, memory_ratio))
    assert isinstance(answer, Infeasible)
    return answer


def test_plans_that_were_not_tried_are_admitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "EFFORT", 100)
    answer = refusal(3.5)
    assert answer.cut_short
    assert answer.sentence.startswith(NOT_PROVEN)


def test_what_no_choice_can_do_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little was tried: no search is needed for that."""
    monkeypatch.setattr(residents, "EFFORT", 100)
    answer = refusal(6)
    assert not answer.cut_short
    assert NOT_PROVEN not in answer.sentence
