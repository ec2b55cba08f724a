"""The operator's Prometheus metrics. Names never change: dashboards count on them."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, start_http_server

API_REQUESTS = Counter(
    "tierline_operator_api_requests",
    "Requests to the API server, by method and outcome (the status code, or error)",
    ["method", "outcome"],
)
LEADER = Gauge("tierline_operator_leader", "1 while this replica leads")
TASKS = Gauge("tierline_operator_tasks", "MemTasks by phase", ["phase"])
WAITING = Gauge("tierline_operator_waiting_tasks", "MemTasks that wait for a place")
DEVICE_LOAD = Gauge(
    "tierline_operator_device_promised_ratio",
    "Share of a device's time that is promised to admitted tasks",
    ["node", "device"],
)
DEVICE_PODS = Gauge(
    "tierline_operator_device_places", "Places on a device, kept ones included", ["node", "device"]
)
ALLOCATIONS = Counter("tierline_operator_allocations", "Claims that were allocated")
CONFLICTS = Counter(
    "tierline_operator_conflicts", "Writes refused because the object had changed meanwhile"
)
SETTLE_SECONDS = Histogram(
    "tierline_operator_settle_seconds",
    "Time to decide on what had changed",
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
)
VERDICT_SECONDS = Histogram(
    "tierline_operator_verdict_seconds",
    "Time from the creation of a MemTask to the first verdict in its status",
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120),
)


def serve(port: int) -> None:
    """Serve the metrics on all addresses; raises OSError if the port is taken."""
    start_http_server(port)
