"""What memory a devdax is, by trees as sysfs has them for each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierline_agent.tiers import MediumUnusable
from tierline_agent.tiers import dax as dax_module
from tierline_agent.tiers.dax import Dax, look, why_absent
from tierline_agent.tiers.media import open_medium
from tierline_agent.tiers.medium import Durability

NVDIMM = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0/dax0.1/dax0.0"
CXL_PERSISTENT = "devices/platform/ACPI0017:00/root0/nvdimm-bridge0/ndbus1/region1/dax1.0/dax1.0"
CXL = "devices/platform/ACPI0017:00/root0/decoder0.0/region3/dax_region3/dax3.0"
SOFT_RESERVED = "devices/platform/hmem.1/dax1.0"
UNKNOWN = "devices/platform/somewhere/dax0.0"


def device(sysfs: Path, at: str, driver: str = "device_dax", **more: str) -> Path:
    """Make a device's folder; its `driver` is bound."""
    folder = sysfs / at
    folder.mkdir(parents=True)
    files = {"size": "4294967296\n", "align": "2097152\n", "target_node": "2\n"} | more
    for name, content in files.items():
        (folder / name).write_text(content)
    listed = sysfs / "bus" / "dax" / "devices"
    listed.mkdir(parents=True, exist_ok=True)
    (listed / folder.name).symlink_to(folder)
    if driver:
        bound = sysfs / "bus" / "dax" / "drivers" / driver
        bound.mkdir(parents=True)
        (folder / "driver").symlink_to(bound)
    return folder


@pytest.mark.parametrize(
    ("at", "domain", "volatile", "unflushed", "told"),
    [
        (NVDIMM, "memory_controller", False, Durability.REBOOT, "persistent memory, cache lines"),
        (NVDIMM, "cpu_cache", False, Durability.POWER_LOSS, "caches persistent (eADR)"),
        (NVDIMM, "", False, Durability.REBOOT, "persistent memory"),
        (CXL_PERSISTENT, "", False, Durability.REBOOT, "persistent memory"),
        (CXL, "", True, Durability.PROCESS, "CXL memory, volatile"),
        (CXL, "cpu_cache", True, Durability.PROCESS, "CXL memory, volatile"),
        (SOFT_RESERVED, "", True, Durability.PROCESS, "soft-reserved memory, volatile"),
        (UNKNOWN, "", False, Durability.PROCESS, "memory of unknown kind"),
    ],
)
def test_what_a_device_is(
    tmp_path: Path, at: str, domain: str, volatile: bool, unflushed: Durability, told: str
) -> None:
    folder = device(tmp_path, at)
    if domain:
        (folder.parents[1] / "persistence_domain").write_text(f"{domain}\n")
    found = look(folder)
    assert isinstance(found, Dax)
    assert (found.size_bytes, found.align_bytes, found.volatile) == (4 << 30, 2 << 20, volatile)
    assert found.durability(flushed=False) == unflushed
    counts = not volatile and at != UNKNOWN
    flushed = Durability.POWER_LOSS if counts else Durability.PROCESS
    assert found.durability(flushed=True) == flushed
    assert told in found.mode(flushed=False)


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (
            "kmem",
            "dax3.0 is in system-ram mode (NUMA node 2), where it is memory of everybody's; "
            "run `daxctl reconfigure-device --mode=devdax --force dax3.0`",
        ),
        ("", "dax3.0 is disabled; run `daxctl enable-device dax3.0`"),
        ("fsdev_dax", "dax3.0 is used by the driver fsdev_dax; run `daxctl reconfigure-device"),
        ("device_dax", "dax3.0 is there, but not its file"),
    ],
)
def test_a_device_without_a_file_is_told_what_would_give_it_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, told: str
) -> None:
    device(tmp_path, CXL, driver)
    assert (why_absent("/dev/dax3.0", tmp_path) or "").startswith(told)
    monkeypatch.setattr(dax_module, "SYSFS", tmp_path)
    with pytest.raises(MediumUnusable) as refused:
        open_medium("pmem", "/dev/dax3.0")
    assert f"cannot open the pmem tier /dev/dax3.0: {told}" in str(refused.value)


def test_what_is_no_devdax_has_no_reason(tmp_path: Path) -> None:
    device(tmp_path, CXL, "kmem")
    assert why_absent("/dev/dax4.0", tmp_path) is None
    assert why_absent("/dev/nvme0n1", tmp_path) is None
    assert why_absent("/dev/dax3.0/..", tmp_path) is None
