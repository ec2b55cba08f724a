"""`tierline profile`: measures the models of MemTasks and writes MemProfiles."""

import tempfile
from pathlib import Path

import click
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from tierline_api.manifests.files import load_manifests
from tierline_cli.commands.run import saying
from tierline_cli.local import profiling
from tierline_cli.local.leftovers import Leftovers
from tierline_cli.local.place import Place
from tierline_cli.options import OutputFile, files_argument, gpu_for, gpu_option
from tierline_cli.output import writing
from tierline_cli.planning.inputs import tasks_named
from tierline_cli.reporting.live import console


@click.command(name="profile")
@files_argument
@click.option("--task", "only", help="Only this task.")
@click.option(
    "--jobs", type=click.IntRange(min=3), default=12, show_default=True, help="Jobs to measure."
)
@gpu_option
@click.option(
    "--output",
    "-o",
    type=OutputFile(allow_dash=True),
    default="-",
    show_default=True,
    help="Where the MemProfiles go; - is the standard output.",
)
def command(
    files: tuple[Path, ...], only: str | None, jobs: int, gpu: int | None, output: Path
) -> None:
    """Run the programs of the MemTasks in FILES alone, and write what was measured.

    The profile of a task gets the task's name; set spec.profile to it, or keep both in one file.
    """
    manifests = load_manifests([str(file) for file in files])
    chosen = tasks_named(manifests, only)
    number = gpu_for(chosen, gpu)
    leftovers = Leftovers()
    work_dir = Path(tempfile.mkdtemp(prefix="tierline-profile-"))
    leftovers.remove_afterwards(work_dir)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    documents = []
    try:
        where = console()
        with Progress(*columns, console=where) as progress:
            for task in chosen:
                place = Place(task.spec.device.kind.value, number)
                product = place.product()  # before the program is started
                bar = progress.add_task(f"profiling {task.name}", total=jobs)
                seen = profiling.observe(
                    task,
                    place,
                    work_dir,
                    jobs,
                    lambda done, bar=bar: progress.update(bar, completed=done),  # type: ignore[misc]
                    saying(where),
                )
                progress.update(bar, completed=jobs)
                profile = profiling.as_profile(task, seen, product)
                documents.append(profile.to_api())
    finally:
        leftovers.close()
    with writing(output), click.open_file(output, "w") as file:
        file.write(yaml.safe_dump_all(documents, sort_keys=False))
