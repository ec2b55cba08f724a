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

from tierline_cli.errors import EXIT_BAD_INPUT, EXIT_INFEASIBLE, CommandError
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
from tierline_cli.output import writing
from tierline_cli.planning import decide
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_cli.planning.inputs import (
    check_none_trains,
    manifests_with_tasks,
    one_node,
    profiles_for,
)
from tierline_cli.planning.timeline import draw, perfetto
from tierline_cli.reporting.live import deciding, shown_time
from tierline_cli.reporting.narrow import Fitted
from tierline_cli.reporting.results import percentile
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.request import TaskDemand
from tierline_operator.simulation.device import Machine, Noise, Seen, simulate
from tierline_operator.simulation.from_plans import AGAIN_S, machine_of, models_of, starting_of
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

_INSTANT_S = 1e-9
_MOST_RELEASES = 100_000
"""Minutes of playing."""
_START_S = 0.001


@dataclass(frozen=True)
class _Play:
    """The question to the simulation."""

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
    help="Simulated seconds in which jobs are released, and programs start again; what was released"
    " is played to its end, so more may be simulated.",
)
@click.option(
    "--releases",
    type=click.Choice(["together", "offset", "sporadic", "adaptive"]),
    default="together",
    show_default=True,
    help="All at once after the blocker; at random offsets; with random gaps; at the worst moment"
    " in sight.",
)
@click.option("--seed", type=int, help="Of what is random; 1 if absent.")
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
    seed: int | None,
    shortest: float,
    png: Path | None,
    trace: Path | None,
    as_json: bool,
    margin: float | None,
) -> None:
    """Play the MemTasks in FILES on a simulated device, with the plans that admission grants.

    Jobs give the device away as admission chose it for the node, unless `--scheduling` says how.
    Programs whose first jobs were measured start again four times a second, as the proof allows.
    A refused set is played with the plans that came nearest, so that its misses can be seen; then
    the exit status is 3. FILES hold MemTasks and their MemProfiles, and a MemNode.
    """
    if seed is not None and releases == "together" and shortest == 1:
        raise CommandError(
            f"--seed {seed}: nothing is random; leave it out, or choose other --releases than "
            "together, or a --shortest below 1",
            EXIT_BAD_INPUT,
        )
    manifests = manifests_with_tasks(files, "play")
    check_none_trains(manifests.tasks, "played")
    profiles = profiles_for(manifests, manifests.tasks)
    where = one_node(manifests, node)
    demands, device = decide.question_of_all(manifests.tasks, profiles, where, margin)
    rate_hz = sum(1 / demand.period_s for demand in demands)
    if duration * rate_hz > _MOST_RELEASES:
        raise CommandError(
            f"--duration {duration:g} has {duration * rate_hz:,.0f} releases, and at most "
            f"{_MOST_RELEASES:,} are played; give at most {_MOST_RELEASES / rate_hz:.3g}",
            EXIT_BAD_INPUT,
        )
    with deciding(len(demands)):
        answer = planner.plan(demands, device, scheduling=scheduling)
    if isinstance(answer, Admitted) and scheduling not in {None, answer.scheduling}:
        raise CommandError(
            f"--scheduling {scheduling}: no job of these plans yields, so it would be played as "
            f"{answer.scheduling}; leave it out",
            EXIT_BAD_INPUT,
        )
    plans = answer.plans if isinstance(answer, Admitted) else answer.nearest
    if isinstance(answer, Infeasible):
        Console(stderr=True).print(f"[bold red]not admitted[/]: {answer.sentence}")
    if plans:
        play = _Play(duration, releases, 1 if seed is None else seed, shortest)
        starting = starting_of(demands, plans, device)
        models = [*models_of(demands, plans, device), *starting]
        machine = machine_of(plans, device, answer.scheduling)
        seen = _simulate(models, machine, answer, play)
        names = [model.name for model in models]
        bounds = [*(plan.response_s for plan in plans), *[None] * len(starting)]
        links = list(device.tiers)
        if png is not None:
            with writing(png):
                draw(seen, names, links, bounds, png)
        if trace is not None:
            with writing(trace):
                trace.write_text(json.dumps(perfetto(seen, names, links)) + "\n")
        if as_json:
            said = _as_json(seen, demands, plans, answer)
            said["starting"] = [model.name for model in starting]
            click.echo(json.dumps({**said, "link_use": _link_use(seen, links)}))
        else:
            if isinstance(answer, Admitted):
                Console().print(decide.memory_sentence(answer, device))
            Console().print(Fitted(_table(seen, demands, plans, answer, duration)))
            if starting:
                names = [demand.name for demand in demands if demand.first_section_s is not None]
                Console().print(
                    f"programs that start again every {shown_time(AGAIN_S)}: {', '.join(names)}"
                )
            use = _link_use(seen, links).items()
            Console().print("; ".join(f"link {name} copies {share:.0%}" for name, share in use))
    if not answer.ok:
        raise SystemExit(EXIT_INFEASIBLE)


def _simulate(
    models: Sequence[TaskModel],
    machine: Machine,
    answer: Admitted | Infeasible,
    play: _Play,
) -> Seen:
    random = Random(play.seed)  # noqa: S311 - a simulation that can be repeated
    periods_s = [model.period_s for model in models]
    first = [_START_S] * len(models)
    if play.releases != "together":
        first = [_START_S + random.random() * period_s for period_s in periods_s]
    for index, model in enumerate(models):
        # The name of the blocker may mean the task, or its program that starts.
        if play.releases == "together" and (model.name == answer.blocker or model.starts):
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
        models,
        machine,
        Arrivals(periods_s, pattern, random.random),
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


def _use(seen: Seen, demands: Sequence[TaskDemand]) -> tuple[float, float]:
    """The shares of the time in which jobs of the tasks compute, and programs that start."""
    whole_s = seen.end_s or 1.0
    tasks_s, all_s = sum(seen.busy_s[: len(demands)]), sum(seen.busy_s)
    return tasks_s / whole_s, (all_s - tasks_s) / whole_s


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
        "device_use": _use(seen, demands)[0],
        "device_use_starting": _use(seen, demands)[1],
        "preemptions": seen.preemptions,
        "rings_lost": seen.rings_lost,
        "tasks": _rows(seen, demands, plans),
    }


def _table(
    seen: Seen,
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    answer: Admitted | Infeasible,
    duration_s: float,
) -> Table:
    used, starting = _use(seen, demands)
    started = f", and {starting:.0%} for programs that start" if starting else ""
    table = Table(
        title=f"{seen.end_s:.1f} s simulated, that is releases for {duration_s:g} s and the rest "
        f"of their jobs, {answer.scheduling.value}: device computes "
        f"{used:.0%} of the time{started}, {seen.preemptions} preemptions, "
        f"{seen.rings_lost} of them cost the ring",
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
