"""The dashboard of everything: what is up, which tasks wait and why, how much is promised."""

from __future__ import annotations

from tierline_observability.panels import Dashboard, Graph, Number, Query, Unit
from tierline_observability.queries import RATE, quantile

FLEET = Dashboard(
    "fleet",
    "Tierline / Fleet",
    "Is everything up, which tasks wait and why, how much is promised?",
    (),
    (
        (
            "Now",
            (
                Number(
                    "Agents up",
                    "Node agents that answer Prometheus.",
                    Unit.COUNT,
                    Query('sum(up{job="tierline-agent"})'),
                ),
                Number(
                    "Agents down",
                    "Node agents that do not. Programs stay, but no job of theirs is granted.",
                    Unit.COUNT,
                    Query('count(up{job="tierline-agent"} == 0) or vector(0)'),
                    ((1, "red"),),
                ),
                Number(
                    "Leaders",
                    "Operators that hold the Lease; one is right.",
                    Unit.COUNT,
                    Query("sum(tierline_operator_leader) or vector(0)"),
                    ((0, "red"), (1, "green"), (2, "red")),
                ),
                Number(
                    "MemTasks that run",
                    "In phase Running.",
                    Unit.COUNT,
                    Query('sum(tierline_operator_tasks{phase="Running"})'),
                ),
                Number(
                    "MemTasks that wait",
                    "With a pod that has no place.",
                    Unit.COUNT,
                    Query("max(tierline_operator_waiting_tasks)"),
                    ((1, "yellow"),),
                ),
                Number(
                    "Misses in the last hour",
                    "Jobs of all nodes that ended after their deadline.",
                    Unit.COUNT,
                    Query("sum(increase(tierline_deadline_misses_total[1h]))"),
                    ((1, "red"),),
                ),
            ),
        ),
        (
            "MemTasks",
            (
                Graph(
                    "By phase",
                    "Pending and Refused ones say why in their status.",
                    Unit.COUNT,
                    (Query("max by (phase) (tierline_operator_tasks)", "{{phase}}"),),
                ),
                Graph(
                    "Not admitted, by reason",
                    "`kubectl tierline why-pending` says what would help each.",
                    Unit.COUNT,
                    (Query("max by (reason) (tierline_operator_blocked_tasks)", "{{reason}}"),),
                ),
                Graph(
                    "Promised share of each device's time",
                    "What admission has proved; the rest is free for more tasks.",
                    Unit.SHARE,
                    (
                        Query(
                            "max by (node, device) (tierline_operator_device_promised_ratio)",
                            "{{node}}/{{device}}",
                        ),
                    ),
                ),
                Graph(
                    "Promised share of each device's fast memory",
                    "What the plans of its tasks take together.",
                    Unit.SHARE,
                    (
                        Query(
                            "tierline_fast_memory_planned_bytes / tierline_fast_memory_limit_bytes",
                            "{{node}}/{{device}}",
                        ),
                    ),
                ),
                Graph(
                    "Places on devices",
                    "Pods with a place, and places kept free for missing pods.",
                    Unit.COUNT,
                    (
                        Query(
                            "max by (node, device) (tierline_operator_device_places)",
                            "{{node}}/{{device}}",
                        ),
                    ),
                ),
                Graph(
                    "Deadline misses by node",
                    "Jobs that ended after their deadline.",
                    Unit.PER_S,
                    (
                        Query(
                            f"sum by (node) (rate(tierline_deadline_misses_total[{RATE}]))",
                            "{{node}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Operator",
            (
                Graph(
                    "Time to the first verdict",
                    "From the creation of a MemTask to its first status.",
                    Unit.SECONDS,
                    (
                        Query(quantile(0.5, "tierline_operator_verdict_seconds"), "p50"),
                        Query(quantile(0.99, "tierline_operator_verdict_seconds"), "p99"),
                    ),
                ),
                Graph(
                    "Time to decide",
                    "One turn of the operator's loop: placement of all that had changed.",
                    Unit.SECONDS,
                    (
                        Query(quantile(0.5, "tierline_operator_settle_seconds"), "p50"),
                        Query(quantile(0.99, "tierline_operator_settle_seconds"), "p99"),
                    ),
                ),
                Graph(
                    "Requests to the API server",
                    "By method and outcome; error is a request without an answer.",
                    Unit.PER_S,
                    (
                        Query(
                            "sum by (method, outcome) "
                            f"(rate(tierline_operator_api_requests_total[{RATE}]))",
                            "{{method}} {{outcome}}",
                        ),
                    ),
                ),
                Graph(
                    "Allocations and conflicts",
                    "Claims that were allocated; writes that came too late and were tried again.",
                    Unit.PER_S,
                    (
                        Query(
                            f"sum(rate(tierline_operator_allocations_total[{RATE}]))",
                            "allocations",
                        ),
                        Query(f"sum(rate(tierline_operator_conflicts_total[{RATE}]))", "conflicts"),
                    ),
                ),
                Graph(
                    "Memory of operators and agents",
                    "Resident memory of each process; an agent's holds what it has mapped.",
                    Unit.BYTES,
                    (
                        Query(
                            'process_resident_memory_bytes{job=~"tierline-(agent|operator)"}',
                            "{{job}} {{instance}}",
                        ),
                    ),
                ),
                Graph(
                    "Versions",
                    "Two of one kind while a rollout goes on.",
                    Unit.COUNT,
                    (
                        Query("count by (version) (tierline_agent_info)", "agent {{version}}"),
                        Query(
                            "count by (version) (tierline_operator_info)", "operator {{version}}"
                        ),
                    ),
                ),
            ),
        ),
    ),
)
