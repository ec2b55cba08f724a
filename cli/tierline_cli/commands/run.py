"""`tierline run`: the tasks of manifests on this machine, watched and counted."""

import json
from collections.abc import Mapping, Sequence
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

from tierline_api.manifests.files import load_manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_cli.errors import EXIT_BROKEN_PROMISE, EXIT_FAILED, EXIT_INFEASIBLE
from tierline_cli.local.measurements import OnWord
from tierline_cli.local.run import LocalRun, RunOptions
from tierline_cli.options import (
    FiniteRange,
    OutputFile,
    files_argument,
    gpu_for,
    machine_options,
    margin_option,
    paths_of,
)
from tierline_cli.output import writing
from tierline_cli.planning import decide
from tierline_cli.reporting.live import console, deciding, screen
from tierline_cli.reporting.report import TaskReport, again_sentence, sentences
from tierline_cli.reporting.report import as_json as task_json
from tierline_cli.reporting.training import training_rows, training_sentences
from tierline_cli.reporting.verdicts import Verdict
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
@click.option(
    "--node-file",
    type=OutputFile(),
    help="Write the MemNode that was planned for here, for admit, plan, explain and simulate.",
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
    node_file: Path | None,
    fast_memory: int,
    nvme: Path | None,
    pmem: Path | None,
    extent_size: int | None,
    gpu: int | None,
    metrics_port: int | None,
    profile_jobs: int,
    margin: float | None,
) -> None:
    """Run the MemTasks in FILES on this machine.

    Profiles the tasks, proves their deadlines (or says why not, and exits 3), starts one program a
    task, and shows how they do. Exits 4 if a Hard task missed a deadline, an output or
    the weights after a step differed, or a job failed in Tierline's code.
    """
    manifests = load_manifests([str(file) for file in files])
    options = RunOptions(
        fast_bytes=fast_memory,
        tier_paths=paths_of(nvme, pmem),
        extent_bytes=extent_size,
        metrics_port=metrics_port,
        profile_jobs=profile_jobs,
        margin=margin,
        gpu=gpu_for(manifests.tasks, gpu),
    )
    with LocalRun(manifests, options) as run:
        report = _run(run, duration, profiles_file, node_file)
    if json_file is not None:
        with writing(json_file):
            json_file.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(report))
    if report.get("admitted") is False:
        raise SystemExit(EXIT_INFEASIBLE)
    trainings = report["trainings"]
    if not all([task["jobs"] for task in report["tasks"]] + [one["steps"] for one in trainings]):
        raise SystemExit(EXIT_FAILED)
    different = any(one["weights"]["verdict"] == Verdict.DIFFERENT for one in trainings)
    if different or any(task["promise_broken"] for task in report["tasks"]):
        raise SystemExit(EXIT_BROKEN_PROMISE)


def _run(
    run: LocalRun, duration: float | None, profiles_file: Path | None, node_file: Path | None
) -> dict[str, Any]:
    where = console()
    show_profiling(run, where)
    if run.options.margin is None and not run.steadiness.steady:
        where.print(Text(run.steadiness.sentence(run.margin), style="yellow"))
    with where.status("starting the agent, measuring its links"):
        node = run.start_agent()
    _write(node_file, [node])
    _write(profiles_file, list(run.measured.profiles.values()))  # a refused set can be explained
    with deciding(len(run.tasks)):
        answer = run.admit(node)
    if isinstance(answer, Infeasible):
        where.print(f"[bold red]not admitted[/] ({answer.reason}): {answer.sentence}")
        return {**decide.answer_json(answer), "margin": run.margin}
    where.print(f"[bold green]admitted[/]: {decide.slack_sentence(answer)}")
    where.print(decide.scheduling_sentence(answer))
    for sentence in decide.training_sentences(run.tasks, answer):
        where.print(sentence)
    for remark in answer.remarks:
        where.print(f"[yellow]{remark}[/]")
    show_loading(run, where)
    show_running(run, duration, where)
    with where.status("ending the programs"):
        snapshot = run.finish()
    show_comparing(run, where)
    reports = run.reports(snapshot)
    outputs = {one.task.name: one.outputs for one in reports}
    trainings, weights = run.trainings(snapshot), run.outputs()
    rows = training_rows(trainings, weights)
    where.print(screen([one.result for one in reports], snapshot, "summary", outputs, rows))
    for sentence in (
        *sentences(reports, snapshot),
        *training_sentences(trainings, weights, run.last_words),
    ):
        where.print(Text(sentence, style="yellow"))
    times = run.job_times(snapshot)
    if any(one.overruns or one.memory_overruns for one in times):
        where.print(Text(again_sentence(run.admitted_again(times)), style="yellow"))
    _write(profiles_file, run.profiles(times))
    return {
        "device": snapshot["device"],
        "fast_memory_limit_bytes": snapshot["fast_limit_bytes"],
        "fast_memory_peak_bytes": snapshot["fast_peak_bytes"],
        "fast_memory_start_peak_bytes": snapshot["fast_start_peak_bytes"],
        "weights_bytes": run.measured.weights_bytes,
        "links": snapshot["links"],
        "scheduling": answer.scheduling.value,
        "margin": run.margin,
        "variation": run.steadiness.variation,
        "remarks": list(answer.remarks),
        "tasks": [
            task_json(one, told)
            for one, told in zip(reports, _in_order(reports, snapshot), strict=True)
        ],
        "trainings": [
            {**one.as_json(), "weights": weights[one.name].as_json()} for one in trainings
        ],
    }


def _write(path: Path | None, objects: Sequence[MemNode | MemProfile]) -> None:
    if path is not None:
        with writing(path):
            path.write_text(yaml.safe_dump_all([one.to_api() for one in objects], sort_keys=False))


def show_comparing(run: LocalRun, where: Console) -> None:
    """See that outputs can be compared, and show what runs for that."""
    try:
        with where.status("comparing outputs") as status:
            run.compare(
                lambda name, done: status.update(
                    f"comparing outputs: running {name} without Tierline, {done} jobs"
                ),
                saying(where),
            )
    except KeyboardInterrupt:
        run.measured.leave_references()
        where.print("ending")


def saying(where: Console) -> OnWord:
    """Tell a person a sentence in the middle of something."""
    return lambda sentence: where.print(Text(sentence, style="yellow"))


def _in_order(
    reports: Sequence[TaskReport], snapshot: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    by_name = {task["name"]: task for task in snapshot["tasks"]}
    return [by_name[one.task.name] for one in reports]


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
        run.measured.take(
            jobs, lambda name, done: progress.update(bars[name], completed=done), saying(where)
        )
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

        run.load(show, saying(where))


def show_running(run: LocalRun, duration: float | None, where: Console) -> None:
    """Let the releases begin, and show the jobs until they are over or somebody ends it."""
    try:
        where.print(
            f"running; Ctrl-C ends; the agent's state: tierline top --run-dir {run.run_dir}",
            highlight=False,
            soft_wrap=True,
        )
        with Live(console=where, refresh_per_second=4, transient=True) as live:
            for snapshot in run.release(duration).watch(_REFRESH_S):
                rows = training_rows(run.trainings(snapshot), None)
                live.update(screen(run.results(final=False), snapshot, "running", None, rows))
    except KeyboardInterrupt:
        run.interrupt()
        where.print("ending")
