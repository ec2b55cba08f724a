"""`tierline admit`: would these tasks hold their deadlines on that node?"""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import EXIT_INFEASIBLE
from tierline_cli.options import files_argument, json_option, margin_option, node_option
from tierline_cli.planning import decide
from tierline_cli.planning.inputs import manifests_with_tasks, one_node, profiles_for
from tierline_cli.reporting.live import deciding, shown_size, shown_time
from tierline_cli.reporting.narrow import Fitted
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.request import DeviceCapacity


@click.command(name="admit")
@files_argument
@node_option
@json_option
@margin_option
def command(
    files: tuple[Path, ...], node: Path | None, as_json: bool, margin: float | None
) -> None:
    """Say whether the MemTasks in FILES hold their deadlines on a node, and with which plans.

    FILES hold MemTasks and their MemProfiles. Exits 0 if admitted, 3 if not, 2 on bad input.
    """
    manifests = manifests_with_tasks(files, "admit")
    profiles = profiles_for(manifests, manifests.tasks)
    where = one_node(manifests, node)
    demands, device = decide.question_of_all(manifests.tasks, profiles, where, margin)
    with deciding(len(demands)):
        answer = planner.plan(demands, device)
    if as_json:
        click.echo(json.dumps(decide.answer_json(answer)))
    else:
        _show(manifests.tasks, answer, device)
    if isinstance(answer, Infeasible):
        raise SystemExit(EXIT_INFEASIBLE)


def _show(tasks: Sequence[MemTask], answer: Admitted | Infeasible, device: DeviceCapacity) -> None:
    console = Console()
    if isinstance(answer, Infeasible):
        console.print(f"[bold red]not admitted[/] ({answer.reason}): {answer.sentence}")
        return
    console.print(f"[bold green]admitted[/]: {decide.slack_sentence(answer)}")
    for sentence in decide.training_sentences(tasks, answer):
        console.print(sentence)
    console.print(decide.scheduling_sentence(answer))
    console.print(decide.memory_sentence(answer, device))
    for remark in answer.remarks:
        console.print(f"[yellow]{remark}[/]")
    table = Table(header_style="bold")
    table.add_column("task")
    for column in ("resident", "ring", "workspace", "streamed/job", "job time", "response"):
        table.add_column(column, justify="right")
    for plan in answer.plans:
        table.add_row(
            plan.name,
            shown_size(len(plan.resident_extents) * plan.extent_bytes),
            shown_size(plan.ring_extents * plan.extent_bytes),
            shown_size(plan.workspace_bytes),
            shown_size(plan.streamed_bytes),
            shown_time(plan.job_time_s),
            shown_time(plan.response_s),
        )
    console.print(Fitted(table))
