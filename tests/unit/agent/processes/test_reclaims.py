from __future__ import annotations

import pytest

from tierline_agent.processes.identity import Process
from tierline_agent.processes.reclaim_latency import Reclaims

ALICE, BOB = Process(1, 1), Process(2, 2)


@pytest.mark.parametrize(
    "events",
    [
        ["leaves", "left", "died"],
        ["leaves", "died", "left"],
        ["died", "leaves", "left"],
        ["leaves", "leaves", "left", "died", "left"],
    ],
    ids=["quiet before it is dead", "copies end last", "death comes first", "two sessions"],
)
def test_a_death_is_counted_once_when_all_is_given_up(events: list[str]) -> None:
    seen: list[float] = []
    reclaims = Reclaims(seen.append)
    verbs = {
        "leaves": reclaims.session_leaves,
        "left": reclaims.session_left,
        "died": reclaims.died,
    }
    for event in events:
        verbs[event](ALICE)
    assert len(seen) == 1
    assert 0 <= seen[0] < 10


def test_who_lives_on_is_not_counted() -> None:
    seen: list[float] = []
    reclaims = Reclaims(seen.append)
    reclaims.session_leaves(ALICE)
    reclaims.session_left(ALICE)
    reclaims.session_leaves(BOB)
    reclaims.died(BOB)
    assert seen == []
