"""The dashboard of links: what each path moves, and whether it holds what was planned."""

from __future__ import annotations

from tierline_observability.panels import Dashboard, Graph, Query, Unit, Variable
from tierline_observability.queries import NODE, ON_NODE, RATE, quantile

_ON_LINK = '{node=~"$node", link=~"$link"}'
_LINK_LEGEND = "{{node}} {{device}} {{link}}"
LINKS = Dashboard(
    "links",
    "Tierline / Links",
    "How busy is each path between memories, and does it still do what was planned with?",
    (NODE, Variable("link", "tierline_link_bytes_total")),
    (
        (
            "Bandwidth",
            (
                Graph(
                    "While busy, against planned",
                    "Recent bandwidth of each link over the worst one, which plans were made with; "
                    "below what margins of plans leave (0.77 on cpu, 0.91 on cuda) for long it "
                    "counts as drifted, unless its transfers are small.",
                    Unit.SHARE,
                    (
                        Query(
                            f"tierline_link_bandwidth_bytes_per_second{_ON_LINK} / "
                            f"tierline_link_planned_bandwidth_bytes_per_second{_ON_LINK}",
                            _LINK_LEGEND,
                        ),
                    ),
                ),
                Graph(
                    "While busy",
                    "Recent bandwidth of each link, idle time left out.",
                    Unit.BYTES_PER_S,
                    (Query(f"tierline_link_bandwidth_bytes_per_second{_ON_LINK}", _LINK_LEGEND),),
                ),
                Graph(
                    "Moved",
                    "Bytes over each link, idle time included.",
                    Unit.BYTES_PER_S,
                    (Query(f"rate(tierline_link_bytes_total{_ON_LINK}[{RATE}])", _LINK_LEGEND),),
                ),
                Graph(
                    "Busy",
                    "Share of time in which something was under way.",
                    Unit.SHARE,
                    (
                        Query(
                            f"rate(tierline_link_busy_seconds_total{_ON_LINK}[{RATE}])",
                            _LINK_LEGEND,
                        ),
                    ),
                ),
            ),
        ),
        (
            "Health",
            (
                Graph(
                    "Slower than planned",
                    "Spans of a link's busy time (0.2 s each) in the last hour in which it was "
                    "slower than planned, and 1 while it has drifted.",
                    Unit.COUNT,
                    (
                        Query(
                            f"increase(tierline_link_slow_spans_total{_ON_LINK}[1h])",
                            _LINK_LEGEND,
                        ),
                        Query(f"tierline_link_drifted{_ON_LINK}", f"{_LINK_LEGEND} drifted"),
                    ),
                ),
                Graph(
                    "Failed transfers",
                    "In the last hour.",
                    Unit.COUNT,
                    (Query(f"increase(tierline_link_errors_total{_ON_LINK}[1h])", _LINK_LEGEND),),
                ),
                Graph(
                    "From asking for an extent to having it",
                    "All links of a node together.",
                    Unit.SECONDS,
                    (
                        Query(
                            quantile(0.5, "tierline_swap_in_latency_seconds", "node", ON_NODE),
                            "{{node}} p50",
                        ),
                        Query(
                            quantile(0.99, "tierline_swap_in_latency_seconds", "node", ON_NODE),
                            "{{node}} p99",
                        ),
                    ),
                    width=24,
                ),
            ),
        ),
    ),
)
