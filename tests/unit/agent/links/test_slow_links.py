"""A link that is slower than planned is told to people, and to admission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.planning.shapes import device, task

from tierline_agent.links.link import Link
from tierline_agent.links.meter import DRIFT_SPANS, SPAN_NS, LinkRate
from tierline_agent.reporting.snapshot import describe_link
from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memnode import Device, Health, MemNode, MemNodeStatus, TierStatus
from tierline_api.objects.plan import Tier
from tierline_api.schema.metadata import ClusterObjectMeta
from tierline_operator.planning.from_api import capacity_of
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, Margins

PLANNED_BYTES_PER_S = 100e6


@pytest.fixture
def link() -> Iterator[Link]:
    """A link that was measured."""
    one = Link("h2d")
    one.meter.planned = LinkRate(2 * PLANNED_BYTES_PER_S, PLANNED_BYTES_PER_S, 0.0)
    yield one
    one.close()


def copies(link: Link, share: float) -> None:
    """Copies of 1 MB at a share of the planned rate, for as long as it takes to notice."""
    took_ns = round(1e6 / PLANNED_BYTES_PER_S / share * 1e9)
    for _ in range((DRIFT_SPANS + 1) * SPAN_NS // took_ns):
        link.account(10**6, took_ns)


def offered(link: Link, devices: int = 1) -> tuple[Health, DeviceCapacity]:
    """The health of the link in its MemNode, and what the planner makes of that.

    `devices` take turns on it.
    """
    described = describe_link(link, "cpu", devices)
    assert described is not None
    status = MemNodeStatus(
        devices=(
            Device(
                name="cpu",
                kind=DeviceKind.CPU,
                product="x",
                fast_bytes=device(5).fast_bytes,
                extent_bytes=1 << 20,
            ),
        ),
        tiers=(TierStatus(name=Tier.DRAM, capacity_bytes=1 << 40),),
        links=(described,),
    )
    node = MemNode(metadata=ClusterObjectMeta(name="here"), status=status)
    capacity = capacity_of(node, status.devices[0], Margins(), dispatch_s=0, gate_s=0)
    return described.health, capacity


def test_admission_is_asked_again_with_what_a_slow_link_does_now(link: Link) -> None:
    told: list[Link] = []
    link.on_drift = told.append
    streamed = [replace(task("streams", 200, 150, 20), tiers=("dram",))]
    health, before = offered(link)
    assert (health, plan(streamed, before).ok) == (Health.HEALTHY, True)
    copies(link, 0.5)
    health, slow = offered(link)
    assert told == [link]
    assert slow.tiers["dram"].link.bandwidth_bytes_per_s == pytest.approx(0.5e8, rel=0.01)
    assert (health, plan(streamed, slow).ok) == (Health.DEGRADED, False)
    copies(link, 1.0)
    assert offered(link) == (Health.HEALTHY, before)
    assert told == [link]


def test_the_typical_rate_is_shown_and_the_worst_is_planned_with(link: Link) -> None:
    described = describe_link(link, "cpu", 1)
    assert described is not None
    assert described.typical_bandwidth == 2 * described.bandwidth == 2 * PLANNED_BYTES_PER_S


def test_the_turns_of_other_devices_are_not_offered(link: Link) -> None:
    _, alone = offered(link)
    _, shared = offered(link, devices=3)
    full, small = 1 << 20, 1000
    copy_s = alone.tiers["dram"].link.copy_s
    assert shared.tiers["dram"].link.copy_s(full) == pytest.approx(3 * copy_s(full))
    # a small extent waits for full ones of the others
    assert shared.tiers["dram"].link.copy_s(small) == pytest.approx(copy_s(2 * full + small))
    streamed = [replace(task("streams", 200, 190, 20), tiers=("dram",))]
    assert plan(streamed, alone).ok
    assert not plan(streamed, shared).ok
