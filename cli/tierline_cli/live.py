"""What a person watches while tasks run, and the table that is left at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tierline_api.quantities import format_quantity
from tierline_cli.results import TaskResult


def milliseconds(seconds: float) -> str:
    """Seconds as a person reads them here."""
    return f"{seconds * 1e3:,.1f} ms"


def task_table(results: Sequence[TaskResult], title: str) -> Table:
    """One row a task: period, jobs, misses, responses against the prediction."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("task")
    for column in ("period", "jobs", "misses", "p50", "p99", "worst", "predicted", "alone"):
        table.add_column(column, justify="right")
    table.add_column("streamed/job", justify="right")
    table.add_column("outputs")
    for result in results:
        missed = Text(str(result.misses), style="bold red" if result.misses else "green")
        table.add_row(
            result.name,
            milliseconds(result.period_s),
            str(result.jobs),
            missed,
            milliseconds(result.response_p50_s),
            milliseconds(result.response_p99_s),
            milliseconds(result.response_worst_s),
            milliseconds(result.predicted_worst_s),
            milliseconds(result.compute_only_s),
            format_quantity(result.streamed_bytes_per_job),
            _outputs(result.outputs_identical),
        )
    return table


def _outputs(identical: bool | None) -> Text:
    if identical is None:
        return Text("not compared yet", style="dim")
    return Text("identical", style="green") if identical else Text("DIFFERENT", style="bold red")


def memory_lines(snapshot: Mapping[str, Any]) -> RenderableType:
    """Fast memory, tiers and links in a line each."""
    lines = [
        f"fast memory  peak {format_quantity(snapshot['fast_peak_bytes'])}"
        f" of {format_quantity(snapshot['fast_limit_bytes'])}"
    ]
    lines += [
        f"tier {tier['name']:<7} {format_quantity(tier['used_bytes'])}"
        f" of {format_quantity(tier['capacity_bytes'])}"
        for tier in snapshot["tiers"]
    ]
    lines += [
        f"link {link['name']:<11} {link['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s,"
        f" {format_quantity(link['bytes_total'])} so far, busy {link['busy_share']:.0%}"
        for link in snapshot["links"]
    ]
    return Text("\n".join(lines), style="dim")


def screen(results: Sequence[TaskResult], snapshot: Mapping[str, Any], title: str) -> Group:
    """The whole live view."""
    return Group(task_table(results, title), memory_lines(snapshot))


def console() -> Console:
    """Where people look; standard output is for the one JSON object."""
    return Console(stderr=True)
