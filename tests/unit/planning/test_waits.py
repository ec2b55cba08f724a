"""Where waits for data cannot be broken off, they are part of what others are blocked by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.shapes import LINK, device, random_layout, task

from tierline_operator.planning.options import Task
from tierline_operator.planning.pipeline import LinkRate, RingTooSmall
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

IN_TWOS = replace(LINK, in_flight=2)


def on(demand: TaskDemand, where: DeviceCapacity) -> Task:
    return Task(demand, ["dram"] * demand.layout.extent_count, where)


def waits_for_data(where: DeviceCapacity) -> DeviceCapacity:
    return replace(where, yields_while_waiting=False)


def test_a_streamed_job_stands_later_where_its_stream_waits_for_data_first() -> None:
    demand = task("a", 1000, 1000, 50, megabytes=10, layers=5)  # of two extents, 20 ms a layer
    anywhere = on(demand, device(4))
    gpu = on(demand, waits_for_data(device(4)))
    streamed = gpu.options(3)[0]
    assert streamed.point.streamed_extents
    assert anywhere.yields_within_ns(streamed) == pytest.approx(10e6, rel=1e-6)
    # Behind one extent that the link had begun, at both ends of the layer.
    assert gpu.yields_within_ns(streamed) == pytest.approx((10 + 2 * (10 + 20)) * 1e6, rel=1e-6)
    assert gpu.yields_within_ns(gpu.resident()) == anywhere.yields_within_ns(gpu.resident())
    assert gpu.planned(streamed, preemptible=True).layer_ns == gpu.yields_within_ns(streamed)


@pytest.mark.parametrize("link", [LINK, IN_TWOS], ids=["one", "two"])
def test_no_layer_is_waited_for_longer_from_any_restart(link: LinkRate) -> None:
    rng = np.random.default_rng(7)
    looked_at = 0
    where = waits_for_data(device(4, tiers={"dram": TierCapacity(10**9, link)}))
    for _ in range(300):
        layout = random_layout(rng, pinned=False)
        demand = replace(
            task("a", 10_000, 10_000, 1),
            layout=layout,
            compute_s=tuple(rng.random(layout.layer_count) ** 4 * 4e-6),
        )
        planned = on(demand, where)
        try:
            job = planned.worst.job(frozenset(), int(rng.integers(2, 7)))
        except RingTooSmall:
            continue
        looked_at += 1
        ends_s = [0.0, *np.add(job.layer_start_s, planned.worst.compute_s)]
        waits_s = np.subtract(job.layer_start_s, ends_s[:-1])
        assert waits_s.max(initial=0) * 1e9 <= planned.wait_ns / 2 + 1
    assert looked_at > 100
