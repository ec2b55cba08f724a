"""MemNode: what one node has: devices, tiers, measured links; written by that node's agent only."""

from collections import Counter
from collections.abc import Hashable
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import AwareDatetime, Field, field_validator

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.extents import EXTENT_SIZES
from tierline_api.devices.fast_memory import OVERLAY
from tierline_api.devices.preemption import Scheduling
from tierline_api.objects.conditions import Conditions
from tierline_api.objects.plan import Tier
from tierline_api.schema.base import API_VERSION, ApiModel, Check, Rule
from tierline_api.schema.checks import Holds, at_least, at_most
from tierline_api.schema.fields import Count, Label, PositiveCount, Seconds, Text, differ
from tierline_api.schema.metadata import ClusterObjectMeta
from tierline_api.schema.quantities import size_for_people


class LinkName(StrEnum):
    """A directed path between fast memory and a tier."""

    H2D = "h2d"
    D2H = "d2h"
    PMEM_READ = "pmem-read"
    PMEM_WRITE = "pmem-write"
    NVME_READ = "nvme-read"
    NVME_WRITE = "nvme-write"


READ_LINK = {
    Tier.DRAM: LinkName.H2D,
    Tier.PMEM: LinkName.PMEM_READ,
    Tier.NVME: LinkName.NVME_READ,
}
"""The link through which the extents of a tier come into fast memory."""


class Health(StrEnum):
    """The state of a node or of a part of it."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    FAILED = "Failed"


class Device(ApiModel):
    """A device of the node."""

    checks: ClassVar[tuple[Check, ...]] = (
        at_most("fast_bytes", "memory_bytes", "configure less as device.fast_bytes"),
        at_most("extent_bytes", "fast_bytes", "configure more as device.fast_bytes"),
        at_most("context_bytes", "memory_bytes", "measure the device again"),
        Holds["Device"](
            "context_bytes",
            lambda device: not device.context_bytes or device.memory_bytes is not None,
            "!has(self.contextBytes) || self.contextBytes == 0 || has(self.memoryBytes)",
            "contextBytes are taken from memoryBytes, which is absent; write it too",
        ),
    )

    name: Label
    """Name on its node, such as cpu or gpu-0; Kubernetes wants a DNS label in allocations."""
    kind: DeviceKind
    """cpu or cuda."""
    product: Annotated[str, Field(min_length=1, max_length=128)]
    """The product name."""
    uuid: Annotated[str, Field(min_length=1, max_length=96)] | None = None
    """A GPU's name for itself, as NVML writes it."""
    memory_bytes: Count | None = None
    """All memory that the device has, in bytes."""
    context_bytes: Count | None = None
    """What each process on it costs in addition to what it allocates, in bytes."""
    fast_bytes: PositiveCount
    """Fast memory that tasks share, in bytes."""
    used_bytes: Count = 0
    """Fast memory that admitted plans take, in bytes."""
    extent_bytes: Annotated[PositiveCount, Field(json_schema_extra={"enum": list(EXTENT_SIZES)})]
    """Size of an extent in bytes."""
    workspaces_overlay: bool | None = None
    """Whether its programs leave the memory of their workspaces to each other between jobs. If not,
    fast memory holds all workspaces, else the largest; absent is yes on cpu and no on cuda."""
    preemption: Annotated[tuple[Scheduling, ...], Field(max_length=2)] = ()
    """How its jobs can give it away where a layer ends; none if they keep it to their end."""
    training: bool = False
    """Whether tasks with `training` run on it."""
    health: Health = Health.HEALTHY
    """Whether jobs can run on it."""

    @property
    def overlays(self) -> bool:
        """Say whether the largest workspace stands for all of them."""
        known = self.workspaces_overlay
        return OVERLAY[self.kind] if known is None else known

    @field_validator("extent_bytes")
    @classmethod
    def _power_of_two(cls, extent_bytes: int) -> int:
        if extent_bytes not in EXTENT_SIZES:
            raise ValueError(
                f"{extent_bytes} bytes is no extent size; write a power of two"
                " from 65536 (64 KiB) to 1073741824 (1 GiB)"
            )
        return extent_bytes


class Durability(StrEnum):
    """What the content of a tier survives."""

    AGENT = "Agent"
    REBOOT = "Reboot"
    POWER_LOSS = "PowerLoss"


class TierStatus(ApiModel):
    """A tier of the node."""

    name: Tier
    """The tier."""
    capacity_bytes: Count
    """What it can hold, in bytes."""
    used_bytes: Count = 0
    """What it holds, in bytes."""
    durability: Durability | None = None
    """What its content survives: the end of the agent only, a reboot, or a loss of power. CXL and
    soft-reserved memory survive no reboot."""
    health: Health = Health.HEALTHY
    """Whether it can be read and written."""


