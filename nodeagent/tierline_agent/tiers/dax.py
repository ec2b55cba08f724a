"""The memory of a devdax device, as sysfs tells: its size, and what its content survives.

`/dev/daxX.Y` is how Linux gives out memory whose use it leaves to others. Where it comes from is
seen by what it lies under:

| it lies under                                 | memory        | content survives        |
|-----------------------------------------------|---------------|-------------------------|
| `ndbusN` (NVDIMM, persistent CXL, `memmap=`)  | persistent    | a reboot, or power loss |
| `dax_regionN` of a CXL region                 | CXL           | no reboot               |
| `hmem.N` (what the firmware set apart)        | soft-reserved | no reboot               |
| anything else                                 | unknown       | not counted on          |

What survives no reboot holds after each one whatever the memory came up with. That is nobody's, so
it may be formatted, once in each boot; of unknown memory that is not said.

A device whose driver is `kmem` is ordinary memory of a NUMA node ("system-ram"), as distributions
set them up, and has no file in /dev; one in famfs mode cannot be mapped as devdax either.

Nothing here opens a device. Documentation/ABI/testing/sysfs-bus-dax, drivers/dax, ndctl's daxctl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tierline_agent.tiers.medium import Durability

SYSFS: Final = Path("/sys")
_NAME: Final = re.compile(r"dax\d+\.\d+")
_UNDER: Final = (
    (re.compile(r"ndbus\d+"), "persistent memory", False),
    (re.compile(r"dax_region\d+"), "CXL memory", True),
    (re.compile(r"hmem\.\d+"), "soft-reserved memory", True),
)


@dataclass(frozen=True)
class Dax:
    """A devdax device."""

    memory: str
    """The kind of device, in words."""
    volatile: bool
    """Whether a reboot leaves anything in it."""
    flushes_itself: bool
    """Whether the caches are within what survives a loss of power (eADR)."""
    size_bytes: int
    align_bytes: int

    def durability(self, *, flushed: bool) -> Durability:
        """The durability of content, if cache lines are written back or not."""
        if self.volatile or self.memory == _UNKNOWN:
            return Durability.PROCESS
        return Durability.POWER_LOSS if flushed or self.flushes_itself else Durability.REBOOT

    def mode(self, *, flushed: bool) -> str:
        """How it is used, in words fit for a status page."""
        if self.volatile:
            return f"mapped devdax, {self.memory}, volatile"
        if self.flushes_itself and not flushed:
            return f"mapped devdax, {self.memory}, caches persistent (eADR)"
        return f"mapped devdax, {self.memory}, cache lines {'' if flushed else 'not '}flushed"


_UNKNOWN: Final = "memory of unknown kind"


def look(device: Path) -> Dax:
    """Look at a device's folder in sysfs, links resolved. Raises OSError or ValueError."""
    size_bytes = int((device / "size").read_text())
    align_bytes = int((device / "align").read_text())
    memory, volatile = _kind_of(device)
    return Dax(memory, volatile, not volatile and _is_eadr(device), size_bytes, align_bytes)


def _kind_of(device: Path) -> tuple[str, bool]:
    for folder in device.parents:
        for name, memory, volatile in _UNDER:
            if name.fullmatch(folder.name):
                return memory, volatile
    return _UNKNOWN, False


def _is_eadr(device: Path) -> bool:
    domains = (folder / "persistence_domain" for folder in device.parents)
    found = next((domain for domain in domains if domain.is_file()), None)
    return found is not None and found.read_text().strip() == "cpu_cache"


def why_absent(path: str, sysfs: Path | None = None) -> str | None:
    """Why there is no such file in /dev, and what to do; None if it is no devdax that there is."""
    name = Path(path).name
    device = (sysfs or SYSFS) / "bus" / "dax" / "devices" / name
    if not _NAME.fullmatch(name) or not device.exists():
        return None
    driver = device / "driver"
    mode = driver.resolve().name if driver.exists() else ""
    if mode == "kmem":
        return (
            f"{name} is in system-ram mode{_node(device)}, where it is memory of everybody's; run "
            f"`daxctl reconfigure-device --mode=devdax --force {name}`"
        )
    if mode == "":
        return f"{name} is disabled; run `daxctl enable-device {name}`"
    if mode == "device_dax":
        return f"{name} is there, but not its file; let the agent see /dev of the node"
    return (
        f"{name} is used by the driver {mode}; run "
        f"`daxctl reconfigure-device --mode=devdax --force {name}`"
    )


def _node(device: Path) -> str:
    try:
        node = int((device / "target_node").read_text())
    except (OSError, ValueError):
        return ""
    return f" (NUMA node {node})" if node >= 0 else ""
