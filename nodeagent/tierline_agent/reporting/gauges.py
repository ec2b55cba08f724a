"""Brings the metrics up to what the parts of the node say now. It changes nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tierline_agent.concurrency import faults
from tierline_agent.context import Node
from tierline_agent.links.link import Link
from tierline_agent.registry import Task
from tierline_agent.scheduling.unit import Unit
from tierline_agent.sessions.session import Session
from tierline_agent.storage.node_tiers import Tier
from tierline_agent.telemetry.metrics import Metrics, TaskKey, TaskMetrics


def update(node: Node, sessions: Iterable[Session]) -> None:
    """Set every gauge, and move the counters that are sums of elsewhere."""
    metrics = node.metrics
    by_task: dict[str, list[Session]] = {}
    for session in sessions:
        by_task.setdefault(session.client.task.name, []).append(session)
    metrics.clients.set(sum(map(len, by_task.values())))
    metrics.recovering.set(node.recovery.pending)
    metrics.outliving.set(node.interventions.killing.outliving)
    for worker, count in faults().items():
        metrics.raise_to(metrics.worker_faults, (worker,), count)
    pods: dict[TaskKey, list[Task]] = {}
    for task in node.registry:
        pods.setdefault(task.key, []).append(task)
    metrics.keep(pods)
    for key, tasks in pods.items():
        sessions_of = [session for task in tasks for session in by_task.get(task.name, [])]
        _task(metrics.of(key), tasks, sessions_of)
    planned = node.registry.planned_homes()
    for unit in node.units.values():
        _device(metrics, unit, node.registry.planned_bytes(unit.name))
    for tier in node.storage.tiers.values():
        _tier(metrics, tier, planned[tier.name])
    for link in node.storage.links:
        _link(metrics, link)


def _task(of_task: TaskMetrics, pods: list[Task], sessions: list[Session]) -> None:
    """The figures of one task's pods on this node together; times are those of the slowest."""
    newest = pods[-1].registration
    bounds = [pod.plan.predicted_response_time_s for pod in pods]
    of_task.describe(
        {(pod.device, pod.registration.criticality) for pod in pods},
        ready=any(session.status.ready for session in sessions),
        trains=newest.training,
        period_s=newest.period_ns / 1e9,
        deadline_s=newest.deadline_ns / 1e9,
        job_s=max(pod.plan.predicted_job_time_s for pod in pods),
        response_s=max((bound for bound in bounds if bound is not None), default=None),
    )
    stored: Counter[str] = Counter()
    for session in sessions:
        for arena in session.client.arenas.values():
            stored.update(arena.bytes_per_tier())
    of_task.set_tier_bytes(stored)


def _device(metrics: Metrics, unit: Unit, planned_bytes: int) -> None:
    name, memory = unit.name, unit.memory
    metrics.device_up.labels(name).set(not unit.device.lost)
    for counter in (metrics.device_losses, metrics.device_errors, metrics.device_last_xid):
        counter.labels(name)
    for state, count in unit.pool.count_by_state().items():
        metrics.extents.labels(name, state.value).set(count)
    metrics.fast_used_bytes.labels(name).set(memory.used_bytes)
    metrics.fast_peak_bytes.labels(name).set(memory.peak_bytes)
    metrics.fast_start_peak_bytes.labels(name).set(memory.start_peak_bytes)
    metrics.fast_limit_bytes.labels(name).set(memory.limit_bytes)
    metrics.fast_planned_bytes.labels(name).set(planned_bytes)
    metrics.unswappable_bytes.labels(name).set(memory.unswappable_bytes)
    metrics.context_bytes.labels(name).set(unit.device.context_bytes)


def _tier(metrics: Metrics, tier: Tier, planned_extents: int) -> None:
    statistics, extent_bytes = tier.store.statistics(), tier.store.extent_bytes
    promised = max(statistics.referenced, planned_extents)
    metrics.tier_used_bytes.labels(tier.name).set(statistics.stored_bytes)
    metrics.tier_promised_bytes.labels(tier.name).set(promised * extent_bytes)
    metrics.tier_capacity_bytes.labels(tier.name).set(
        (statistics.slots - statistics.retired) * extent_bytes
    )
    metrics.raise_to(metrics.tier_corruptions, (tier.name,), statistics.corruptions)
    metrics.raise_to(metrics.tier_failures, (tier.name,), statistics.failures)


def _link(metrics: Metrics, link: Link) -> None:
    labels, meter, rate = (link.device, link.name), link.meter, link.rate()
    metrics.raise_to(metrics.link_bytes, labels, meter.bytes_total)
    metrics.raise_to(metrics.link_busy_s, labels, link.busy_ns() / 1e9)
    metrics.raise_to(metrics.link_errors, labels, meter.errors_total)
    metrics.link_bandwidth.labels(*labels).set(meter.average_bytes_per_s or 0.0)
    metrics.raise_to(metrics.link_slow_spans, labels, meter.slow_spans_total)
    metrics.link_planned_bandwidth.labels(*labels).set(rate.worst_bytes_per_s if rate else 0.0)
    metrics.link_drifted.labels(*labels).set(meter.drifted)
