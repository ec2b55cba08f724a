"""`tierline explain`: why a set of tasks is admitted or not, and what would change that."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tierline_cli.errors import EXIT_INFEASIBLE
from tierline_cli.options import files_argument, json_option, margin_option, node_option
from tierline_cli.planning import decide, objects
from tierline_cli.planning.inputs import manifests_with_tasks, one_node, profiles_for
from tierline_cli.reporting.live import deciding
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

_WORTH_SAYING_S = 0.001


@click.command(name="explain")
@files_argument
@node_option
@json_option
@margin_option
def command(
    files: tuple[Path, ...], node: Path | None, as_json: bool, margin: float | None
) -> None:
    """Say why the MemTasks in FILES hold their deadlines on a node, or why not.

    Answers for each way of scheduling, and says which one the node's agent would run; where the
    objects of a task (spec.swap.objects) lie, and why, or which one cannot be had. FILES hold
    MemTasks, their MemProfiles and a MemNode. Exits 0 if it admits the set, 3 if not, 2 on bad
    input.
    """
    manifests = manifests_with_tasks(files, "explain")
    profiles = profiles_for(manifests, manifests.tasks)
    where = one_node(manifests, node)
    demands, device = decide.question_of_all(manifests.tasks, profiles, where, margin)
    with deciding(len(demands)):
        answers = {way: planner.plan(demands, device, scheduling=way) for way in Scheduling}
    chosen = next((way for way in planner.supported(device) if answers[way].ok), None)
    if as_json:
        said = {way.value: _as_json(answer, demands) for way, answer in answers.items()}
        click.echo(json.dumps({**said, "chosen": None if chosen is None else chosen.value}))
    else:
        for way, answer in answers.items():
            _show(way, answer, demands, device)
        if chosen is not None:
            Console().print(f"the agent runs it [bold]{chosen.value}[/]")
    if chosen is None:
        raise SystemExit(EXIT_INFEASIBLE)


def _as_json(answer: Admitted | Infeasible, demands: Sequence[TaskDemand]) -> dict[str, Any]:
    said = decide.answer_json(answer)
    if isinstance(answer, Admitted):
        said["preemptible"] = [plan.name for plan in answer.plans if plan.preemptible]
        said["objects"] = [
            one
            for demand, plan in zip(demands, answer.plans, strict=True)
            for one in objects.as_json(demand, plan)
        ]
    return said


def _show(
    way: Scheduling,
    answer: Admitted | Infeasible,
    demands: Sequence[TaskDemand],
    device: DeviceCapacity,
) -> None:
    console = Console()
    if way not in device.supports:
        console.print("[dim]agents do not do this on the node's device:[/]")
    if isinstance(answer, Infeasible):
        console.print(f"[bold]{way.value}[/]: [bold red]not admitted[/]: {answer.sentence}")
        return
    console.print(f"[bold]{way.value}[/]: [bold green]admitted[/]: {decide.slack_sentence(answer)}")
    console.print(f"  {decide.memory_sentence(answer, device)}")
    if answer.blocker is not None:
        console.print(f"  in that window {answer.blocker} may hold the device first")
    yielding = [plan for plan in answer.plans if plan.preemptible]
    for plan in yielding:
        console.print(
            f"  {plan.name} gives way where a layer ends: {plan.parked_bytes / 2**20:,.0f} MiB "
            f"stay parked, {plan.penalty_s * 1e3:.2f} ms are done again"
        )
    for demand, plan in zip(demands, answer.plans, strict=True):
        for sentence in (*_of_release(plan), *objects.sentences(demand, plan)):
            console.print(f"  {sentence}")
    for remark in answer.remarks:
        console.print(f"  [yellow]{remark}[/]")


def _of_release(plan: TaskPlan) -> Iterator[str]:
    """The parts of a release in addition to one job that begins at once."""
    if plan.calls > 1:
        yield (
            f"{plan.name} asks for the device {plan.calls} times a release, for up to "
            f"{plan.call_s * 1e3:.2f} ms each, and may wait for others each time"
        )
    if plan.first_s >= _WORTH_SAYING_S:
        yield (
            f"{plan.name} may keep the others waiting for {plan.first_s * 1e3:.2f} ms when its "
            "program starts, and as often as it starts again"
        )
    if plan.jitter_s >= _WORTH_SAYING_S:
        yield (
            f"{plan.name} asks up to {plan.jitter_s * 1e3:.2f} ms after its release, and is "
            "planned as due so much sooner after that"
        )
