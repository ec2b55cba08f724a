"""The operator's Prometheus metrics; docs/reference/metrics.md is generated from this module.

Names never change: dashboards count on them. Labels are bounded: phases, reasons, methods, status
codes, and the devices that there are. What can stay at 0 for ever is there with 0 from the start,
because the increase of a series that begins with 1 is 0.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import (
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from tierline_api.objects.conditions import Reason
from tierline_api.objects.memtask_status import MemTaskStatus, Phase

# Two more series for each, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]
METHODS = ("GET", "POST", "PUT", "PATCH")
_WAITING = frozenset({Phase.PENDING, Phase.PROFILING, Phase.REFUSED})
_REASONS = (
    *(Reason.PROFILE_MISSING, Reason.PROFILING, Reason.PENDING, Reason.DEADLINE_INFEASIBLE),
    *(Reason.MEMORY_INSUFFICIENT, Reason.TIER_INSUFFICIENT, Reason.RING_TOO_SMALL),
    *(Reason.NO_MATCHING_DEVICE, Reason.NO_LONGER_HOLDS, Reason.QUOTA_EXCEEDED),
    *(Reason.NOT_SCHEDULABLE, Reason.NO_PODS, Reason.NO_CLAIM),
    *(Reason.NODE_GONE, Reason.BEING_DELETED, Reason.INVALID_SPEC),
    Reason.PROFILING_FAILED,
)

INFO = Gauge("tierline_operator_info", "1, with the version of the operator.", ["version"])
API_REQUESTS = Counter(
    "tierline_operator_api_requests",
    "Requests to the API server, by method and outcome: the status code, or error.",
    ["method", "outcome"],
)
LEADER = Gauge("tierline_operator_leader", "1 while this replica leads.")
TASKS = Gauge("tierline_operator_tasks", "MemTasks by phase; 0 on replicas that wait.", ["phase"])
BLOCKED = Gauge(
    "tierline_operator_blocked_tasks",
    "MemTasks that are not admitted, by the reason in their status.",
    ["reason"],
)
WAITING = Gauge("tierline_operator_waiting_tasks", "MemTasks of which a pod waits for a place.")
DEVICE_LOAD = Gauge(
    "tierline_operator_device_promised_ratio",
    "Share of a device's time that is promised to admitted tasks.",
    ["node", "device"],
)
DEVICE_PODS = Gauge(
    "tierline_operator_device_places",
    "Places on a device, those kept free for missing pods included.",
    ["node", "device"],
)
STALLED = Gauge(
    "tierline_operator_stalled_tasks",
    "MemTasks that have been admitted for long without being ready.",
)
NODE_READY = Gauge(
    "tierline_operator_node_ready",
    "1 if pods can start on a node with devices, else 0; with the reason in its MemNode.",
    ["node", "reason"],
)
QUOTA_USED = Gauge(
    "tierline_operator_quota_used_ratio",
    "Share of a MemQuota's limit that the plans of its namespace take.",
    ["namespace", "quota", "resource"],
)
ALLOCATIONS = Counter("tierline_operator_allocations", "Claims that were allocated.")
DEFERRED = Counter(
    "tierline_operator_deferred",
    "Times that a task had to wait because it made the operator send too many requests.",
)
RETURNED = Counter(
    "tierline_operator_returned_claims",
    "Allocations that kube-scheduler gave back, because the pod does not fit on the node.",
)
CONFLICTS = Counter(
    "tierline_operator_conflicts", "Writes refused because the object had changed meanwhile."
)
SETTLE_SECONDS = Histogram(
    "tierline_operator_settle_seconds",
    "Time to decide on what had changed.",
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
)
VERDICT_SECONDS = Histogram(
    "tierline_operator_verdict_seconds",
    "Time from the creation of a MemTask to the first verdict in its status.",
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120),
)
INFO.labels(version("tierline")).set(1)
for _method in METHODS:
    API_REQUESTS.labels(_method, "error")
SHOWN_DEVICES: set[tuple[str, str]] = set()
"""Node and name of each device that has series."""


def show_tasks(statuses: Iterable[MemTaskStatus]) -> None:
    """Count the tasks of the cluster."""
    phases: Count[Phase] = Count()
    reasons: Count[str] = Count()
    for status in statuses:
        phases[status.phase] += 1
        if status.phase in _WAITING and status.reason:
            reasons[status.reason] += 1
    for phase in Phase:
        TASKS.labels(phase.value).set(phases[phase])
    for reason in _REASONS:
        BLOCKED.labels(reason.value).set(reasons[reason.value])


def show_devices(devices: Iterable[tuple[tuple[str, str], float, int]]) -> None:
    """Show load and places of each device, named by node and device; all others are gone."""
    before = set(SHOWN_DEVICES)
    SHOWN_DEVICES.clear()
    for key, load, places in devices:
        SHOWN_DEVICES.add(key)
        DEVICE_LOAD.labels(*key).set(load)
        DEVICE_PODS.labels(*key).set(places)
    for gone in before - SHOWN_DEVICES:
        DEVICE_LOAD.remove(*gone)
        DEVICE_PODS.remove(*gone)


def show_nodes(nodes: Iterable[tuple[str, str, bool]]) -> None:
    """Show on which nodes pods can start, each with its reason."""
    NODE_READY.clear()
    for node, reason, ready in nodes:
        NODE_READY.labels(node, reason).set(ready)


def show_quotas(quotas: Iterable[tuple[str, str, str, float]]) -> None:
    """Show of each quota, by namespace and name, which share of what it limits is taken."""
    QUOTA_USED.clear()
    for namespace, quota, resource, share in quotas:
        QUOTA_USED.labels(namespace, quota, resource).set(share)


def count_request(method: str, outcome: str) -> None:
    """Count a request to the API server."""
    API_REQUESTS.labels(method, outcome).inc()
    if outcome == "409":
        CONFLICTS.inc()


def serve(port: int) -> None:
    """Serve the metrics on all addresses; raises OSError if the port is taken."""
    start_http_server(port)


show_tasks(())
