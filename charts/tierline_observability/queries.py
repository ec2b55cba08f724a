"""Parts that queries of several dashboards share."""

from __future__ import annotations

from typing import Final

from tierline_observability.panels import Variable

RATE: Final = "$__rate_interval"
NODE: Final = Variable("node", "tierline_agent_info")
ON_NODE: Final = '{node=~"$node"}'


def quantile(share: float, metric: str, by: str = "", chosen: str = "") -> str:
    """Return the expression of a histogram's quantile, one for each set of the labels `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{chosen}[{RATE}])))"
