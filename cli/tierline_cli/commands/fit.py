"""`tierline fit`: a training step, or a forward, planned for less memory than it takes."""

import csv
import json
from pathlib import Path
from typing import Any

import click

from tierline_api.schema.quantities import without_b
from tierline_cli.errors import EXIT_INFEASIBLE, CommandError
from tierline_cli.options import PICTURES, FiniteRange, InputFile, OutputFile, Quantity, json_option
from tierline_cli.output import drawing, writing
from tierline_cli.planning.steps import Point, as_dict, captured, curve, fitted, read_plan
from tierline_steps.bound import floor
from tierline_steps.graph import Graph, Role
from tierline_steps.plan import Infeasible, NotFound, Plan, Queue

_POINTS = 12
_DEVICES = ("H200", "H100", "A100", "V100", "CPU")


class _Memory(Quantity):
    """Bytes; also with the B that everybody says: 1GiB."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return bytes; anything else is a usage error that says what to write."""
        text = str(value)
        if text.endswith("B") and not text.endswith("iB"):
            self.fail(
                f"{text} may mean either; write {text[:-1]}iB for 2^30 bytes a GiB, or {text[:-1]} "
                "for 10^9 a GB",
                param,
                ctx,
            )
        return super().convert(without_b(text), param, ctx)


@click.command(name="fit")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--memory", type=_Memory(), help="Bytes for weights, inputs and all else: 1GiB.")
@click.option(
    "--curve", "picture", type=OutputFile(PICTURES), help="Draw time against memory here."
)
@click.option("--csv", "table", type=OutputFile((".csv",)), help="Write that curve here.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0),
    default=10.0,
    show_default=True,
    help="How long to search on after a first plan; for a curve, for all points together.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the search.")
@click.option(
    "--device",
    type=click.Choice(_DEVICES),
    default="H200",
    show_default=True,
    help="For which times are modelled.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write the plan here.")
@click.option(
    "--verify",
    "check",
    type=InputFile(exists=True, dir_okay=False, path_type=Path),
    help="Plan nothing: verify the plan in this file.",
)
@json_option
def command(
    target: str,
    memory: int | None,
    picture: Path | None,
    table: Path | None,
    seconds: float,
    seed: int,
    device: str,
    output: Path | None,
    check: Path | None,
    as_json: bool,
) -> None:
    """Plan the step of a model in less memory: what runs again, in which order, where it lies.

    FUNCTION takes nothing and gives (model, inputs), or (model, inputs, loss) for a training step,
    where loss is a function of the model's output. Nothing runs; a model on the meta device takes
    no memory.
    """
    _have_effect(memory, output, check, picture or table)
    graph = captured(target, device)
    if not as_json:
        click.echo(_headline(graph, device))
    if check is not None:
        found = read_plan(check, graph)
        click.echo(json.dumps({"verified": found.digest}) if as_json else _proof(graph, found))
        return
    if picture is not None or table is not None:
        _write_curve(graph, curve(graph, seconds, seed, _POINTS), picture, table)
    answer = fitted(graph, memory, seconds, seed) if memory is not None else None
    if as_json:
        click.echo(json.dumps(as_dict(graph, device, answer)))
    if isinstance(answer, (Infeasible, NotFound)):
        raise _refusal(answer, memory or 0, graph)
    if answer is not None and output is not None:
        with writing(output):
            output.write_text(answer.plan.to_json())
    if not as_json:
        _tell(graph, answer)


def _have_effect(
    memory: int | None, output: Path | None, check: Path | None, drawn: Path | None
) -> None:
    if check is not None and (memory is not None or output is not None or drawn is not None):
        raise click.UsageError("--verify plans nothing: leave out --memory, -o, --curve and --csv")
    if output is not None and memory is None:
        raise click.UsageError("-o writes the plan for --memory; say how much")


