"""`tierline plan`: what fast memory buys each task, as a table and a picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tierline_api.manifests.files import load_manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import EXIT_INFEASIBLE, CommandError
from tierline_cli.options import (
    PICTURES,
    OutputFile,
    files_argument,
    json_option,
    margin_option,
    node_option,
)
from tierline_cli.output import drawing
from tierline_cli.planning import decide
from tierline_cli.planning.inputs import one_node, profiles_for, tasks_named
from tierline_cli.reporting.live import shown_size, shown_time
from tierline_cli.reporting.narrow import Fitted
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.frontier import TradePoint, frontier

_ROWS = 14


@click.command(name="plan")
@files_argument
@node_option
@click.option("--task", "only", help="Only this task.")
@click.option("--png", type=OutputFile(PICTURES), help="Draw the curves here.")
@json_option
@margin_option
def command(
    files: tuple[Path, ...],
    node: Path | None,
    only: str | None,
    png: Path | None,
    as_json: bool,
    margin: float | None,
) -> None:
    """Show job time against fast memory for the MemTasks in FILES, each alone on the node.

    FILES hold MemTasks and their MemProfiles (`tierline profile` writes them), and a MemNode.
    """
    manifests = load_manifests([str(file) for file in files])
    chosen = tasks_named(manifests, only)
    profiles = profiles_for(manifests, chosen)
    where = one_node(manifests, node)
    curves = {}
    for task in chosen:
        demand, capacity = decide.question_of(task, profiles[task.name], where, margin)
        points = frontier(demand, capacity)
        if isinstance(points, Infeasible):
            raise CommandError(points.sentence, EXIT_INFEASIBLE)
        curves[task.name] = points
    if png is not None:
        with drawing(png) as axes:
            _draw(curves, chosen, where, axes)
    if as_json:
        click.echo(
            json.dumps({name: [asdict(p) for p in points] for name, points in curves.items()})
        )
        return
    for name, points in curves.items():
        Console().print(Fitted(_table(name, points)))


def _table(name: str, points: Sequence[TradePoint]) -> Table:
    table = Table(title=f"{name}: what fast memory buys", title_justify="left", header_style="bold")
    for column in ("fast memory", "resident extents", "ring extents", "streamed/job", "job time"):
        table.add_column(column, justify="right")
    step = max(1, -(-len(points) // _ROWS))
    for index, point in enumerate(points):
        if index % step == 0 or index == len(points) - 1:
            table.add_row(
                shown_size(point.fast_bytes),
                str(point.resident_extents),
                str(point.ring_extents),
                shown_size(point.streamed_bytes),
                shown_time(point.job_time_s),
            )
    return table


def _draw(
    curves: Mapping[str, Sequence[TradePoint]],
    tasks: Sequence[MemTask],
    node: MemNode,
    axes: Any,
) -> None:
    deadlines = {task.name: task.spec.realtime.deadline_s for task in tasks}
    for name, points in curves.items():
        (line,) = axes.step(
            [point.fast_bytes / 2**20 for point in points],
            [point.job_time_s * 1e3 for point in points],
            where="post",
            marker=".",
            label=f"{name} (deadline {deadlines[name] * 1e3:,.0f} ms)",
        )
        axes.plot(
            points[-1].fast_bytes / 2**20, points[-1].job_time_s * 1e3, "o", color=line.get_color()
        )
    axes.set_xlabel("fast memory: resident set, ring and workspace (MiB)")
    axes.set_ylabel("worst job time (ms)")
    axes.set_ylim(0, 1.1e3 * max(points[0].job_time_s for points in curves.values()))
    axes.set_title(f"Job time against fast memory on {node.name}; more than the dot buys nothing")
    axes.grid(alpha=0.3)
    axes.legend()
