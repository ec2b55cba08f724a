"""The order in which devices are tried, against sorting them all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.placement.fleets import feed, fleet, node, profile, task

from tierline_operator.placement.books.order import Order
from tierline_operator.placement.books.seats import DeviceKey, TaskKey

KEYS = [DeviceKey(f"node-{number}", "cpu0") for number in range(6)]
CHANGES = st.tuples(st.sampled_from(KEYS), st.none() | st.floats(0, 1), st.integers(0, 3))


@given(st.lists(CHANGES))
def test_it_is_that_of_sorting_by_load_and_seats(
    changes: list[tuple[DeviceKey, float | None, int]],
) -> None:
    order = Order()
    there: dict[DeviceKey, tuple[float, int, DeviceKey]] = {}
    for key, load, seats in changes:
        if load is None:
            order.drop(key)
            there.pop(key, None)
        else:
            order.put(key, load, seats)
            there[key] = load, seats, key
    assert list(order.keys()) == [key for _, _, key in sorted(there.values())]


@pytest.mark.parametrize("nodes", [1, 3])
def test_tasks_spread_over_the_least_loaded_devices(nodes: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    made = fleet(*map(node, names), profile("m"))
    for number in range(2 * nodes):
        feed(made, task(f"t{number}", of="m", number=number))

    seats = [made.verdict(TaskKey("default", f"t{number}")) for number in range(2 * nodes)]
    places = [verdict.seats[0].place.node for verdict in seats if verdict is not None]
    assert sorted(places) == sorted(2 * names)
    assert set(places[:nodes]) == set(names)


def test_a_task_that_waits_is_tried_on_a_device_that_comes() -> None:
    made = fleet(profile("m"), task("t", of="m"))
    feed(made, node("late"))

    verdict = made.verdict(TaskKey("default", "t"))
    assert verdict is not None
    assert [seat.place.node for seat in verdict.seats] == ["late"]
