"""The live display of a run, and the table that is left at the end."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tierline_api.objects.realtime import Criticality
from tierline_cli.reporting.narrow import Fitted
from tierline_cli.reporting.results import TaskResult
from tierline_cli.reporting.verdicts import Outputs, Verdict

_FILE_COLUMNS = 132
_COLUMNS = ("period", "jobs", "misses", "p50", "p99", "worst", "bound", "alone", "streamed")


def shown_time(seconds: float | None) -> str:
    """Seconds as a person reads them here; None is no promise."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def shown_size(size_bytes: float) -> str:
    """Bytes as a person reads them here."""
    return f"{size_bytes / 2**20:,.0f} MiB"


def task_table(
    results: Sequence[TaskResult], title: str, outputs: Mapping[str, Outputs] | None = None
) -> Table:
    """One row a task; without `outputs` nothing was compared yet.

    Responses stand next to `bound`, the worst that admission proved, and `alone`, a job without
    Tierline on the quiet device. `streamed` is per job. `yields`, how often jobs gave the device
    away, is there if jobs of a task do; the criticality if not all tasks are Hard. Only a Hard
    task's misses are broken promises: they are red.
    """
    yields = any(result.preemptible for result in results)
    mixed = any(result.criticality is not Criticality.HARD for result in results)
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("task", no_wrap=True)
    if mixed:
        table.add_column("criticality", no_wrap=True)
    for column in (*_COLUMNS, *(["yields"] if yields else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("outputs", no_wrap=True)
    for result in results:
        late = "bold red" if result.criticality is Criticality.HARD else "yellow"
        table.add_row(
            result.name,
            *([result.criticality.value] if mixed else []),
            shown_time(result.period_s),
            str(result.jobs),
            Text(str(result.misses), style=late if result.misses else "green"),
            shown_time(result.response_p50_s),
            shown_time(result.response_p99_s),
            Text(
                shown_time(result.response_worst_s),
                style="bold red" if result.bound_exceeded else "",
            ),
            shown_time(result.predicted_worst_s),
            shown_time(result.compute_only_s),
            shown_size(result.streamed_bytes_per_job),
            *([str(result.preemptions) if result.preemptible else "-"] if yields else []),
            outputs_text(None if outputs is None else outputs[result.name]),
        )
    return table


_STYLES: Final = {
    Verdict.IDENTICAL: "green",
    Verdict.DIFFERENT: "bold red",
    Verdict.NOT_COMPARABLE: "yellow",
}


def outputs_text(outputs: Outputs | None) -> Text:
    """The verdict on a task's outputs in a word or two."""
    if outputs is None:
        return Text("…", style="dim")
    word = outputs.verdict.value
    if outputs.verdict is Verdict.DIFFERENT:
        word = word.upper()
    elif outputs.compared < outputs.jobs and outputs.compared:
        word = f"{outputs.compared} of {outputs.jobs} {word}"
    return Text(word, style=_STYLES[outputs.verdict])


def memory_lines(snapshot: Mapping[str, Any]) -> RenderableType:
    """Fast memory, tiers and links in a line each."""
    peak, limit = shown_size(snapshot["fast_peak_bytes"]), shown_size(snapshot["fast_limit_bytes"])
    exceeded = snapshot["fast_peak_bytes"] > snapshot["fast_limit_bytes"]
    start = snapshot["fast_start_peak_bytes"]
    first = (
        f"; {shown_size(start)} while programs began"
        if start > snapshot["fast_limit_bytes"]
        else ""
    )
    fast = Text(
        f"fast memory      {peak} at most, of {limit}{': EXCEEDED' if exceeded else ''}{first}",
        style="bold red" if exceeded else "dim",
    )
    lines = [
        f"tier {tier['name']:<12}{shown_size(tier['used_bytes'])}"
        f" of {shown_size(tier['capacity_bytes'])}"
        for tier in snapshot["tiers"]
    ]
    lines += [
        f"link {link['name']:<12}{link['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s,"
        f" {shown_size(link['bytes_total'])} so far, busy {link['busy_share']:.0%}"
        f"{', slower than planned' if link['drifted'] else ''}"
        for link in snapshot["links"]
    ]
    return Group(fast, Text("\n".join(lines), style="dim"))


def notice_lines(snapshot: Mapping[str, Any]) -> RenderableType:
    """Remarks of the programs: weights that stay resident and why, changes of order."""
    return Text(
        "\n".join(
            f"{task['name']}: {notice['kind'].replace('_', ' ')}"
            f" ({shown_size(notice['bytes'])}): {notice['text']}"
            for task in snapshot["tasks"]
            for notice in task["notices"]
        ),
        style="yellow",
    )


def screen(
    results: Sequence[TaskResult],
    snapshot: Mapping[str, Any],
    title: str,
    outputs: Mapping[str, Outputs] | None = None,
    training: Sequence[RenderableType] = (),
) -> Group:
    """The whole live view; at the end with what is known of `outputs`. `training`: more rows."""
    tables = [Fitted(task_table(results, title, outputs))] if results else []
    return Group(*tables, *training, memory_lines(snapshot), notice_lines(snapshot))


def deciding(tasks: int) -> Progress:
    """The display while plans for many tasks are looked for; use it in a `with`."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    where = console()
    # what is no terminal keeps an empty line of what passes
    progress = Progress(*columns, console=where, transient=True, disable=not where.is_terminal)
    progress.add_task(f"looking for plans by which {tasks} tasks keep their deadlines", total=None)
    return progress


def console() -> Console:
    """Where people look; standard output is for the one JSON object.

    What is no terminal has no width of its own; 80 columns would cut the table of tasks.
    """
    return Console(stderr=True, width=None if sys.stderr.isatty() else _FILE_COLUMNS)
