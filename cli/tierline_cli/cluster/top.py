"""`kubectl tierline top`: the tasks and nodes of a cluster, and how they keep their deadlines."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tierline_cli.cluster.access import Cluster
from tierline_cli.cluster.options import cluster_options, output_option, print_json, scope_of
from tierline_cli.cluster.views import NodeView, TaskView, node_view, task_view
from tierline_cli.errors import CommandError
from tierline_cli.reporting.live import shown_size, shown_time

_PLAIN = {"box": None, "header_style": "bold", "padding": (0, 2, 0, 0)}


@click.command(name="top")
@cluster_options
@output_option
@click.option("-w", "--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
def command(
    namespace: str | None,
    everywhere: bool,
    context: str | None,
    kubeconfig: str | None,
    output: str,
    watch: bool,
    interval: float,
) -> None:
    """Show MemTasks with what was proved and measured of them, and all nodes.

    Responses are from release to end: BOUND is the worst that admission proved, P99 and WORST were
    measured.
    """
    with Cluster(scope_of(namespace, everywhere, context, kubeconfig)) as cluster:
        if output == "json":
            tasks, nodes, _ = _read(cluster)
            print_json({"tasks": tasks, "nodes": nodes})
        elif watch:
            with Live(console=_console(), refresh_per_second=4) as live:
                while True:
                    live.update(_screen(cluster))
                    time.sleep(interval)
        else:
            _console().print(_screen(cluster))


def _console() -> Console:
    """A table that is piped into another program is not cut at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def _read(cluster: Cluster) -> tuple[list[TaskView], list[NodeView], str]:
    """Tasks, nodes, and why there are no nodes: users of one namespace may not see them."""
    tasks = [task_view(found) for found in cluster.tasks()]
    try:
        return tasks, [node_view(found) for found in cluster.nodes()], ""
    except CommandError as error:
        return tasks, [], str(error)


def _screen(cluster: Cluster) -> RenderableType:
    tasks, nodes, why = _read(cluster)
    where = "any namespace" if cluster.scope.everywhere else f"namespace {cluster.namespace}"
    shown: list[RenderableType] = [
        task_table(tasks, namespaces=cluster.scope.everywhere)
        if tasks
        else Text(f"no MemTask in {where}")
    ]
    shown += [Text(""), node_table(nodes) if nodes else Text(why or "no MemNode", style="dim")]
    return Group(*shown)


def task_table(tasks: Sequence[TaskView], *, namespaces: bool) -> Table:
    """A line a task."""
    table = Table(**_PLAIN)  # type: ignore[arg-type]
    names = ("NAMESPACE", "TASK") if namespaces else ("TASK",)
    for name in (*names, "PHASE", "DEVICE"):
        table.add_column(name, no_wrap=True)
    for name in ("PERIOD", "DEADLINE", "BOUND", "P99", "WORST", "JOBS", "MISSES", "FAST", "STREAM"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("REASON", no_wrap=True)
    for task in tasks:
        own = (task.namespace, task.name) if namespaces else (task.name,)
        table.add_row(
            *own,
            Text(task.phase, style=_STYLES.get(task.phase, "")),
            f"{task.node}/{task.device}" if task.node else "-",
            *map(shown_time, (task.period_s, task.deadline_s, task.bound_s)),
            *map(shown_time, (task.response_p99_s, task.response_worst_s)),
            _count(task.jobs),
            Text(_count(task.misses), style="bold red" if task.misses else ""),
            *map(_size, (task.fast_memory_bytes, task.streamed_bytes_per_job)),
            task.reason,
        )
    return table


def node_table(nodes: Sequence[NodeView]) -> Table:
    """A line a device; what belongs to the node stands in its first."""
    table = Table(**_PLAIN)  # type: ignore[arg-type]
    for name in ("NODE", "HEALTH", "DEVICE"):
        table.add_column(name, no_wrap=True)
    table.add_column("FAST USED", justify="right", no_wrap=True)
    for name in ("TIERS", "READ LINKS"):
        table.add_column(name, no_wrap=True)
    for node in nodes:
        tiers = ", ".join(
            f"{tier} {shown_size(used)} of {shown_size(capacity)}"
            for tier, (used, capacity) in node.tiers.items()
        )
        for place, device in enumerate(node.devices):
            links = ", ".join(
                f"{link.partition('/')[2]} {rate / 1e9:.1f} GB/s"
                for link, rate in node.links.items()
                if link.startswith(f"{device.name}/") and not link.endswith(("d2h", "write"))
            )
            used = f"{shown_size(device.used_bytes)} of {shown_size(device.fast_bytes)}"
            first = place == 0
            table.add_row(
                node.name if first else "",
                Text(node.health, style=_STYLES.get(node.health, "")) if first else "",
                f"{device.name} ({device.product})",
                used,
                tiers if first else "",
                links,
            )
    return table


_STYLES = {
    "Running": "green",
    "Admitted": "green",
    "Healthy": "green",
    "Pending": "yellow",
    "Profiling": "yellow",
    "Degraded": "yellow",
    "Refused": "bold red",
    "Failed": "bold red",
}


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else shown_size(value)
