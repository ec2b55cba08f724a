"""`tierline simulate`: the tasks' plans played on a simulated device, by the agent's own rules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tierline_cli import decide
from tierline_cli.agent_policy import AgentPolicy
from tierline_cli.errors import EXIT_INFEASIBLE
from tierline_cli.inputs import manifests_with_tasks, one_node, profiles_for
from tierline_cli.live import deciding, shown_time
from tierline_cli.options import (
    PICTURES,
    FiniteRange,
    OutputFile,
    files_argument,
    json_option,
    margin_option,
    node_option,
    scheduling_option,
)
from tierline_cli.results import percentile
from tierline_cli.timeline import draw, perfetto
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.simulation.device import Noise, Seen, simulate
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

_INSTANT_S = 1e-9
_START_S = 0.001


@dataclass(frozen=True)
class _Play:
    """What was asked of the simulation."""

    duration_s: float
    releases: str
    seed: int
    shortest: float


@click.command(name="simulate")
@files_argument
@node_option
@scheduling_option
@click.option(
    "--duration",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Simulated seconds of releases.",
)
@click.option(
    "--releases",
    type=click.Choice(["together", "offset", "sporadic", "adaptive"]),
    default="together",
    show_default=True,
    help="All at once behind the blocker; at random offsets; with random gaps; at the worst moment"
    " in sight.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what is random.")
@click.option(
    "--shortest",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Layers and copies take a random share of their planned time, from this one to all of it.",
)
@click.option(
    "--png",
    type=OutputFile(PICTURES),
    help="Draw a Gantt chart and the distribution of response times.",
)
@click.option(
    "--trace",
    type=OutputFile(),
    help="Write a trace for ui.perfetto.dev.",
)
@json_option
@margin_option
def command(
    files: tuple[Path, ...],
    node: Path | None,
    scheduling: Scheduling | None,
    duration: float,
    releases: str,
    seed: int,
    shortest: float,
    png: Path | None,
    trace: Path | None,
    as_json: bool,
    margin: float | None,
) -> None:
    """Play the MemTasks in FILES on a simulated device, with the plans that admission grants.

    Jobs give the device away as admission chose it for the node, unless `--scheduling` says how.
    A refused set is played with the plans that came nearest, so that its misses can be seen; then
    the exit status is 3. FILES hold MemTasks and their MemProfiles, and a MemNode.
    """
    manifests = manifests_with_tasks(files, "play")
    profiles = profiles_for(manifests, manifests.tasks)
    where = one_node(manifests, node)
    demands, device = decide.question_of_all(manifests.tasks, profiles, where, margin)
    with deciding(len(demands)):
        answer = planner.plan(demands, device, scheduling=scheduling)
    plans = answer.plans if isinstance(answer, Admitted) else answer.nearest
    if isinstance(answer, Infeasible):
        Console(stderr=True).print(f"[bold red]not admitted[/]: {answer.sentence}")
    if plans:
        play = _Play(duration, releases, seed, shortest)
        seen = _simulate(demands, plans, device, answer, play)
        names = [demand.name for demand in demands]
        links = list(device.tiers)
        if png is not None:
            draw(seen, names, links, [plan.response_s for plan in plans], png)
        if trace is not None:
            trace.write_text(json.dumps(perfetto(seen, names, links)) + "\n")
        if as_json:
            said = _as_json(seen, demands, plans, answer)
            click.echo(json.dumps({**said, "link_use": _link_use(seen, links)}))
        else:
            if isinstance(answer, Admitted):
                Console().print(decide.memory_sentence(answer, device))
            Console().print(_table(seen, demands, plans, answer))
            use = _link_use(seen, links).items()
            Console().print("; ".join(f"link {name} copies {share:.0%}" for name, share in use))
    if not answer.ok:
        raise SystemExit(EXIT_INFEASIBLE)


def _simulate(
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    device: DeviceCapacity,
    answer: Admitted | Infeasible,
    play: _Play,
) -> Seen:
    random = Random(play.seed)  # noqa: S311 - a simulation that can be repeated
    first = [_START_S] * len(demands)
    if play.releases != "together":
        first = [_START_S + random.random() * demand.period_s for demand in demands]
    for index, demand in enumerate(demands):
        if demand.name == answer.blocker and play.releases == "together":
            first[index] -= _INSTANT_S
    pattern = Pattern(
        first,
        _START_S + play.duration_s,
        sporadic=0.5 if play.releases in {"sporadic", "adaptive"} else 0.0,
        adaptive=play.releases == "adaptive",
    )

    def share() -> float:
        return random.uniform(play.shortest, 1.0)

    return simulate(
        models_of(demands, plans, device),
        machine_of(plans, device, answer.scheduling),
        Arrivals([demand.period_s for demand in demands], pattern, random.random),
        AgentPolicy(),
        Noise(share, share) if play.shortest < 1 else None,
        record=True,
    )


def _rows(
    seen: Seen, demands: Sequence[TaskDemand], plans: Sequence[TaskPlan]
) -> list[dict[str, Any]]:
    return [
        {
            "name": demand.name,
            "period_s": demand.period_s,
            "jobs": len(seen.responses_s[index]),
            "misses": seen.misses[index],
            "response_p50_s": percentile(seen.responses_s[index], 0.5),
            "response_p99_s": percentile(seen.responses_s[index], 0.99),
            "response_worst_s": max(seen.responses_s[index], default=0.0),
            "predicted_worst_s": plan.response_s,
            "preemptible": plan.preemptible,
        }
        for index, (demand, plan) in enumerate(zip(demands, plans, strict=True))
    ]


def _use(seen: Seen) -> float:
    return seen.busy_s / seen.end_s if seen.end_s else 0.0


def _link_use(seen: Seen, links: Sequence[str]) -> dict[str, float]:
    """The share of the time in which each link copies, other traffic included."""
    busy = dict.fromkeys(links, 0.0)
    for span in seen.spans:
        if span.link >= 0:
            busy[links[span.link]] += span.end_s - span.start_s
    return {name: busy_s / seen.end_s if seen.end_s else 0.0 for name, busy_s in busy.items()}


def _as_json(
    seen: Seen,
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    answer: Admitted | Infeasible,
) -> dict[str, Any]:
    return {
        "admitted": answer.ok,
        "scheduling": answer.scheduling.value,
        "simulated_s": seen.end_s,
        "device_use": _use(seen),
        "preemptions": seen.preemptions,
        "rings_lost": seen.rings_lost,
        "tasks": _rows(seen, demands, plans),
    }


def _table(
    seen: Seen,
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    answer: Admitted | Infeasible,
) -> Table:
    table = Table(
        title=f"{seen.end_s:.1f} s simulated, {answer.scheduling.value}: device computes "
        f"{_use(seen):.0%} of the time, {seen.preemptions} preemptions, {seen.rings_lost} of them "
        "cost the ring",
        title_justify="left",
        header_style="bold",
    )
    table.add_column("task")
    for column in ("period", "jobs", "misses", "p50", "p99", "worst", "bound"):
        table.add_column(column, justify="right")
    for row in _rows(seen, demands, plans):
        table.add_row(
            row["name"],
            shown_time(row["period_s"]),
            str(row["jobs"]),
            str(row["misses"]),
            shown_time(row["response_p50_s"]),
            shown_time(row["response_p99_s"]),
            shown_time(row["response_worst_s"]),
            shown_time(row["predicted_worst_s"]),
        )
    return table
