from __future__ import annotations

import pytest

from tierline_torch.arenas.selection import (
    CHANGING,
    ENCLOSING,
    NOT_OWN,
    NOT_READ,
    OUTSIDE,
    RECALLED,
    REPEATED,
    Call,
    Run,
    judge,
    select,
)

A, B, C, D = 101, 102, 103, 104


def run(calls: list[tuple[int, int]], reads: list[tuple[int, int]]) -> Run:
    return Run(tuple(Call(module, parent) for module, parent in calls), tuple(reads))


FLAT = [(A, OUTSIDE), (B, OUTSIDE), (C, OUTSIDE)]


@pytest.mark.parametrize(
    ("owners", "runs", "layers", "pinned"),
    [
        pytest.param(
            [{A}, {B}, {C}],
            [run(FLAT, [(0, 0), (1, 1), (2, 2)])] * 2,
            [(A, (0,)), (B, (1,)), (C, (2,))],
            {},
            id="each module reads its own weight once",
        ),
        pytest.param(
            [{B}, {A}, {A}],
            [run(FLAT, [(0, 2), (0, 1), (1, 0)])] * 2,
            [(A, (2, 1)), (B, (0,))],
            {},
            id="layers come in the order of calls, weights in the order of reads",
        ),
        pytest.param(
            [{A}, {B}],
            [run(FLAT, [(0, 0)])] * 2,
            [(A, (0,))],
            {NOT_READ: (1,)},
            id="a weight that no run reads is pinned",
        ),
        pytest.param(
            [{A}, {B}],
            [run(FLAT, [(0, 0), (0, 1)])] * 2,
            [(A, (0,))],
            {NOT_OWN: (1,)},
            id="a weight read in another module's forward is pinned",
        ),
        pytest.param(
            [{A}, {B}],
            [run(FLAT, [(OUTSIDE, 0), (0, 0), (1, 1)]), run(FLAT, [(0, 0), (1, 1)])],
            [(B, (1,))],
            {NOT_OWN: (0,)},
            id="a weight read outside every forward, in one run only, is pinned",
        ),
        pytest.param(
            [{A, B}, {C}],
            [run(FLAT, [(0, 0), (1, 0), (2, 1)])] * 2,
            [(C, (1,))],
            {REPEATED: (0,)},
            id="a tied weight that both owners read is pinned",
        ),
        pytest.param(
            [{A, B}, {C}],
            [run(FLAT, [(1, 0), (2, 1)])] * 2,
            [(B, (0,)), (C, (1,))],
            {},
            id="a tied weight that one owner reads is streamed with that one",
        ),
        pytest.param(
            [{A}],
            [run([(A, OUTSIDE), (A, OUTSIDE)], [(1, 0)])] * 2,
            [],
            {RECALLED: (0,)},
            id="a module called twice is not gated, whichever call reads",
        ),
        pytest.param(
            [{A}, {B}],
            [run(FLAT, [(0, 0), (1, 1)]), run(FLAT, [(1, 1)])],
            [(B, (1,))],
            {CHANGING: (0,)},
            id="a weight cached after the first run is pinned",
        ),
        pytest.param(
            [{A}, {B}, {C}],
            [
                run(FLAT, [(0, 0), (1, 1), (2, 2)]),
                run([(B, OUTSIDE), (C, OUTSIDE), (A, OUTSIDE)], [(0, 1), (1, 2), (2, 0)]),
            ],
            [(B, (1,)), (C, (2,))],
            {CHANGING: (0,)},
            id="what keeps its order is streamed, what moves is pinned",
        ),
        pytest.param(
            [{A}, {B}],
            [run([(A, OUTSIDE), (B, 0)], [(0, 0), (1, 1)])] * 2,
            [(B, (1,))],
            {ENCLOSING: (0,)},
            id="a module whose call encloses a streamed one is pinned",
        ),
        pytest.param(
            [{A}, {C}],
            [run([(A, OUTSIDE), (B, 0), (C, 1)], [(0, 0), (2, 1)])] * 2,
            [(C, (1,))],
            {ENCLOSING: (0,)},
            id="enclosing reaches over a module without weights",
        ),
        pytest.param(
            [{A}, {B}],
            [run([(A, OUTSIDE), (B, 0)], [(0, 0), (0, 1)])] * 2,
            [(A, (0,))],
            {NOT_OWN: (1,)},
            id="a module that reads its child's weight itself is gated with its own",
        ),
        pytest.param([], [run(FLAT, [])] * 2, [], {}, id="no weights"),
    ],
)
def test_selection(
    owners: list[set[int]],
    runs: list[Run],
    layers: list[tuple[int, tuple[int, ...]]],
    pinned: dict[str, tuple[int, ...]],
) -> None:
    selection = select(owners, runs)
    assert [(one.module, one.weights) for one in selection.layers] == layers
    assert {one.reason: one.weights for one in selection.pinned} == pinned


FORWARDS = run(FLAT, [(0, 0), (1, 1), (2, 2)])
BACKWARDS = run([(C, OUTSIDE), (B, OUTSIDE), (A, OUTSIDE)], [(0, 2), (1, 1), (2, 0)])


@pytest.mark.parametrize(
    ("runs", "learned", "enough", "layers"),
    [
        pytest.param([FORWARDS], None, False, 3, id="one job may be unlike all others"),
        pytest.param([FORWARDS] * 2, None, True, 3, id="two jobs that ask for the same"),
        pytest.param([FORWARDS, BACKWARDS], None, False, 1, id="two jobs that do not"),
        pytest.param(
            [BACKWARDS, FORWARDS, FORWARDS], None, False, 3, id="the third is the first to"
        ),
        pytest.param([BACKWARDS, *[FORWARDS] * 3], None, True, 1, id="four: what all allow"),
        pytest.param([FORWARDS], [FORWARDS], True, 3, id="one job that shows what was learned"),
        pytest.param([BACKWARDS], [FORWARDS], False, 3, id="one job that shows something else"),
    ],
)
def test_jobs_are_enough_when_they_ask_for_the_same(
    runs: list[Run], learned: list[Run] | None, enough: bool, layers: int
) -> None:
    owners = [{A}, {B}, {C}]
    known = None if learned is None else select(owners, learned)
    selection, settled = judge(owners, runs, known)
    assert settled == enough
    assert len(selection.layers) == layers
