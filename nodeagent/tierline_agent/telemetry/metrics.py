"""Every Prometheus name of the agent; docs/reference/metrics.md is generated from this module.

Counters and histograms are fed where things happen, or are brought up to a total that somebody else
keeps; gauges are set from a snapshot every two seconds. Nothing here is read back by the agent.

Labels are bounded: devices, links and tiers are the node's own, a task's series go when the task is
removed, and every counter is there with 0 before anything happened, because the increase of a
series that begins with 1 is 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from tierline_agent.concurrency import WORKERS
from tierline_agent.telemetry.accounting import JobRecord

# Two more series for each, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]
_LATENCY_BUCKETS_S = (
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0,
)  # fmt: skip
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0)
_TASK = ("domain", "task")
_LINK = ("device", "link")
TaskKey = tuple[str, str]
"""Domain and name of a task."""


class Metrics:
    """The agent's metrics in a registry of their own."""

    def __init__(self, version: str = "") -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.info = self._gauge(
            "tierline_agent_info", "1, with the version of the agent.", "version"
        )
        self.info.labels(version).set(1)
        self.clients = self._gauge("tierline_clients", "Connected clients.")
        self.recovering = self._gauge(
            "tierline_agent_recovering",
            "1 while the agent waits for the clients that it knew before its restart.",
        )
        self._name_tasks()
        self._name_devices()
        self._name_tiers()
        self._name_links()
        self.swap_in_s = self._latency(
            "tierline_swap_in_latency_seconds",
            "Time from asking for a streamed extent to its being in fast memory.",
        )
        self.lease_wait_s = self._latency(
            "tierline_lease_wait_seconds", "Time from asking for the device to holding it."
        )
        self.reclaim_s = self._latency(
            "tierline_reclaim_seconds",
            "Time from the proof of a client's death to its extents being free.",
        )
        self.kills = self._counter(
            "tierline_killed_programs_total",
            "Programs that were ended because they kept from others what is theirs.",
            "reason",
        )
        self.outliving = self._gauge(
            "tierline_outliving_processes",
            "Programs that were ended and are still there: they have lost the device, and their "
            "memory is not free.",
        )
        self.worker_faults = self._counter(
            "tierline_worker_faults_total",
            "Exceptions that a worker of the agent met, did not expect, and outlived.",
            "worker",
        )
        for worker in WORKERS:
            self.worker_faults.labels(worker)
        self.admissions = self._counter(
            "tierline_admission_verdicts_total",
            "Verdicts of admission, as reported to this agent.",
            "verdict",
        )
        for verdict in ("admitted", "infeasible"):
            self.admissions.labels(verdict)
        self._totals: dict[tuple[Counter, tuple[str, ...]], float] = {}
        self._tasks: dict[TaskKey, TaskMetrics] = {}

    def of(self, task: TaskKey) -> TaskMetrics:
        """The series of a task, made when they are asked for first."""
        found = self._tasks.get(task)
        if found is None:
            found = self._tasks[task] = TaskMetrics(self, task)
        return found

    def keep(self, tasks: Collection[TaskKey]) -> None:
        """Drop the series of all other tasks."""
        for task in [known for known in self._tasks if known not in tasks]:
            self._tasks.pop(task).remove()

    def raise_to(self, counter: Counter, labels: tuple[str, ...], total: float) -> None:
        """Bring a counter up to a total that is kept elsewhere."""
        before = self._totals.get((counter, labels), 0.0)
        counter.labels(*labels).inc(max(0.0, total - before))
        self._totals[counter, labels] = total

    def _name_tasks(self) -> None:
        self.task_info = self._gauge(
            "tierline_task_info",
            "1 for each task, by device and criticality: a demoted Hard task is BestEffort.",
            *(*_TASK, "device", "criticality"),
        )
        self.task_ready = self._gauge(
            "tierline_task_ready", "1 while a program of the task is ready for jobs.", *_TASK
        )
        self.task_trains = self._gauge(
            "tierline_task_trains",
            "1 for a task that trains: its steps are counted as jobs, and have no deadline.",
            *_TASK,
        )
        self.task_period_s = self._gauge(
            "tierline_task_period_seconds", "Time between two releases.", *_TASK
        )
        self.task_deadline_s = self._gauge(
            "tierline_task_deadline_seconds",
            "Time from the release of a job to its latest end.",
            *_TASK,
        )
        self.task_job_s = self._gauge(
            "tierline_task_predicted_job_seconds",
            "The worst time of a job that runs alone, by its plan.",
            *_TASK,
        )
        self.task_response_s = self._gauge(
            "tierline_task_predicted_response_seconds",
            "The worst time from release to end that admission proved; none for BestEffort.",
            *_TASK,
        )
        self.tier_bytes = self._gauge(
            "tierline_task_tier_bytes",
            "Bytes of a task's weights stored in a tier.",
            *(*_TASK, "tier"),
        )
        self.jobs = self._counter("tierline_jobs_total", "Jobs that ended, warm-up apart.", *_TASK)
        self.misses = self._counter(
            "tierline_deadline_misses_total", "Jobs that ended after their deadline.", *_TASK
        )
        self.overruns = self._counter(
            "tierline_overrun_jobs_total",
            "Jobs that held the device longer than their plan predicts.",
            *_TASK,
        )
        self.contained = self._counter(
            "tierline_contained_jobs_total",
            "Over-runs that lost their rank, so that they cost others no more than a layer.",
            *_TASK,
        )
        self.put_off = self._counter(
            "tierline_put_off_jobs_total",
            "Jobs that were served after others', because their program runs more often than its "
            "period.",
            *_TASK,
        )
        self.throttled = self._counter(
            "tierline_throttled_jobs_total",
            "Jobs that were held back, since those before them kept others waiting for longer than "
            "their plan may.",
            *_TASK,
        )
        self.preemptions = self._counter(
            "tierline_preemptions_total",
            "Times that a job gave the device away to an earlier deadline, where a layer ended.",
            *_TASK,
        )
        self.late_yields = self._counter(
            "tierline_late_yields_total",
            "Times that a job gave the device away later than was planned, or never.",
            *_TASK,
        )
        self.late_firsts = self._counter(
            "tierline_late_first_jobs_total",
            "First jobs of programs that kept jobs with deadlines waiting for longer than was "
            "planned.",
            *_TASK,
        )
        self.revoked = self._counter(
            "tierline_revoked_jobs_total",
            "Jobs that were ended: no weights from a tier, or the device for too long.",
            *_TASK,
        )
        self.streamed_bytes = self._counter(
            "tierline_streamed_bytes_total", "Bytes streamed into fast memory.", *_TASK
        )
        self.fetched_bytes = self._counter(
            "tierline_fetched_bytes_total",
            "Bytes fetched when they were touched, because no gate foresaw it.",
            *_TASK,
        )
        self.held_s = self._counter(
            "tierline_held_seconds_total",
            "Time for which a task's jobs had the device, first jobs and steps included.",
            *_TASK,
        )
        self.stall_s = self._counter(
            "tierline_stall_seconds_total", "Time in which jobs waited at gates.", *_TASK
        )
        self.response_ratio = Histogram(
            "tierline_job_response_deadline_ratio",
            "Time from release to end of a job, as a share of its deadline.",
            _TASK,
            buckets=_RATIO_BUCKETS,
            registry=self.registry,
        )

    def _name_devices(self) -> None:
        self.device_up = self._gauge(
            "tierline_device_up", "1 while a device can be used.", "device"
        )
        self.refused_descriptors = self._counter(
            "tierline_refused_descriptors_total",
            "Messages with descriptors that the kernel did not let the agent send, because "
            "processes of its user have too many in flight: programs that start wait.",
        )
        self.device_losses = self._counter(
            "tierline_device_losses_total", "Times that a device's context was lost.", "device"
        )
        self.device_errors = self._counter(
            "tierline_device_errors_total",
            "Errors (Xid) that the driver reported of a device.",
            "device",
        )
        self.device_last_xid = self._gauge(
            "tierline_device_last_xid",
            "Number of the last error that the driver reported of a device; 0 if none.",
            "device",
        )
        self.context_bytes = self._gauge(
            "tierline_device_context_bytes",
            "Device memory that each process on a device costs in addition to what it allocates.",
            "device",
        )
        self.extents = self._gauge(
            "tierline_extents", "Extents of fast memory by state.", "device", "state"
        )
        self.fast_used_bytes = self._gauge(
            "tierline_fast_memory_used_bytes", "Fast memory in use.", "device"
        )
        self.fast_peak_bytes = self._gauge(
            "tierline_fast_memory_peak_bytes",
            "The most fast memory that was in use since the agent's start, but by what begins.",
            "device",
        )
        self.fast_start_peak_bytes = self._gauge(
            "tierline_fast_memory_start_peak_bytes",
            "The most that was in use of a GPU while programs began, with weights of their own.",
            "device",
        )
        self.fast_limit_bytes = self._gauge(
            "tierline_fast_memory_limit_bytes", "Fast memory that tasks may use.", "device"
        )
        self.fast_planned_bytes = self._gauge(
            "tierline_fast_memory_planned_bytes",
            "Fast memory that the plans of registered tasks take together.",
            "device",
        )
        self.unswappable_bytes = self._gauge(
            "tierline_fast_memory_unswappable_bytes",
            "Fast memory in use that cannot move.",
            "device",
        )

    def _name_tiers(self) -> None:
        self.tier_used_bytes = self._gauge(
            "tierline_tier_used_bytes",
            "Bytes stored in a tier, with content that goes when its place is needed.",
            "tier",
        )
        self.tier_promised_bytes = self._gauge(
            "tierline_tier_promised_bytes",
            "Bytes of a tier that tasks refer to, or that plans count on.",
            "tier",
        )
        self.tier_capacity_bytes = self._gauge(
            "tierline_tier_capacity_bytes", "Bytes that a tier can store.", "tier"
        )
        self.tier_corruptions = self._counter(
            "tierline_tier_corruptions_total",
            "Extents of a tier whose content did not match its digest.",
            "tier",
        )
        self.tier_failures = self._counter(
            "tierline_tier_failures_total", "Reads and writes of a tier that failed.", "tier"
        )

    def _name_links(self) -> None:
        self.link_bytes = self._counter(
            "tierline_link_bytes_total",
            "Bytes moved by a link; the device is empty if it serves them all.",
            *_LINK,
        )
        self.link_busy_s = self._counter(
            "tierline_link_busy_seconds_total", "Time in which a link was moving bytes.", *_LINK
        )
        self.link_errors = self._counter(
            "tierline_link_errors_total", "Transfers of a link that failed.", *_LINK
        )
        self.link_bandwidth = self._gauge(
            "tierline_link_bandwidth_bytes_per_second",
            "Recent bandwidth of a link while busy; 0 before its first transfers.",
            *_LINK,
        )
        self.link_planned_bandwidth = self._gauge(
            "tierline_link_planned_bandwidth_bytes_per_second",
            "The worst measured bandwidth of a link, which plans were made with.",
            *_LINK,
        )
        self.link_slow_spans = self._counter(
            "tierline_link_slow_spans_total",
            "Spans of 0.2 s of a link's busy time in which it was slower than plans count on.",
            *_LINK,
        )
        self.link_drifted = self._gauge(
            "tierline_link_drifted",
            "1 while a link stays slower than plans were made with.",
            *_LINK,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _latency(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_LATENCY_BUCKETS_S, registry=self.registry)


@dataclass
class TaskMetrics:
    """The series of one task, all there from the first moment."""

    metrics: Metrics
    key: TaskKey
    _tiers: set[str] = field(default_factory=set)
    _runs: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Make the counters with 0."""
        m = self.metrics
        self.jobs = m.jobs.labels(*self.key)
        self.misses = m.misses.labels(*self.key)
        self.overruns = m.overruns.labels(*self.key)
        self.contained = m.contained.labels(*self.key)
        self.put_off = m.put_off.labels(*self.key)
        self.throttled = m.throttled.labels(*self.key)
        self.preemptions = m.preemptions.labels(*self.key)
        self.late_yields = m.late_yields.labels(*self.key)
        self.late_firsts = m.late_firsts.labels(*self.key)
        self.revoked = m.revoked.labels(*self.key)
        self.streamed_bytes = m.streamed_bytes.labels(*self.key)
        self.fetched_bytes = m.fetched_bytes.labels(*self.key)
        self.held_s = m.held_s.labels(*self.key)
        self.stall_s = m.stall_s.labels(*self.key)
        self.response_ratio = m.response_ratio.labels(*self.key)

    def count(self, record: JobRecord, *, overrun: bool) -> None:
        """A job ended."""
        self.streamed_bytes.inc(record.streamed_bytes)
        self.fetched_bytes.inc(record.fetched_bytes)
        self.held_s.inc(record.job_time_ns / 1e9)
        if record.warmup:
            return
        self.jobs.inc()
        self.misses.inc(record.missed)
        self.overruns.inc(overrun)
        self.stall_s.inc(record.stall_ns / 1e9)
        window_ns = record.deadline_ns - record.release_ns
        if window_ns > 0:
            self.response_ratio.observe(record.response_ns / window_ns)

    def count_yields(self, *, preemptions: int, contained: bool) -> None:
        """Count the yields of a job that could be preempted, warm-up included."""
        self.preemptions.inc(preemptions)
        self.contained.inc(contained)

    def describe(
        self,
        runs: set[tuple[str, str]],
        *,
        ready: bool,
        trains: bool,
        period_s: float,
        deadline_s: float,
        job_s: float,
        response_s: float | None,
    ) -> None:
        """Show the registration of a task (device and criticality of each pod), and its state."""
        m = self.metrics
        for gone in self._runs - runs:
            m.task_info.remove(*self.key, *gone)
        self._runs = runs
        for run in runs:
            m.task_info.labels(*self.key, *run).set(1)
        m.task_ready.labels(*self.key).set(ready)
        m.task_trains.labels(*self.key).set(trains)
        m.task_period_s.labels(*self.key).set(period_s)
        m.task_deadline_s.labels(*self.key).set(deadline_s)
        m.task_job_s.labels(*self.key).set(job_s)
        if response_s is None:
            m.task_response_s.remove(*self.key)
        else:
            m.task_response_s.labels(*self.key).set(response_s)

    def set_tier_bytes(self, per_tier: Mapping[str, int]) -> None:
        """Set the bytes that the task has in each tier."""
        for tier in self._tiers - set(per_tier):
            self.metrics.tier_bytes.remove(*self.key, tier)
        self._tiers = set(per_tier)
        for tier, size_bytes in per_tier.items():
            self.metrics.tier_bytes.labels(*self.key, tier).set(size_bytes)

    def remove(self) -> None:
        """The task is gone."""
        m = self.metrics
        of_task = dict(zip(_TASK, self.key, strict=True))
        for series in (
            *(
                m.task_info,
                m.task_ready,
                m.task_trains,
                m.task_period_s,
                m.task_deadline_s,
                m.task_job_s,
            ),
            *(m.task_response_s, m.tier_bytes, m.jobs, m.misses, m.overruns, m.revoked),
            *(m.contained, m.put_off, m.throttled, m.preemptions, m.late_yields, m.late_firsts),
            *(m.streamed_bytes, m.fetched_bytes, m.held_s, m.stall_s, m.response_ratio),
        ):
            series.remove_by_labels(of_task)
