"""When a job that waits for one of another process of its task is a part of that."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tierline_agent.policy.nested import LONGEST_S, LOOK_S, Wait

_S = 10**9


def _nested_after_s(
    ticks: Iterable[int | None], *, planned_s: float = 0, before: bool = False
) -> float | None:
    """When it is found, if the holder's process has computed so much at each look."""
    at = iter(ticks)
    wait = Wait(object(), 0, next(at))
    for number, now in enumerate(at, 1):
        now_ns = round(number * LOOK_S * _S)
        if wait.is_nested(now, now_ns, planned_ns=round(planned_s * _S), nested_before=before):
            return number * LOOK_S
    return None


def test_a_holder_that_stands_still_for_a_second_waits_for_it() -> None:
    assert _nested_after_s([7] * 100) == 1.0
    assert _nested_after_s([7] * 100, before=True) == LOOK_S


def test_a_holder_that_polls_stands_still() -> None:
    assert _nested_after_s(range(100)) == 1.0


def test_a_holder_that_computes_now_and_then_does_not() -> None:
    steps = [step // 3 * 20 for step in range(30)]
    assert _nested_after_s(steps) is None


@pytest.mark.parametrize("ticks", [range(0, 100000, 20), [None] * 1000], ids=["busy", "unknown"])
def test_none_waits_for_ever(ticks: Iterable[int | None]) -> None:
    assert _nested_after_s(ticks) == LONGEST_S
    assert _nested_after_s(ticks, planned_s=20) == 40
