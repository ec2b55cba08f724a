"""The state of the node as the agent reports it: the MemNode and the administrator's snapshot.

It reads and never changes anything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

from tierline_agent.context import Node
from tierline_agent.links.link import Link
from tierline_agent.registry import Task
from tierline_agent.scheduling.unit import Unit
from tierline_agent.sessions.session import Session
from tierline_agent.storage.node_tiers import Tier
from tierline_agent.tiers import Durability as Survives
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.fast_memory import OVERLAY
from tierline_api.devices.preemption import Scheduling
from tierline_api.objects.memnode import (
    Device,
    Durability,
    Health,
    LinkName,
    MemNode,
    MemNodeStatus,
    TierStatus,
)
from tierline_api.objects.memnode import Link as NodeLink
from tierline_api.objects.plan import Tier as TierName
from tierline_api.schema.metadata import ClusterObjectMeta

_OF_THE_FIRST_DEVICE = ("device", "product", "extent_bytes")
_OF_ALL_DEVICES = (
    "fast_limit_bytes",
    "fast_used_bytes",
    "fast_peak_bytes",
    "fast_start_peak_bytes",
    "fast_planned_bytes",
)


def describe_node(node: Node, name: str) -> MemNode:
    """This node as a MemNode object named `name`."""
    planned = node.registry.planned_homes()
    devices = tuple(_device_status(node, unit) for unit in node.units.values())
    tiers = tuple(_tier_status(tier, planned[tier.name]) for tier in node.storage.tiers.values())
    links = tuple(
        described
        for name in node.units
        for link, sharing in node.storage.links_of(name)
        if (described := describe_link(link, name, sharing)) is not None
    )
    parts = [
        *(device.health for device in devices),
        *(tier.health for tier in tiers),
        *(link.health for link in links),
    ]
    health = Health.HEALTHY if all(p is Health.HEALTHY for p in parts) else Health.DEGRADED
    made = MemNode(
        metadata=ClusterObjectMeta(name=name),
        status=MemNodeStatus(
            devices=devices,
            tiers=tiers,
            links=links,
            agent_version=version("tierline"),
            health=health,
        ),
    )
    status = made.status.model_copy(update={"shown": made.shown})
    return made.model_copy(update={"status": status})


def _device_status(node: Node, unit: Unit) -> Device:
    device = unit.device
    return Device(
        name=unit.name,
        kind=DeviceKind(device.kind),
        product=device.product[:128],
        uuid=device.uuid or None,
        memory_bytes=device.memory_bytes,
        context_bytes=device.context_bytes,
        fast_bytes=device.fast_bytes,
        used_bytes=node.registry.planned_bytes(unit.name),
        extent_bytes=device.extent_bytes,
        workspaces_overlay=OVERLAY[DeviceKind(device.kind)],
        preemption=tuple(Scheduling),
        training=DeviceKind(device.kind) is DeviceKind.CPU,
        health=Health.FAILED if device.lost else Health.HEALTHY,
    )


_DURABILITY: Final = {
    Survives.PROCESS: Durability.AGENT,
    Survives.REBOOT: Durability.REBOOT,
    Survives.POWER_LOSS: Durability.POWER_LOSS,
}


def _tier_status(tier: Tier, planned_extents: int) -> TierStatus:
    """A tier and the part that is spoken for: content in use or, before it is loaded, planned.

    Content that nobody refers to is not counted: it goes when its place is needed.
    """
    statistics, extent_bytes = tier.store.statistics(), tier.store.extent_bytes
    sound = statistics.unsound == 0 and statistics.retired == 0
    return TierStatus(
        name=TierName(tier.name),
        capacity_bytes=(statistics.slots - statistics.retired) * extent_bytes,
        used_bytes=max(statistics.referenced, planned_extents) * extent_bytes,
        durability=_DURABILITY[tier.store.medium.durability],
        health=Health.HEALTHY if sound else Health.DEGRADED,
    )


def describe_link(link: Link, device: str, devices: int) -> NodeLink | None:
    """A link to `device` with what plans can count on now; None before it was measured.

    `devices` is how many take turns on it.
    """
    rate, offered = link.rate(), link.meter.offered_bytes_per_s
    if rate is None or offered is None:
        return None
    return NodeLink(
        name=LinkName(link.name),
        device=device,
        bandwidth=max(1, int(offered)),
        typical_bandwidth=max(1, int(rate.bandwidth_bytes_per_s)),
        overhead_s=rate.overhead_s,
        devices=devices,
        health=Health.DEGRADED if link.meter.drifted else Health.HEALTHY,
    )


def snapshot(node: Node, sessions: Iterable[Session]) -> dict[str, Any]:
    """Everything that changes while tasks run, as the administrator's socket answers it."""
    by_task: dict[str, list[Session]] = {}
    for session in sessions:
        by_task.setdefault(session.client.task.name, []).append(session)
    start = node.registry.start
    devices = [_describe_unit(node, unit) for unit in node.units.values()]
    extents: Counter[str] = Counter()
    for device in devices:
        extents.update(device["extents"])
    return {
        "instance": node.instance,
        "now_ns": time.monotonic_ns(),
        **{name: devices[0][name] for name in _OF_THE_FIRST_DEVICE},
        **{name: sum(device[name] for device in devices) for name in _OF_ALL_DEVICES},
        "extents": dict(extents),
        "devices": devices,
        "recovering": node.recovery.pending,
        "start": None
        if start is None
        else {"epoch_ns": start.epoch_ns, "until_ns": start.until_ns},
        "tasks": [describe_task(task, by_task.get(task.name, [])) for task in node.registry],
        "tiers": [_describe_tier(tier) for tier in node.storage.tiers.values()],
        "links": [_describe_link(link) for link in node.storage.links],
    }


