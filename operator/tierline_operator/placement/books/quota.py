"""Namespaced quotas: what plans take of a device, and whether the sum stays within every MemQuota.

Fast memory is counted as planned: resident extents of all tasks, what preempted jobs keep, and on
each device the largest ring and the workspaces, as they share memory there or not. Equal weights
count once in a tier of a node. A link's share is the time that streaming needs at worst, per
device. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tierline_api.objects.memquota import MemQuota
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.refusals.reasons import mebibytes
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.working_memory import workspace_bytes


@dataclass(frozen=True)
class Usage:
    """The use of one device by the tasks of one namespace."""

    fast_bytes: int = 0
    tier_bytes: dict[str, int] = field(default_factory=dict)
    link_share: dict[str, float] = field(default_factory=dict)
    """Share of the time of each tier's link."""

    def exceeds(self, other: Usage) -> bool:
        """Whether it is more than `other` in anything."""
        return (
            self.fast_bytes > other.fast_bytes
            or any(size > other.tier_bytes.get(t, 0) for t, size in self.tier_bytes.items())
            or any(part > other.link_share.get(t, 0) for t, part in self.link_share.items())
        )


def total(parts: Iterable[Usage]) -> Usage:
    """The use of several devices together; of their links the share of the one used most."""
    fast_bytes = 0
    tiers: dict[str, int] = defaultdict(int)
    share: dict[str, float] = {}
    for part in parts:
        fast_bytes += part.fast_bytes
        for tier, size in part.tier_bytes.items():
            tiers[tier] += size
        for tier, of in part.link_share.items():
            share[tier] = max(of, share.get(tier, 0.0))
    return Usage(fast_bytes, dict(tiers), share)


def usage_of(
    planned: Sequence[tuple[TaskDemand, TaskPlan]], device: DeviceCapacity
) -> dict[str, Usage]:
    """The use of one device by each namespace, by its name."""
    by_domain: dict[str, list[tuple[TaskDemand, TaskPlan]]] = defaultdict(list)
    for demand, plan in planned:
        by_domain[demand.domain].append((demand, plan))
    return {domain: _usage(members, device) for domain, members in by_domain.items()}


def tier_bytes(planned: Iterable[tuple[TaskDemand, TaskPlan]]) -> dict[str, int]:
    """Bytes in each tier; equal weights of a namespace count once."""
    taken: dict[str, int] = defaultdict(int)
    seen: set[tuple[str, str]] = set()
    for demand, plan in planned:
        key = (demand.domain, demand.weights_digest)
        if demand.weights_digest and key in seen:
            continue
        seen.add(key)
        for run in plan.homes:
            taken[run.tier] += run.extents * plan.extent_bytes
    return dict(taken)


def _usage(planned: Sequence[tuple[TaskDemand, TaskPlan]], device: DeviceCapacity) -> Usage:
    resident = sum(
        len(plan.resident_extents) * plan.extent_bytes + plan.parked_bytes for _, plan in planned
    )
    ring = max(plan.ring_extents * plan.extent_bytes for _, plan in planned)
    demands = [demand for demand, _ in planned]
    workspaces = workspace_bytes(demands, overlay=device.workspaces_overlay)
    share: dict[str, float] = defaultdict(float)
    for demand, plan in planned:
        held = frozenset(plan.resident_extents)
        at = 0
        for run in plan.homes:
            streamed = sum(1 for extent in range(at, at + run.extents) if extent not in held)
            at += run.extents
            copy_s = device.tiers[run.tier].link.copy_s(plan.extent_bytes)
            share[run.tier] += streamed * copy_s * device.margins.bandwidth / demand.period_s
    return Usage(resident + ring + workspaces, tier_bytes(planned), dict(share))


@dataclass(frozen=True)
class Excess:
    """Which quota would be exceeded, and by how much."""

    sentence: str
    missing_bytes: int | None


def excess(
    quotas: Iterable[MemQuota], namespace: str, elsewhere: Iterable[Usage], here: Usage
) -> Excess | None:
    """The first quota that `here` would exceed in addition to what is used `elsewhere`, if any."""
    others = list(elsewhere)
    for quota in sorted(quotas, key=lambda quota: quota.name):
        spec, named = quota.spec, f"MemQuota/{quota.name} of namespace {namespace}"
        if spec.fast_memory_bytes is not None:
            need = here.fast_bytes + sum(usage.fast_bytes for usage in others)
            if need > spec.fast_memory_bytes:
                return _bytes(named, "of fast memory", spec.fast_memory_bytes, need)
        for tier in spec.tiers:
            name = tier.tier.value
            need = sum(usage.tier_bytes.get(name, 0) for usage in (here, *others))
            if need > tier.capacity_bytes:
                return _bytes(named, f"in the tier {name}", tier.capacity_bytes, need)
        if spec.link_percent is not None:
            for name, share in sorted(here.link_share.items()):
                if share * 100 > spec.link_percent:
                    return Excess(
                        f"{named} allows {spec.link_percent} % of a link's time and the tasks need "
                        f"{share:.1%} of that from {name}; raise linkPercent or use longer periods",
                        None,
                    )
    return None


def _bytes(named: str, where: str, limit: int, need: int) -> Excess:
    return Excess(
        f"{named} allows {mebibytes(limit)} {where} and the tasks need {mebibytes(need)}: "
        f"{mebibytes(need - limit)} are missing; raise the quota or remove a task",
        need - limit,
    )
