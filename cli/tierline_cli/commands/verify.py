"""`tierline verify`: the outputs of programs with all weights streamed, and without Tierline."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tierline_api.manifests.files import Manifests
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_cli.commands.run import (
    saying,
    show_comparing,
    show_loading,
    show_profiling,
    show_running,
)
from tierline_cli.errors import (
    EXIT_BROKEN_PROMISE,
    EXIT_FAILED,
    EXIT_INFEASIBLE,
    CommandError,
)
from tierline_cli.local.run import LocalRun, RunOptions
from tierline_cli.options import files_argument, gpu_for, json_option, machine_options, paths_of
from tierline_cli.planning.inputs import check_none_trains, manifests_with_tasks
from tierline_cli.reporting.live import console, outputs_text, shown_size, shown_time
from tierline_cli.reporting.narrow import Fitted
from tierline_cli.reporting.report import TaskReport
from tierline_cli.reporting.verdicts import Verdict
from tierline_operator.planning.answer import Infeasible


@click.command(name="verify")
@files_argument
@click.option(
    "--jobs",
    type=click.IntRange(min=3),
    default=12,
    show_default=True,
    help="Jobs of each run of a program; with Tierline a task has as many as fit in so many of the"
    " longest period.",
)
@machine_options
@json_option
def command(
    files: tuple[Path, ...],
    jobs: int,
    fast_memory: int,
    nvme: Path | None,
    pmem: Path | None,
    extent_size: int | None,
    gpu: int | None,
    as_json: bool,
) -> None:
    """Compare what the programs of the MemTasks in FILES compute with Tierline and without.

    Runs each program three times: twice as it is, and once with every weight streamed that can be,
    without deadlines. So what it does besides computing happens three times, too. Outputs are
    compared bit by bit, for those inputs to which the program itself gives one answer. Exits 4 if
    an output differs, 1 if a program did no job; 0 if none differs, also where none is comparable.
    """
    given = manifests_with_tasks(files, "verify")
    check_none_trains(given.tasks, "repeated and compared; tierline run compares weights")
    options = RunOptions(
        fast_bytes=fast_memory,
        tier_paths=paths_of(nvme, pmem),
        extent_bytes=extent_size,
        metrics_port=None,
        profile_jobs=jobs,
        margin=None,
        gpu=gpu_for(given.tasks, gpu),
    )
    with LocalRun(Manifests(tasks=tuple(map(_streaming, given.tasks))), options) as run:
        reports = _verify(run, jobs)
    if as_json:
        said = {one.task.name: one.outputs.as_json() for one in reports}
        click.echo(json.dumps(said))
    else:
        Console().print(Fitted(_table(reports)))
    for sentence in why_many(reports, jobs):
        console().print(sentence, highlight=False)
    for one in reports:
        if one.outputs.why:
            console().print(f"{one.task.name}: {one.outputs.why}", style="yellow", highlight=False)
    if any(not one.result.jobs for one in reports):
        raise SystemExit(EXIT_FAILED)
    if any(one.outputs.verdict is Verdict.DIFFERENT for one in reports):
        raise SystemExit(EXIT_BROKEN_PROMISE)


def _streaming(task: MemTask) -> MemTask:
    """The task without its deadline and its profile, and with all weights streamed that can be."""
    realtime = task.spec.realtime.model_copy(update={"criticality": Criticality.BEST_EFFORT})
    changes: dict[str, object] = {"realtime": realtime, "profile": None}
    if task.spec.swap.policy is not SwapPolicy.SWAP:
        homes = [one.model_copy(update={"policy": None}) for one in task.spec.swap.objects]
        streaming = {
            "policy": SwapPolicy.STREAM,
            "objects": tuple(one for one in homes if one.tier is not None),
        }
        changes["swap"] = task.spec.swap.model_copy(update=streaming)
    return task.model_copy(update={"spec": task.spec.model_copy(update=changes)})


def _verify(run: LocalRun, jobs: int) -> list[TaskReport]:
    where = console()
    show_profiling(run, where)
    with where.status("running the programs a second time without Tierline"):
        run.measured.take_again(jobs, lambda *_: None, saying(where))
    with where.status("starting the agent, measuring its links"):
        node = run.start_agent()
    answer = run.admit(node)
    if isinstance(answer, Infeasible):
        raise CommandError(answer.sentence, EXIT_INFEASIBLE)
    show_loading(run, where)
    show_running(run, jobs * max(task.spec.realtime.period_s for task in run.tasks), where)
    snapshot = run.finish()
    show_comparing(run, where)
    return run.reports(snapshot)


def why_many(reports: list[TaskReport], jobs: int) -> Iterator[str]:
    """Why tasks did far more jobs than were asked for."""
    longest = max(reports, key=lambda one: one.task.spec.realtime.period_s)
    span_s = jobs * longest.task.spec.realtime.period_s
    for one in reports:
        if one.result.jobs <= 2 * jobs:
            continue
        realtime = one.task.spec.realtime
        why = f"its period is {shown_time(realtime.period_s)}"
        if one.result.jobs > 2 * span_s / realtime.period_s:
            why = "its program does not wait for its releases, or has several jobs for each"
        yield (
            f"{one.task.name}: {one.result.jobs} jobs in {shown_time(span_s)}, the time of {jobs} "
            f"releases of {longest.task.name}: {why}"
        )


def _table(reports: list[TaskReport]) -> Table:
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("task")
    for column in ("jobs", "streamed/job"):
        table.add_column(column, justify="right")
    table.add_column("outputs")
    for one in reports:
        table.add_row(
            one.task.name,
            str(one.result.jobs),
            shown_size(one.result.streamed_bytes_per_job),
            outputs_text(one.outputs),
        )
    return table
