"""The PMEM tier on a real /dev/dax0.0, through reboots, losses of power and corruption.

One backing file lives through all boots, in the order in which its story is told below; a boot
takes seconds, so each does many checks (inside/store_checks.py).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devdax import guest
from tests.devdax.backing import DATA_OFFSET, make_backing
from tests.devdax.initramfs import REPOSITORY
from tests.faults.store_folders import store_folder
from tests.faults.store_writer import extent

from tierline_agent.tiers.format import Geometry, lay_out

DEVICE_BYTES = 64 << 20
EXTENT_BYTES = 64 << 10
STORE_BYTES = 4 << 20
FIRST_PUTS = 12

FILES = {
    "job/main.py": REPOSITORY / "tests/devdax/inside/store_checks.py",
    "job/store_writer.py": REPOSITORY / "tests/faults/store_writer.py",
    "tierline/tierline_agent": REPOSITORY / "nodeagent/tierline_agent",
}
HALT_IN_CONTENT = 3  # of a used slot, after: record FREE, flush

Arguments = dict[str, object]


class Machine:
    """The guest with its persistent memory, and what must be in it."""

    def __init__(self, folder: Path) -> None:
        self.backing = folder / "nvdimm"
        make_backing(self.backing, DEVICE_BYTES)
        self.disk = folder / "disk"
        self.disk.write_bytes(bytes(8 << 20))
        self.expected: set[int] = set()
        self.next = 0

    def boot(
        self,
        *,
        kill_at: tuple[str, object] | None = None,
        caches_persist: bool = False,
        **arguments: object,
    ) -> guest.Report:
        """One life; what it says it stored is expected from then on."""
        defaults: Arguments = {
            "first": False,
            "caches_persist": caches_persist,
            "expected": sorted(self.expected),
            "corrupt": [],
            "lost": [],
            "next": self.next,
            "puts": 0,
            "then": "end",
        }
        report = guest.boot(
            self.backing,
            FILES,
            defaults | arguments,
            kill_at=kill_at,
            disk=self.disk,
            caches_persist=caches_persist,
        )
        for said in report.objects:
            if isinstance(stored := said.get("stored"), int):
                self.expected.add(stored)
                self.next = stored + 1
            if isinstance(released := said.get("released"), int):
                self.expected.discard(released)
        return report


@pytest.fixture
def machine() -> Iterator[Machine]:
    with store_folder("disk") as folder:
        yield Machine(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_store_on_devdax_lives_through_reboots_power_losses_and_corruption(
    machine: Machine,
) -> None:
    # Allocation: the device's traps, a blank medium formatted, extents stored.
    report = machine.boot(first=True, puts=FIRST_PUTS)
    assert report.status == 0, str(report)
    assert len(report.values("passed")) == 9, str(report)
    assert len(machine.expected) == FIRST_PUTS

    # All of it survives the reboot; then power goes at no chosen moment, slots being used again.
    last = machine.next + 70
    report = machine.boot(then="go on", kill_at=("stored", last), caches_persist=True)
    assert last in report.values("stored"), str(report)
    assert report.values("released"), str(report)

    # All of that survives; then power goes in the middle of an extent's content.
    machine.next += 1  # one more may have been stored before the power went
    report = machine.boot(then=HALT_IN_CONTENT, kill_at=("halted", True))
    assert report.values("halted"), str(report)

    # The host flips a bit in one extent's content and in both records of another;
    # neither these nor the torn extent may be read.
    torn = machine.next
    corrupt, lost = sorted(machine.expected)[5:7]
    _flip(
        machine.backing,
        _place(machine.backing, corrupt) + extent(corrupt, EXTENT_BYTES).nbytes // 2,
    )
    slot = _slot(_place(machine.backing, lost))
    for copy in range(2):
        _flip(machine.backing, DATA_OFFSET + _geometry().record_offset(slot, copy) + 30)
    machine.expected.discard(lost)
    report = machine.boot(corrupt=[corrupt], lost=[lost, torn])
    assert report.status == 0, str(report)


def _geometry() -> Geometry:
    geometry = lay_out(EXTENT_BYTES, STORE_BYTES)
    assert geometry is not None
    return geometry


def _place(backing: Path, number: int) -> int:
    """Where in the file an extent's content lies; it must be there once."""
    start = bytes(extent(number, EXTENT_BYTES)[:64])
    with backing.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        place = content.find(start)
        assert place > 0
        assert content.find(start, place + 1) == -1
        return place


def _slot(place: int) -> int:
    return (place - DATA_OFFSET - _geometry().data_offset) // EXTENT_BYTES


def _flip(backing: Path, offset: int) -> None:
    with backing.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
