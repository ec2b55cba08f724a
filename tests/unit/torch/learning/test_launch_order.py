"""Which weights the launches of two runs allow to stream."""

from hypothesis import given
from hypothesis import strategies as st

from tierline_torch.arenas.selection import CHANGING, REPEATED, Selection
from tierline_torch.learning.launch_order import NOT_SEEN, explains, select_by_launches


def reads(*launches: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(at, weight) for at, weights in enumerate(launches) for weight in weights]


def pinned(selection: Selection) -> dict[int, str]:
    return {weight: group.reason for group in selection.pinned for weight in group.weights}


def stays(selection: Selection) -> dict[int, str]:
    return {weight: group.reason for group in selection.stays for weight in group.weights}


def layers(selection: Selection) -> list[tuple[int, ...]]:
    return [layer.weights for layer in selection.layers]


def test_each_launch_is_a_layer() -> None:
    run = reads((2, 1), (), (0,))
    selection = select_by_launches(3, [run, run])
    assert layers(selection) == [(2, 1), (0,)]
    assert selection.launches == ((2, 1), (0,))
    assert selection.pinned == ()


def test_a_weight_read_again_holds_its_layer_together() -> None:
    run = reads((0,), (0, 1), (2,), (2,), (3,))
    selection = select_by_launches(4, [run, run])
    assert layers(selection) == [(0, 1), (2,), (3,)]
    assert selection.launches == ((0,), (0, 1), (2,), (2,), (3,))


def test_a_weight_read_at_both_ends_stays_resident() -> None:
    run = reads(*[(weight,) for weight in range(20)], (0,))
    selection = select_by_launches(20, [run, run])
    assert pinned(selection) == {0: REPEATED}
    assert layers(selection) == [(weight,) for weight in range(1, 20)]
    assert selection.launches == tuple((weight,) for weight in range(1, 20))


def test_a_name_that_only_one_run_shows_is_chance() -> None:
    layers_ = [(weight,) for weight in range(20)]
    first = reads(*layers_[:15], (15, 0), *layers_[16:])
    second = reads(*layers_[:12], (12, 19), *layers_[13:])
    selection = select_by_launches(20, [first, second])
    assert layers(selection) == layers_
    assert selection.pinned == ()


def test_what_changes_is_pinned_and_what_is_not_seen_is_not_moved() -> None:
    first, second = reads((0,), (1,), (2,), (3,)), reads((1,), (0,), (2,))
    selection = select_by_launches(5, [first, second])
    reasons = pinned(selection)
    assert stays(selection) == {4: NOT_SEEN}
    assert reasons[3] == CHANGING
    assert sum(weight in reasons for weight in (0, 1)) == 1  # either order is one order
    assert 2 not in reasons


_RUNS = st.lists(
    st.lists(st.lists(st.integers(0, 14), max_size=3), max_size=30), min_size=1, max_size=3
)


@given(_RUNS)
def test_every_weight_has_one_place_and_no_layer_ends_early(runs: list[list[list[int]]]) -> None:
    given_ = [reads(*map(tuple, map(dict.fromkeys, run))) for run in runs]
    selection = select_by_launches(15, given_)
    streamed = [weight for one in layers(selection) for weight in one]
    placed = [*streamed, *pinned(selection), *stays(selection)]
    assert sorted(placed) == list(range(15))
    shown = {weight for run in runs for launch in run for weight in launch}
    assert stays(selection).keys() == set(range(15)) - shown
    layer_of = {weight: at for at, one in enumerate(layers(selection)) for weight in one}
    positions = [[layer_of[weight] for weight in launch] for launch in selection.launches]
    # Each launch reads one layer, and no launch goes back: what is released is never read again.
    assert all(len(set(one)) == 1 for one in positions)
    order = [one[0] for one in positions]
    assert order == sorted(order)


CHAIN = [(weight,) for weight in range(20)]
"""Launches of a plain network: each reads a weight of its own."""


def with_chance(*names: tuple[int, int]) -> list[tuple[int, int]]:
    """A run in which launches name weights that they do not read, as (launch, weight)."""
    launches = [list(one) for one in CHAIN]
    for launch, weight in names:
        launches[launch].append(weight)
    return reads(*map(tuple, launches))


def test_an_order_serves_a_process_whose_launches_name_others_by_chance() -> None:
    # In each process the same old address lies in the same hole in all of its runs.
    profiled = [with_chance((15, 0), (4, 3))] * 3
    managed = [with_chance((12, 1), (12, 19), (7, 6))] * 3
    chosen = select_by_launches(20, profiled)
    assert pinned(chosen) == {0: REPEATED}
    assert layers(select_by_launches(20, managed)) != layers(chosen)
    assert explains(chosen, managed)
    assert explains(select_by_launches(20, managed), profiled)


def test_an_order_serves_a_process_without_chance_names() -> None:
    assert explains(select_by_launches(20, [with_chance((15, 0), (3, 2))] * 2), [reads(*CHAIN)])
    assert explains(select_by_launches(20, [reads(*CHAIN)]), [with_chance((15, 0))])


def test_what_is_streamed_must_be_named_by_every_run() -> None:
    chosen = select_by_launches(20, [reads(*CHAIN)])
    assert not explains(chosen, [reads(*CHAIN), reads(*CHAIN[:7], (), *CHAIN[8:])])


def test_what_is_streamed_must_be_named_in_its_turn() -> None:
    chosen = select_by_launches(20, [reads(*CHAIN)])
    assert not explains(chosen, [reads(*CHAIN[:7], CHAIN[8], CHAIN[7], *CHAIN[9:])])
    assert not explains(chosen, [reads(*CHAIN[10:], *CHAIN[:10])])


def test_what_stays_resident_may_change() -> None:
    chosen = select_by_launches(20, [with_chance((15, 0))] * 2)
    assert explains(chosen, [reads(*CHAIN[1:], (0,))])


@given(_RUNS, _RUNS)
def test_an_order_that_serves_streams_nothing_that_a_run_does_not_name(
    here: list[list[list[int]]], there: list[list[list[int]]]
) -> None:
    chosen = select_by_launches(15, [reads(*map(tuple, map(dict.fromkeys, run))) for run in there])
    runs = [reads(*map(tuple, run)) for run in here]
    if explains(chosen, runs):
        streamed = {weight for layer in layers(chosen) for weight in layer}
        assert all(streamed <= {weight for _, weight in run} for run in runs)