def _refusal(answer: Infeasible | NotFound, memory: int, graph: Graph) -> CommandError:
    if isinstance(answer, Infeasible):
        return CommandError(
            f"no plan fits in {_size(memory)}: {_size(answer.least_bytes)} is the least, for "
            f"{answer.reason}",
            EXIT_INFEASIBLE,
        )
    return CommandError(
        f"no plan was found in {_size(memory)}, and one may exist: "
        f"{_size(answer.least_bytes)} was the least that was reached, "
        f"{_size(floor(graph).least_bytes)} is a bound; search longer (--seconds), or give more",
    )


def _size(size_bytes: int) -> str:
    if size_bytes >= 2 << 30:
        return f"{size_bytes / 2**30:,.2f} GiB"
    return f"{size_bytes / 2**20:,.{0 if size_bytes >= 10 << 20 else 2}f} MiB"


def _time(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.1f} ms"


def _extra(time_ns: int, graph: Graph) -> str:
    return f"{100 * (time_ns / max(1, graph.time_ns) - 1):+.1f} %"


def _headline(graph: Graph, device: str) -> str:
    weights = sum(v.size_bytes for v in graph.values if v.role is Role.WEIGHT)
    return (
        f"{graph.name}   {len(graph.operators):,} operators, {_size(weights)} of weights, "
        f"peak {_size(graph.peak_bytes())}, step {_time(graph.time_ns)} (modelled for {device})"
    )


def _tell(graph: Graph, answer: Point | None) -> None:
    least = floor(graph)
    below = f"bound     no plan below {_size(least.least_bytes)} ({least.reason})"
    if answer is None:
        click.echo(below)
        return
    used = answer.plan.arena_bytes + graph.live_in_bytes
    click.echo(
        f"plan      {_size(used)}, step {_time(answer.step_ns)} "
        f"({_extra(answer.step_ns, graph)}): {answer.again:,} operators run again"
    )
    click.echo(
        f"{below}; none in {_size(answer.budget_bytes)} below {_extra(answer.bound.time_ns, graph)}"
    )
    click.echo(_proof(graph, answer.plan))


def _proof(graph: Graph, plan: Plan) -> str:
    queues = [queue for queue in Queue if plan.queues[queue]]
    steps = sum(len(plan.queues[queue]) for queue in queues)
    waits = sum(len(step.waits) for queue in queues for step in plan.queues[queue])
    return (
        f"proof     verified: {len(queues)} {'queue' if len(queues) == 1 else 'queues'}, "
        f"{steps:,} steps, {waits:,} waits, offsets in one arena of {_size(plan.arena_bytes)} "
        f"and {_size(graph.live_in_bytes)} of weights and inputs; right under every timing"
    )


def _write_curve(
    graph: Graph, points: list[Point], picture: Path | None, table: Path | None
) -> None:
    if not points:
        raise CommandError("no plan was found for any budget; search longer (--seconds)")
    rows: list[dict[str, Any]] = [
        {
            "budget_bytes": point.budget_bytes,
            "plan_bytes": point.plan.arena_bytes + graph.live_in_bytes,
            "step_ns": point.step_ns,
            "bound_ns": point.bound.time_ns,
            "again": point.again,
        }
        for point in points
    ]
    if table is not None:
        with writing(table), table.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if picture is not None:
        with drawing(picture) as axes:
            _draw(graph, rows, axes)


def _draw(graph: Graph, rows: list[dict[str, Any]], axes: Any) -> None:
    memory = [row["budget_bytes"] / 2**30 for row in rows]
    for field, label in (("step_ns", "plan, verified"), ("bound_ns", "no plan below")):
        extra = [100 * (row[field] / max(1, graph.time_ns) - 1) for row in rows]
        axes.plot(memory, extra, marker=".", label=label)
    axes.axvline(floor(graph).least_bytes / 2**30, color="gray", linestyle=":", label="floor")
    axes.set_xlabel("memory: weights, inputs and all else (GiB)")
    axes.set_ylabel("longer than the step as it is (%)")
    axes.set_title(graph.name)
    axes.legend()
