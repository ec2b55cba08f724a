"""Every Prometheus name of the agent, and the endpoint that serves them.

Counters and histograms are fed where things happen; gauges are set from a snapshot a few times a
minute and before the endpoint's first answer. Nothing here is read back by the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

_LATENCY_BUCKETS_S = (
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0,
)  # fmt: skip


class Metrics:
    """The agent's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.tier_bytes = Gauge(
            "tierline_tier_bytes",
            "Bytes of a task's weights stored in a tier.",
            ["task", "tier"],
            registry=registry,
        )
        self.tier_used_bytes = Gauge(
            "tierline_tier_used_bytes", "Bytes stored in a tier.", ["tier"], registry=registry
        )
        self.tier_capacity_bytes = Gauge(
            "tierline_tier_capacity_bytes",
            "Bytes that a tier can store.",
            ["tier"],
            registry=registry,
        )
        self.link_bytes = Counter(
            "tierline_link_bytes_total",
            "Bytes moved by a link.",
            ["device", "link"],
            registry=registry,
        )
        self.link_busy_s = Counter(
            "tierline_link_busy_seconds_total",
            "Time in which a link was moving bytes.",
            ["device", "link"],
            registry=registry,
        )
        self.link_bandwidth = Gauge(
            "tierline_link_bandwidth_bytes_per_second",
            "Recent bandwidth of a link while busy.",
            ["device", "link"],
            registry=registry,
        )
        self.link_drifted = Gauge(
            "tierline_link_drifted",
            "1 while a link is slower than plans were made with.",
            ["device", "link"],
            registry=registry,
        )
        self.swap_in_s = Histogram(
            "tierline_swap_in_latency_seconds",
            "Time from asking for a streamed extent to its being in fast memory.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.lease_wait_s = Histogram(
            "tierline_lease_wait_seconds",
            "Time from asking for the device to holding it.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.reclaim_s = Histogram(
            "tierline_reclaim_seconds",
            "Time from the proof of a client's death to its extents being free.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.device_losses = Counter(
            "tierline_device_losses_total",
            "Times that a device's context was lost.",
            ["device"],
            registry=registry,
        )
        self.device_errors = Counter(
            "tierline_device_errors_total",
            "Errors (Xid) that the driver reported of a device.",
            ["device", "xid"],
            registry=registry,
        )
        self.device_up = Gauge(
            "tierline_device_up",
            "1 while a device can be used.",
            ["device"],
            registry=registry,
        )
        self.context_bytes = Gauge(
            "tierline_device_context_bytes",
            "Device memory that each process on a device costs beside what it allocates.",
            ["device"],
            registry=registry,
        )
        self.jobs = Counter(
            "tierline_jobs_total", "Jobs that ended, warm-up apart.", ["task"], registry=registry
        )
        self.misses = Counter(
            "tierline_deadline_misses_total",
            "Jobs that ended after their deadline.",
            ["task"],
            registry=registry,
        )
        self.revoked = Counter(
            "tierline_revoked_jobs_total",
            "Jobs whose weights could not be streamed.",
            ["task"],
            registry=registry,
        )
        self.streamed_bytes = Counter(
            "tierline_streamed_bytes_total",
            "Bytes streamed into fast memory.",
            ["task"],
            registry=registry,
        )
        self.admissions = Counter(
            "tierline_admission_verdicts_total",
            "Verdicts of admission, as reported to this agent.",
            ["verdict"],
            registry=registry,
        )
        self.extents = Gauge(
            "tierline_extents",
            "Extents of fast memory by state.",
            ["device", "state"],
            registry=registry,
        )
        self.fast_bytes = Gauge(
            "tierline_fast_memory_bytes",
            "Fast memory: used now, the peak, the limit; of the used, what cannot move.",
            ["device", "kind"],
            registry=registry,
        )
        self.clients = Gauge("tierline_clients", "Connected clients.", registry=registry)
        self._link_totals: dict[tuple[str, str], tuple[int, float]] = {}
        self._tier_pairs: set[tuple[str, str]] = set()
        self._server: tuple[WSGIServer, Thread] | None = None

    def serve(self, address: str, port: int) -> int:
        """Serve the metrics; returns the port. Raises OSError."""
        server, thread = start_http_server(port, address, registry=self.registry)
        self._server = (server, thread)
        return int(server.server_port)

    def link_totals(self, device: str, link: str, size_bytes: int, busy_s: float) -> None:
        """Bring a link's counters up to its own totals; `device` is empty if it serves them all."""
        before_bytes, before_s = self._link_totals.get((device, link), (0, 0.0))
        self.link_bytes.labels(device, link).inc(max(0, size_bytes - before_bytes))
        self.link_busy_s.labels(device, link).inc(max(0.0, busy_s - before_s))
        self._link_totals[device, link] = (size_bytes, busy_s)

    def set_tier_bytes(self, per_task: Mapping[str, Mapping[str, int]]) -> None:
        """Set the bytes that each task has in each tier; all other pairs are gone."""
        pairs = {(task, tier) for task, tiers in per_task.items() for tier in tiers}
        for task, tier in self._tier_pairs - pairs:
            self.tier_bytes.remove(task, tier)
        self._tier_pairs = pairs
        for task, tier in pairs:
            self.tier_bytes.labels(task, tier).set(per_task[task][tier])

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None
