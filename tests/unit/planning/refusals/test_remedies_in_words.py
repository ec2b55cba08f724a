"""A remedy is told so that a manifest may say it, and holds when it does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierline_api.schema.quantities import parse_duration
from tierline_operator.planning.refusals.reasons import would_be_enough

TIMES = st.floats(1e-3, 1e5)


def told_s(sentence: str) -> float:
    number, unit = sentence.split(" of ")[1].split(" for ", maxsplit=1)[0].split()
    return parse_duration(number + unit)


@given(period_s=TIMES, share=st.floats(1e-3, 1))
def test_a_deadline_is_no_longer_than_the_period_and_no_shorter_than_needed(
    period_s: float, share: float
) -> None:
    needed_s = period_s * share
    said_s = told_s(would_be_enough("deadline", needed_s, "camera", period_s))
    assert needed_s * (1 - 2e-6) <= said_s <= period_s * (1 + 1e-8)


@given(needed_s=TIMES)
def test_a_period_is_rounded_up(needed_s: float) -> None:
    said_s = told_s(would_be_enough("period", needed_s, "camera", needed_s / 2))
    assert needed_s * (1 - 2e-6) <= said_s <= needed_s * 1.011
