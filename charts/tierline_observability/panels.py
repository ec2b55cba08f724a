"""The few kinds of panel that the dashboards are made of.

Every query selects by the dashboard's variables, with regular expressions, so that All works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog import builder as cog
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import Dashboard as Model
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.dashboard import Panel as PanelModel
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8
_NUMBER_HEIGHT = 4


class Unit(StrEnum):
    """Units as Grafana calls them."""

    BYTES = "bytes"
    BYTES_PER_S = "binBps"
    SECONDS = "s"
    SHARE = "percentunit"
    COUNT = "short"
    PER_S = "ops"
    YES_NO = "bool_yes_no"


@dataclass(frozen=True)
class Query:
    """One expression, and how its series are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Graph:
    """Series over time."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    width: int = 12


@dataclass(frozen=True)
class Number:
    """The present value."""

    title: str
    description: str
    unit: Unit
    query: Query
    colours: tuple[tuple[float, str], ...] = ()
    """From which values on it has which colour; below the first, and without any, green."""
    width: int = 4


@dataclass(frozen=True)
class Table:
    """A line a task; each query is a column, named by its legend, after the labels."""

    title: str
    description: str
    labels: tuple[str, ...]
    columns: tuple[tuple[Query, Unit], ...]


Panel = Graph | Number | Table


@dataclass(frozen=True)
class Variable:
    """A choice at the head of a dashboard: the values of a label."""

    label: str
    of: str
    """The series that has the label."""


@dataclass(frozen=True)
class Dashboard:
    """A page of panels."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    def build(self) -> Model:
        """The dashboard as Grafana imports it."""
        made = (
            dashboard.Dashboard(self.title)
            .uid(f"tierline-{self.name}")
            .description(self.description)
            .tags(["tierline"])
            .readonly()
            .refresh("30s")
            .time("now-1h", "now")
            .timezone("browser")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .link(
                dashboard.DashboardLink("Tierline")
                .type(DashboardLinkType.DASHBOARDS)
                .tags(["tierline"])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        )
        for variable in self.variables:
            made.with_variable(
                dashboard.QueryVariable(variable.label)
                .label(variable.label)
                .datasource(SOURCE)
                .query(f"label_values({variable.of}, {variable.label})")
                .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
                .multi(True)
                .include_all(True)
                .all_value(".*")
            )
        for title, panels in self.rows:
            made.with_row(dashboard.Row(title))
            for panel in panels:
                made.with_panel(_panel(panel))
        built = made.build()
        for number, shown in enumerate(built.panels or (), start=1):
            shown.id_val = number
        return built


def _panel(panel: Panel) -> cog.Builder[PanelModel]:
    match panel:
        case Graph():
            return _graph(panel)
        case Number():
            return _number(panel)
        case Table():
            return _table(panel)


def _graph(panel: Graph) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(panel.width)
        .height(_HEIGHT)
        .fill_opacity(10)
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for query, reference in _numbered(panel.queries):
        made.with_target(_target(query, reference))
    return made


def _number(panel: Number) -> stat.Panel:
    # Without thresholds of its own Grafana takes red from 80 on.
    steps = [Threshold(None, "green"), *(Threshold(*step) for step in panel.colours)]
    return (
        stat.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(_NUMBER_HEIGHT)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_target(panel.query, "A"))
    )


def _table(panel: Table) -> table.Panel:
    queries = _numbered([query for query, _ in panel.columns])
    names = {f"Value #{reference}": query.legend for query, reference in queries}
    made = (
        table.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .span(24)
        .height(_HEIGHT)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {name: place for place, name in enumerate(panel.labels)},
                    "renameByName": names,
                },
            )
        )
    )
    for query, reference in queries:
        made.with_target(_target(query, reference).instant().format(PromQueryFormat.TABLE))
    for query, unit in panel.columns:
        made.override_by_name(query.legend, [DynamicConfigValue(id_val="unit", value=unit)])
    return made


def _numbered(queries: Sequence[Query]) -> list[tuple[Query, str]]:
    return [(query, chr(ord("A") + place)) for place, query in enumerate(queries)]


def _target(query: Query, reference: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expression).datasource(SOURCE).ref_id(reference)
    return target.legend_format(query.legend) if query.legend else target
