"""`tierline run`: the tasks of manifests on this machine, watched and counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
)
from rich.text import Text

from tierline_api.manifests import load_manifests
from tierline_cli import decide
from tierline_cli.errors import EXIT_BROKEN_PROMISE, EXIT_FAILED, EXIT_INFEASIBLE
from tierline_cli.live import console, deciding, screen
from tierline_cli.local_run import LocalRun, RunOptions
from tierline_cli.options import (
    FiniteRange,
    OutputFile,
    files_argument,
    machine_options,
    margin_option,
    paths_of,
)
from tierline_cli.report import again_sentence, sentences
from tierline_cli.report import as_json as task_json
from tierline_operator.planning.answer import Infeasible

_REFRESH_S = 0.5


@click.command(name="run")
@files_argument
@click.option(
    "--duration",
    type=FiniteRange(min=0, min_open=True),
    help="Seconds of releases; until Ctrl-C if absent.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option(
    "--json-file",
    type=OutputFile(),
    help="Write that object here, too.",
)
@click.option(
    "--profiles-file",
    type=OutputFile(),
    help="Write the tasks' MemProfiles here, with the worst that their jobs took.",
)
@machine_options
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics here."
)
@click.option(
    "--profile-jobs",
    type=click.IntRange(min=3),
    default=12,
    show_default=True,
    help="Jobs of each program to measure it with.",
)
@margin_option
def command(
    files: tuple[Path, ...],
    duration: float | None,
    as_json: bool,
    json_file: Path | None,
    profiles_file: Path | None,
    fast_memory: int,
    nvme: Path | None,
    pmem: Path | None,
    extent_size: int | None,
    gpu: int,
    metrics_port: int | None,
    profile_jobs: int,
    margin: float | None,
) -> None:
    """Run the MemTasks in FILES on this machine.

    Profiles the tasks, proves their deadlines (or says why not, and exits 3), starts one program a
    task, and shows how they do. Exits 4 if a Hard task missed a deadline or an output differed.
    """
    options = RunOptions(
        fast_bytes=fast_memory,
        tier_paths=paths_of(nvme, pmem),
        extent_bytes=extent_size,
        metrics_port=metrics_port,
        profile_jobs=profile_jobs,
        margin=margin,
        gpu=gpu,
    )
    with LocalRun(load_manifests([str(file) for file in files]), options) as run:
        report = _run(run, duration, profiles_file)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(report))
    if report.get("admitted") is False:
        raise SystemExit(EXIT_INFEASIBLE)
    if any(not task["jobs"] for task in report["tasks"]):
        raise SystemExit(EXIT_FAILED)
    if any(task["promise_broken"] for task in report["tasks"]):
        raise SystemExit(EXIT_BROKEN_PROMISE)


def _run(run: LocalRun, duration: float | None, profiles_file: Path | None) -> dict[str, Any]:
    where = console()
    show_profiling(run, where)
    with where.status("starting the agent, measuring its links"):
        node = run.start_agent()
    with deciding(len(run.tasks)):
        answer = run.admit(node)
    if isinstance(answer, Infeasible):
        where.print(f"[bold red]not admitted[/] ({answer.reason}): {answer.sentence}")
        return decide.answer_json(answer)
    where.print(f"[bold green]admitted[/]: {decide.slack_sentence(answer)}")
    where.print(decide.scheduling_sentence(answer))
    for remark in answer.remarks:
        where.print(f"[yellow]{remark}[/]")
    show_loading(run, where)
    show_running(run, duration, where)
    with where.status("ending the programs"):
        snapshot = run.finish()
    show_comparing(run, where)
    reports = run.reports(snapshot)
    outputs = {one.task.name: one.outputs for one in reports}
    where.print(screen([one.result for one in reports], snapshot, "summary", outputs))
    for sentence in sentences(reports, snapshot):
        where.print(Text(sentence, style="yellow"))
    times = [one.times for one in reports]
    if any(one.overruns or one.memory_overruns for one in times):
        where.print(Text(again_sentence(run.admitted_again(times)), style="yellow"))
    if profiles_file is not None:
        documents = [profile.to_api() for profile in run.profiles(times)]
        profiles_file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return {
        "device": snapshot["device"],
        "fast_memory_limit_bytes": snapshot["fast_limit_bytes"],
        "fast_memory_peak_bytes": snapshot["fast_peak_bytes"],
        "weights_bytes": run.measured.weights_bytes,
        "links": snapshot["links"],
        "scheduling": answer.scheduling.value,
        "remarks": list(answer.remarks),
        "tasks": [
            task_json(one, told)
            for one, told in zip(reports, _in_order(run, snapshot), strict=True)
        ],
    }


def show_comparing(run: LocalRun, where: Console) -> None:
    """See that outputs can be compared, and show what runs for that."""
    with where.status("comparing outputs") as status:
        run.compare(
            lambda name, done: status.update(
                f"comparing outputs: running {name} without Tierline, {done} jobs"
            )
        )


def _in_order(run: LocalRun, snapshot: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    by_name = {task["name"]: task for task in snapshot["tasks"]}
    return [by_name[task.name] for task in run.tasks]


def _progress(where: Console, last: ProgressColumn) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), last)
    return Progress(*columns, console=where)


def show_profiling(run: LocalRun, where: Console) -> None:
    """Measure what has no profile, and show how far that is."""
    jobs = run.options.profile_jobs
    with _progress(where, MofNCompleteColumn()) as progress:
        bars = {
            task.name: progress.add_task(f"profiling {task.name}", total=jobs)
            for task in run.measured.unprofiled()
        }
        run.measured.take(jobs, lambda name, done: progress.update(bars[name], completed=done))
        for bar in bars.values():
            progress.update(bar, completed=jobs)


def show_loading(run: LocalRun, where: Console) -> None:
    """Start the programs, and show how their weights go into tiers."""
    sizes = {name: profile.spec.weight_bytes for name, profile in run.measured.profiles.items()}
    with _progress(where, DownloadColumn(binary_units=True)) as progress:
        bars = {
            name: progress.add_task(f"loading {name}", total=size) for name, size in sizes.items()
        }

        def show(snapshot: Mapping[str, Any]) -> None:
            for task in snapshot["tasks"]:
                name = task["name"]
                done = sizes[name] if task["ready"] else min(task["stored_bytes"], sizes[name])
                progress.update(bars[name], completed=done)

        run.load(show)


def show_running(run: LocalRun, duration: float | None, where: Console) -> None:
    """Let the releases begin, and show the jobs until they are over or somebody ends it."""
    try:
        where.print("running; Ctrl-C ends")
        with Live(console=where, refresh_per_second=4, transient=True) as live:
            for snapshot in run.release(duration).watch(_REFRESH_S):
                live.update(screen(run.results(final=False), snapshot, "running"))
    except KeyboardInterrupt:
        run.interrupt()
        where.print("ending")
