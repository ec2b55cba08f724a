"""The dashboard of nodes: their fast memory, tiers and devices."""

from __future__ import annotations

from tierline_observability.panels import Dashboard, Graph, Query, Unit
from tierline_observability.queries import NODE, ON_NODE

NODES = Dashboard(
    "nodes",
    "Tierline / Nodes and tiers",
    "What does each node's fast memory hold, how full are its tiers, are its devices well?",
    (NODE,),
    (
        (
            "Fast memory",
            (
                Graph(
                    "In use",
                    "Used now, planned by admission, and the limit.",
                    Unit.BYTES,
                    (
                        Query(
                            f"tierline_fast_memory_used_bytes{ON_NODE}",
                            "{{node}}/{{device}} used",
                        ),
                        Query(
                            f"tierline_fast_memory_planned_bytes{ON_NODE}",
                            "{{node}}/{{device}} planned",
                        ),
                        Query(
                            f"tierline_fast_memory_limit_bytes{ON_NODE}",
                            "{{node}}/{{device}} limit",
                        ),
                    ),
                ),
                Graph(
                    "Peak and what cannot move",
                    "The most in use since the agent's start, and what no task can be swapped for.",
                    Unit.BYTES,
                    (
                        Query(
                            f"tierline_fast_memory_peak_bytes{ON_NODE}",
                            "{{node}}/{{device}} peak",
                        ),
                        Query(
                            f"tierline_fast_memory_unswappable_bytes{ON_NODE}",
                            "{{node}}/{{device}} unswappable",
                        ),
                    ),
                ),
                Graph(
                    "Extents",
                    "By state: resident ones stay between jobs, ring ones are streamed through.",
                    Unit.COUNT,
                    (
                        Query(
                            f"sum by (node, device, state) (tierline_extents{ON_NODE})",
                            "{{node}}/{{device}} {{state}}",
                        ),
                    ),
                ),
                Graph(
                    "Context of each process",
                    "What a process on the device costs in addition to what it allocates.",
                    Unit.BYTES,
                    (
                        Query(
                            f"tierline_device_context_bytes{ON_NODE}",
                            "{{node}}/{{device}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Tiers",
            (
                Graph(
                    "Promised share",
                    "What tasks refer to or plans count on; at 1 no task with this tier fits.",
                    Unit.SHARE,
                    (
                        Query(
                            f"tierline_tier_promised_bytes{ON_NODE} / "
                            f"tierline_tier_capacity_bytes{ON_NODE}",
                            "{{node}} {{tier}}",
                        ),
                    ),
                ),
                Graph(
                    "Stored",
                    "With content of tasks that are gone, which goes when its place is needed.",
                    Unit.BYTES,
                    (
                        Query(f"tierline_tier_used_bytes{ON_NODE}", "{{node}} {{tier}} stored"),
                        Query(
                            f"tierline_tier_capacity_bytes{ON_NODE}", "{{node}} {{tier}} capacity"
                        ),
                    ),
                ),
                Graph(
                    "Stored for each task",
                    "Bytes of its weights in each tier.",
                    Unit.BYTES,
                    (
                        Query(
                            f"tierline_task_tier_bytes{ON_NODE}",
                            "{{domain}}/{{task}} {{tier}}",
                        ),
                    ),
                ),
                Graph(
                    "Corrupt content and failed transfers",
                    "In the last hour; corrupt extents are quarantined and never used.",
                    Unit.COUNT,
                    (
                        Query(
                            f"increase(tierline_tier_corruptions_total{ON_NODE}[1h])",
                            "{{node}} {{tier}} corrupt",
                        ),
                        Query(
                            f"increase(tierline_tier_failures_total{ON_NODE}[1h])",
                            "{{node}} {{tier}} failed",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Devices and clients",
            (
                Graph(
                    "Devices that can be used",
                    "1 while a device works.",
                    Unit.COUNT,
                    (Query(f"tierline_device_up{ON_NODE}", "{{node}}/{{device}}"),),
                ),
                Graph(
                    "Programs that were ended",
                    "In the last hour; they kept a device or memory from others.",
                    Unit.COUNT,
                    (
                        Query(
                            f"increase(tierline_killed_programs_total{ON_NODE}[1h])",
                            "{{node}} {{reason}}",
                        ),
                    ),
                ),
                Graph(
                    "Device errors",
                    "Errors (Xid) that the driver reported, and lost contexts, in the last hour.",
                    Unit.COUNT,
                    (
                        Query(
                            f"increase(tierline_device_errors_total{ON_NODE}[1h])",
                            "{{node}}/{{device}} errors",
                        ),
                        Query(
                            f"increase(tierline_device_losses_total{ON_NODE}[1h])",
                            "{{node}}/{{device}} losses",
                        ),
                    ),
                ),
                Graph(
                    "Clients",
                    "Connected processes; awaited is 1 while an agent waits for those of before "
                    "its restart.",
                    Unit.COUNT,
                    (
                        Query(f"tierline_clients{ON_NODE}", "{{node}} connected"),
                        Query(f"tierline_agent_recovering{ON_NODE}", "{{node}} awaited"),
                    ),
                ),
                Graph(
                    "Time to reclaim what a dead client held",
                    "From the proof of its death to its extents being free, on average.",
                    Unit.SECONDS,
                    (
                        Query(
                            f"tierline_reclaim_seconds_sum{ON_NODE} / "
                            f"(tierline_reclaim_seconds_count{ON_NODE} > 0) "
                            f"or tierline_reclaim_seconds_sum{ON_NODE}",
                            "{{node}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
