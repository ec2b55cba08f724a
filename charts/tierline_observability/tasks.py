"""The dashboard of tasks: their deadlines, and the work that they do."""

from __future__ import annotations

from tierline_observability.panels import Dashboard, Graph, Query, Table, Unit, Variable
from tierline_observability.queries import NODE, ON_NODE, RATE, quantile

_OF_TASK = '{node=~"$node", domain=~"$domain", task=~"$task"}'
_BY_TASK = "node, domain, task"
_TASK_LEGEND = "{{domain}}/{{task}}"


def _task_rate(metric: str) -> str:
    return f"sum by ({_BY_TASK}) (rate({metric}{_OF_TASK}[{RATE}]))"


def _task_now(metric: str) -> str:
    return f"max by ({_BY_TASK}) ({metric}{_OF_TASK})"


def _of_training(metric: str) -> str:
    """A rate of tasks that train, and of no others."""
    return f"{_task_rate(metric)} * on ({_BY_TASK}) {_task_now('tierline_task_trains')}"


_HELD = "tierline_held_seconds_total"
_HELD_BY_STEPS = f"sum by (node) ({_of_training(_HELD)})"
_LEFT_TO_STEPS = (
    f"clamp_min(count by (node) (tierline_device_up{ON_NODE} == 1) - "
    f"(sum by (node) ({_task_rate(_HELD)}) - {_HELD_BY_STEPS}), 0.001)"
)

TASKS = Dashboard(
    "tasks",
    "Tierline / Tasks and deadlines",
    "Does every job end in time, and how near does it come?",
    (
        NODE,
        Variable("domain", "tierline_task_info"),
        Variable("task", "tierline_task_info"),
    ),
    (
        (
            "Deadlines",
            (
                Table(
                    "Tasks",
                    "The bound is the worst response that admission proved; none for BestEffort.",
                    ("domain", "task", "node"),
                    (
                        (Query(_task_now("tierline_task_period_seconds"), "period"), Unit.SECONDS),
                        (
                            Query(_task_now("tierline_task_deadline_seconds"), "deadline"),
                            Unit.SECONDS,
                        ),
                        (
                            Query(_task_now("tierline_task_predicted_response_seconds"), "bound"),
                            Unit.SECONDS,
                        ),
                        (
                            Query(_task_now("tierline_task_predicted_job_seconds"), "job alone"),
                            Unit.SECONDS,
                        ),
                        (Query(_task_now("tierline_jobs_total"), "jobs"), Unit.COUNT),
                        (Query(_task_now("tierline_deadline_misses_total"), "misses"), Unit.COUNT),
                        (Query(_task_now("tierline_task_ready"), "ready"), Unit.YES_NO),
                    ),
                ),
                Graph(
                    "Used share of the deadline, 99 of 100 jobs",
                    "Time from release to end over the deadline; above 1 is a miss. Resolution: "
                    "the buckets of the histogram.",
                    Unit.SHARE,
                    (
                        Query(
                            quantile(
                                0.99,
                                "tierline_job_response_deadline_ratio",
                                _BY_TASK,
                                _OF_TASK,
                            ),
                            _TASK_LEGEND,
                        ),
                    ),
                ),
                Graph(
                    "Proved share of the deadline",
                    "The worst response that admission proved over the deadline.",
                    Unit.SHARE,
                    (
                        Query(
                            f"tierline_task_predicted_response_seconds{_OF_TASK} / "
                            f"tierline_task_deadline_seconds{_OF_TASK}",
                            _TASK_LEGEND,
                        ),
                    ),
                ),
                Graph(
                    "Misses",
                    "Jobs that ended after their deadline.",
                    Unit.PER_S,
                    (Query(_task_rate("tierline_deadline_misses_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Over-runs",
                    "Jobs that held the device longer than their plan predicts; profile the model "
                    "again if they last.",
                    Unit.PER_S,
                    (Query(_task_rate("tierline_overrun_jobs_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Preemptions",
                    "Times that a job gave the device away to an earlier deadline. Late ones took "
                    "longer to yield than was planned; contained jobs over-ran and lost "
                    "their rank. Both mean that the profile is too optimistic.",
                    Unit.PER_S,
                    (
                        Query(_task_rate("tierline_preemptions_total"), _TASK_LEGEND),
                        Query(_task_rate("tierline_late_yields_total"), f"{_TASK_LEGEND} late"),
                        Query(
                            _task_rate("tierline_contained_jobs_total"),
                            f"{_TASK_LEGEND} contained",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Work",
            (
                Graph(
                    "Jobs",
                    "Jobs that ended, warm-up apart.",
                    Unit.PER_S,
                    (Query(_task_rate("tierline_jobs_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Streamed",
                    "Weights that came into fast memory for jobs.",
                    Unit.BYTES_PER_S,
                    (Query(_task_rate("tierline_streamed_bytes_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Having the device",
                    "Share of time in which a task's jobs had the device, first jobs included.",
                    Unit.SHARE,
                    (Query(_task_rate(_HELD), _TASK_LEGEND),),
                ),
                Graph(
                    "Waiting at gates",
                    "Share of time in which a task's job stood because its weights were not there.",
                    Unit.SHARE,
                    (Query(_task_rate("tierline_stall_seconds_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Fetched out of turn",
                    "Bytes that no gate foresaw; steady ones mean that the order changed.",
                    Unit.BYTES_PER_S,
                    (Query(_task_rate("tierline_fetched_bytes_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Revoked jobs",
                    "No weights from a tier, or the device for too long; each is a miss as well.",
                    Unit.PER_S,
                    (Query(_task_rate("tierline_revoked_jobs_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Waiting for the device",
                    "From asking for the device to holding it, all tasks of a node.",
                    Unit.SECONDS,
                    (
                        Query(
                            quantile(0.5, "tierline_lease_wait_seconds", "node", ON_NODE),
                            "{{node}} p50",
                        ),
                        Query(
                            quantile(0.99, "tierline_lease_wait_seconds", "node", ON_NODE),
                            "{{node}} p99",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Training",
            (
                Graph(
                    "Steps",
                    "Steps that ended, of tasks that train.",
                    Unit.PER_S,
                    (Query(_of_training("tierline_jobs_total"), _TASK_LEGEND),),
                ),
                Graph(
                    "Idle time used",
                    "Share of the time that all other tasks leave of a node's devices in which "
                    "steps had one.",
                    Unit.SHARE,
                    (Query(f"{_HELD_BY_STEPS} / {_LEFT_TO_STEPS}", "{{node}}"),),
                ),
                Graph(
                    "Sections longer than planned",
                    "Times that a step kept jobs with deadlines waiting for longer than its "
                    "longest section in the profile.",
                    Unit.PER_S,
                    (Query(_of_training("tierline_late_first_jobs_total"), _TASK_LEGEND),),
                ),
            ),
        ),
    ),
)
