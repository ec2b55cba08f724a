"""Every expression that the chart's dashboards and alerts ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import yaml
from promql_parser import BinaryExpr, VectorSelector

from tierline_cluster.versions import REPOSITORY

FILES = REPOSITORY / "charts" / "tierline" / "files"
RULES = FILES / "alerts" / "tierline.yaml"
_COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
_CHOICE = re.compile(r"\$(node|domain|task|link)\b")


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards as Grafana imports them, by file name."""
    return {path.stem: json.loads(path.read_text()) for path in (FILES / "dashboards").iterdir()}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard that show something, those in rows as well."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def rules() -> dict[str, dict[str, Any]]:
    """The alert rules by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panel_expressions() -> dict[str, str]:
    """Where an expression is, and the expression with All chosen everywhere."""
    found = {}
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "5m")
                found[f"{name}: {panel['title']} {target['refId']}"] = _CHOICE.sub(".*", text)
    return found


def watched() -> dict[str, str]:
    """What each alert compares: an alert that is quiet returns nothing, what it watches does."""
    found = {}
    for alert, rule in rules().items():
        for place, expression in enumerate(_compared(promql_parser.parse(rule["expr"]))):
            found[f"{alert} {place}"] = expression
    return found


def _compared(node: Any) -> Iterator[str]:
    if isinstance(node, BinaryExpr):
        if str(node.op) in _COMPARISONS:
            yield str(node.lhs)
        else:
            yield from _compared(node.lhs)
            yield from _compared(node.rhs)


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """The series that an expression reads: name, and the labels by which it chooses."""
    return [
        (str(selector.name), {matcher.name for matcher in selector.matchers.matchers})
        for selector in _selectors(promql_parser.parse(expression))
    ]


def _selectors(node: Any) -> Iterator[VectorSelector]:
    if isinstance(node, VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from _selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from _selectors(child)