def _describe_unit(node: Node, unit: Unit) -> dict[str, Any]:
    device, memory = unit.device, unit.memory
    return {
        "name": unit.name,
        "device": device.kind,
        "product": device.product,
        "uuid": device.uuid,
        "lost": device.lost,
        "extent_bytes": device.extent_bytes,
        "memory_bytes": device.memory_bytes,
        "context_bytes": device.context_bytes,
        "unswappable_bytes": memory.unswappable_bytes,
        "fast_limit_bytes": memory.limit_bytes,
        "fast_used_bytes": memory.used_bytes,
        "fast_peak_bytes": memory.peak_bytes,
        "fast_start_peak_bytes": memory.start_peak_bytes,
        "fast_planned_bytes": node.registry.planned_bytes(unit.name),
        "parked_bytes": sum(memory.parked.values()),
        "waiting_jobs": unit.leases.waiting,
        "scheduling": node.registry.scheduling(unit.name),
        "extents": {state.value: n for state, n in unit.pool.count_by_state().items()},
    }


def describe_task(task: Task, sessions: list[Session]) -> dict[str, Any]:
    """One task of the snapshot."""
    arenas = [arena for session in sessions for arena in session.client.arenas.values()]
    per_tier: Counter[str] = Counter()
    for arena in arenas:
        per_tier.update(arena.bytes_per_tier())
    return {
        "name": task.name,
        "domain": task.registration.domain,
        "device": task.device,
        "clients": [
            {
                "pid": session.client.process.pid,
                "name": session.client.process_name,
                "ready": session.status.ready,
            }
            for session in sessions
        ],
        "ready": any(session.status.ready for session in sessions),
        "arenas": len(arenas),
        "sealed_arenas": sum(arena.sealed for arena in arenas),
        "weight_bytes": sum(arena.weight_bytes for arena in arenas),
        "stored_bytes": sum(per_tier.values()),
        "stored_extents": sum(copy is not None for arena in arenas for copy in arena.stored),
        "extents": sum(arena.extent_count for arena in arenas),
        "planned_extents": task.plan.extent_count,
        "tier_bytes": per_tier,
        "unswappable_bytes": sum(
            session.client.unit.memory.unswappable_of(task.name, session.client.token)
            for session in sessions
        ),
        **task.counters.as_json(),
        "preemptible": task.registration.preemption is not None,
        "predicted_job_s": task.plan.predicted_job_time_s,
        "predicted_response_s": task.plan.predicted_response_time_s,
        "notices": task.notices,
        "reads_unseen": task.reads_unseen,
        "profiled_layers": sum(known.count(1) for known in task.profiled.values()),
    }


def _describe_tier(tier: Tier) -> dict[str, Any]:
    statistics = tier.store.statistics()
    return {
        "name": tier.name,
        "path": str(tier.store.medium.path),
        "mode": tier.store.medium.mode,
        "durability": _DURABILITY[tier.store.medium.durability].value,
        "capacity_bytes": statistics.slots * tier.store.extent_bytes,
        "used_bytes": statistics.stored_bytes,
        "slots": statistics.slots,
        "referenced": statistics.referenced,
        "corruptions": statistics.corruptions,
        "failures": statistics.failures,
    }


def _describe_link(link: Link) -> dict[str, Any]:
    meter, rate = link.meter, link.rate()
    return {
        "name": link.name,
        "device": link.device,
        "bandwidth_bytes_per_s": rate.bandwidth_bytes_per_s if rate else 0.0,
        "worst_bandwidth_bytes_per_s": rate.worst_bytes_per_s if rate else 0.0,
        "overhead_s": rate.overhead_s if rate else 0.0,
        "recent_bytes_per_s": meter.average_bytes_per_s,
        "recent_worst_bytes_per_s": meter.worst_bytes_per_s,
        "bytes_total": meter.bytes_total,
        "transfers_total": meter.transfers_total,
        "errors_total": meter.errors_total,
        "busy_s": link.busy_ns() / 1e9,
        "busy_share": link.busy_share(),
        "drifted": meter.drifted,
    }
