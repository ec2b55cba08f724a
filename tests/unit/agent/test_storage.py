"""What a load costs the links that plans are made with: nothing that is not theirs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.config import TierSettings
from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.links.meter import LinkMeter, LinkRate
from tierline_agent.storage import probe
from tierline_agent.storage.node_tiers import Storage
from tierline_agent.tiers.memory import scratch

EXTENT_BYTES = 64 << 10
DEVICE = "cpu"
CONTENT = bytes(range(256)) * 200


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """A dram and an nvme tier for one device."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        tiers = [
            TierSettings(name="dram", path=f"{memory}/dram", size_bytes=4 << 20),
            TierSettings(name="nvme", path=str(tmp_path / "nvme"), size_bytes=4 << 20),
        ]
        device = CpuDevice(EXTENT_BYTES, 16 * EXTENT_BYTES)
        opened = Storage.open(tiers, {DEVICE: device}, EXTENT_BYTES, 64)
        yield opened
        opened.close()
        device.close()


def staged() -> memoryview:
    """What a client has put into staging memory."""
    return memoryview(CONTENT)


@pytest.mark.parametrize(("tier", "writes"), [("dram", 0), ("nvme", 1)])
@in_loop
async def test_of_a_load_the_writes_to_a_medium_and_the_reads_from_it_are_measured(
    storage: Storage, tier: str, writes: int
) -> None:
    links = storage.tiers[tier]
    stored = await storage.put("domain", tier, staged)
    again = await storage.put("domain", tier, staged)  # is there already
    assert stored == again
    assert links.write.meter.transfers_total == writes
    assert links.write.meter.bytes_total == writes * len(CONTENT)

    target = scratch(EXTENT_BYTES)
    length = await storage.fetch(DEVICE, "domain", stored, 1, lambda: target[: len(CONTENT)])
    assert bytes(target[:length]) == CONTENT
    extent = storage._devices[DEVICE].create_extent()
    await storage.fill(DEVICE, "domain", stored, extent)
    storage._devices[DEVICE].destroy_extent(extent)
    assert links.reads[DEVICE].meter.transfers_total == 2


@in_loop
async def test_d2h_is_measured_by_saving_extents(storage: Storage) -> None:
    await probe.measure(storage, storage._devices)
    link = storage.tiers["dram"].write
    assert link.name == "d2h"
    assert link.meter.bytes_total == link.meter.transfers_total * EXTENT_BYTES
    rate = link.rate()
    assert rate is not None
    assert 0 < rate.worst_bytes_per_s <= rate.bandwidth_bytes_per_s


class Watched(LinkMeter):
    """Knows what its samples are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled: list[int | None] = []

    def restart(self) -> None:
        self.sampled.clear()
        super().restart()

    def ended(self, now_ns: int, size_bytes: int | None) -> None:
        self.sampled.append(size_bytes)
        super().ended(now_ns, size_bytes)


@in_loop
async def test_a_link_is_measured_by_full_extents_alone(storage: Storage) -> None:
    meter = storage.tiers["dram"].reads[DEVICE].meter = Watched()
    await probe.measure(storage, storage._devices)
    assert set(meter.sampled) == {EXTENT_BYTES}


@pytest.mark.parametrize(
    ("median", "worst", "overhead_s", "taken"),
    [
        (2e9, 1e9, 1e-5, True),
        (2e9, 2e9, 0.0, True),
        (1e9, 2e9, 1e-5, False),
        (1e9, 0.0, 1e-5, False),
        (float("inf"), 1e9, 1e-5, False),
        (float("nan"), 1e9, 1e-5, False),
        (2e9, 1e9, -1e-5, False),
        (2e9, 1e9, float("nan"), False),
    ],
)
def test_rates_that_contradict_each_other_are_measured_again(
    storage: Storage, tmp_path: Path, median: float, worst: float, overhead_s: float, taken: bool
) -> None:
    path = tmp_path / "rates"
    for link in storage.links:
        link.meter.planned = LinkRate(median, worst, overhead_s)
    probe.save(storage, path)
    for link in storage.links:
        link.meter.planned = None
    assert probe.restore(storage, path) is taken