class Link(ApiModel):
    """A measured link."""

    checks: ClassVar[tuple[Check, ...]] = (
        at_least("typical_bandwidth", "bandwidth", "measure the link again"),
    )

    name: LinkName
    """The path."""
    device: Label
    """The device at its end."""
    bandwidth: PositiveCount
    """The worst measured bandwidth in bytes per second, also with all devices; plans use it."""
    typical_bandwidth: PositiveCount | None = None
    """The median of the measured bandwidth in bytes per second."""
    overhead_s: Seconds
    """Fixed time of one transfer, in addition to that of its bytes."""
    devices: Annotated[PositiveCount, Field(le=64)] = 1
    """How many devices read through it in turns: each is promised its part of the bandwidth."""
    health: Health = Health.HEALTHY
    """Degraded when it is slower than what plans were made with."""


class MemNodeSpec(ApiModel):
    """Nothing yet: a node is described by its status."""


class ShownNode(ApiModel):
    """Figures of the status as people read them, in whole Mi, rounded up."""

    devices: Text | None = None
    """How many of which."""
    fast_memory: Text | None = None
    """Fast memory that tasks share, of all devices."""
    used: Text | None = None
    """Fast memory that admitted plans take, of all devices."""
    tiers: Text | None = None
    """Of each tier what it holds and can hold."""


def _differ(*names: Hashable) -> bool:
    return len(set(names)) == len(names)


class MemNodeStatus(ApiModel):
    """What the node has."""

    checks: ClassVar[tuple[Check, ...]] = (
        Holds["MemNodeStatus"](
            "devices",
            lambda status: _differ(*(one.name for one in status.devices)),
            differ("self.devices", "name"),
            "devices must not repeat a name; name each device once",
        ),
        Holds["MemNodeStatus"](
            "tiers",
            lambda status: _differ(*(one.name for one in status.tiers)),
            differ("self.tiers", "name"),
            "tiers must not repeat a name; name each tier once",
        ),
        Holds["MemNodeStatus"](
            "links",
            lambda status: _differ(*((one.name, one.device) for one in status.links)),
            differ("self.links", "name", "device"),
            "links must not repeat a path of a device; name each once",
        ),
    )

    devices: Annotated[tuple[Device, ...], Field(max_length=64)] = ()
    """Its devices."""
    tiers: Annotated[tuple[TierStatus, ...], Field(max_length=3)] = ()
    """Its tiers."""
    links: Annotated[tuple[Link, ...], Field(max_length=512)] = ()
    """Its links, each measured."""
    shown: ShownNode | None = None
    """For people."""
    agent_version: Text | None = None
    """Version of the node agent."""
    health: Health = Health.HEALTHY
    """The worst health of its parts."""
    last_seen: AwareDatetime | None = None
    """When its agent gave a sign of life last."""
    conditions: Conditions = ()
    """Healthy, and Ready: whether pods can start here. Unknown where the agent is silent."""


class MemNode(ApiModel):
    """The inventory of one node: devices, tiers, and links as measured."""

    cel_rules: ClassVar[tuple[Rule, ...]] = ()

    api_version: Literal["tierline.io/v1alpha1"] = API_VERSION
    """tierline.io/v1alpha1."""
    kind: Literal["MemNode"] = "MemNode"
    """MemNode."""
    metadata: ClusterObjectMeta
    """The name of the node."""
    spec: MemNodeSpec = MemNodeSpec()
    """Nothing yet."""
    status: MemNodeStatus = MemNodeStatus()
    """What the node has; written by its agent."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.metadata.name

    @property
    def shown(self) -> ShownNode:
        """What its status is to show of itself."""
        status = self.status
        products = Counter(device.product for device in status.devices)
        tiers = (
            f"{tier.name.value} {size_for_people(tier.used_bytes)}"
            f"/{size_for_people(tier.capacity_bytes)}"
            for tier in status.tiers
        )
        many = (f"{count} x {product}" for product, count in products.items())
        return ShownNode(
            devices=", ".join(many)[:253],
            fast_memory=size_for_people(sum(device.fast_bytes for device in status.devices)),
            used=size_for_people(sum(device.used_bytes for device in status.devices)),
            tiers=", ".join(tiers),
        )

    def device(self, name: str) -> Device | None:
        """Return the device called `name`, or None."""
        return next((device for device in self.status.devices if device.name == name), None)

    def tier(self, name: Tier) -> TierStatus | None:
        """Return the tier `name`, or None."""
        return next((tier for tier in self.status.tiers if tier.name == name), None)

    def read_link(self, tier: Tier, device: str) -> Link | None:
        """Return the link through which extents come from `tier` into `device`, or None."""
        name = READ_LINK[tier]
        return next((k for k in self.status.links if (k.name, k.device) == (name, device)), None)
