"""The text of a plan: read as it was written, or refused in one sentence."""

from __future__ import annotations

import json
from random import Random

import pytest
from tests.unit.steps.kit.one_plan import PLAN
from tests.unit.steps.kit.random_graphs import random_graph
from tests.unit.steps.kit.random_plans import random_plan

from tierline_steps.plan import Links, Plan, PlanError


@pytest.mark.parametrize("seed", range(50))
def test_what_was_written_is_read(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - any will do
    plan = random_plan(random_graph(rng), rng)
    assert Plan.from_json(plan.to_json()) == plan


def test_it_is_one_line_and_ends_with_its_digest() -> None:
    text = PLAN.to_json()
    assert "\n" not in text
    assert " " not in text
    assert json.loads(text)["digest"] == PLAN.digest


def test_a_plan_that_was_cut_short_is_refused_in_one_sentence() -> None:
    text = PLAN.to_json()
    for end in range(len(text)):
        with pytest.raises(PlanError, match=r"^no plan, or one that was cut short: [^\n]*$"):
            Plan.from_json(text[:end])


def test_a_plan_that_was_edited_anywhere_is_refused_in_one_sentence() -> None:
    text = PLAN.to_json()
    for at, old in enumerate(text):
        for new in {"0", "7", " ", "-", '"', "n"} - {old}:
            with pytest.raises(PlanError) as caught:
                Plan.from_json(text[:at] + new + text[at + 1 :])
            assert "\n" not in str(caught.value)


def _edited(**changes: object) -> str:
    return json.dumps({**json.loads(PLAN.to_json()), **changes}, separators=(",", ":"))


NO_PLANS = {
    "nothing": ("", "cut short"),
    "no object": ("[]", "no plan: "),
    "deep": ("[" * 100_000, "cut short"),
    "long number": ("1" * 5000, "cut short"),
    "another format": (_edited(format=2), "format 2 is not 1"),
    "a field less": (_edited(queues=None), "no plan: "),
    "a field more": (_edited(times=[]), "the plan was edited"),
    "spaces": (json.dumps(json.loads(PLAN.to_json())), "the plan was edited"),
    "a line more": (PLAN.to_json() + "\n", "the plan was edited"),
    "two queues": (_edited(queues=[[], []]), "queues: there are 3, not 2"),
    "a fraction": (_edited(arena_bytes=0.5), "arena_bytes: 0.5 is not a whole number"),
    "no number": (_edited(host_bytes=True), "host_bytes: True is not a whole number"),
    "below 0": (_edited(budget_bytes=-1), "budget_bytes: -1 is not a whole number"),
    "too large": (_edited(budget_bytes=1 << 63), "budget_bytes: 9223372036854775808 is not"),
    "not a number": (_edited(budget_bytes=float("nan")), "budget_bytes: nan is not"),
    "an edited count": (_edited(host_bytes=0), "the plan was edited"),
    "no such queue": (
        _edited(queues=[[{"reads": [], "writes": [], "waits": [[3, 0]]}], [], []]),
        "waits: there is no queue 3",
    ),
    "half a wait": (
        _edited(queues=[[{"reads": [], "writes": [], "waits": [[0]]}], [], []]),
        "no plan: ",
    ),
}


@pytest.mark.parametrize("name", NO_PLANS)
def test_what_is_no_plan_is_refused(name: str) -> None:
    text, sentence = NO_PLANS[name]
    with pytest.raises(PlanError) as caught:
        Plan.from_json(text)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("field", "speeds"),
    [
        ("d2h", (0, 1, 1, 0)),
        ("h2d", (1, -1, 1, 0)),
        ("together", (1, 1, float("inf"), 0)),
        ("latency_ns", (1, 1, 1, -1)),
    ],
)
def test_links_that_do_not_copy_are_refused(
    field: str, speeds: tuple[float, float, float, int]
) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        Links(*speeds)
