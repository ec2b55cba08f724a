"""`tierline fit`: the step of a model that a function gives, captured, and planned for budgets."""

import importlib
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_steps.bound import Bound, bound, floor
from tierline_steps.graph import Graph
from tierline_steps.plan import Infeasible, NotFound, Plan, PlanError
from tierline_steps.planner import plan
from tierline_steps.timing import finish_ns
from tierline_steps.verify import PlanRejectedError, verify

if TYPE_CHECKING:
    from torch import nn

_SHAPE = "(model, inputs) or (model, inputs, loss)"


@dataclass(frozen=True)
class Point:
    """The answer for one budget, and what no answer can beat."""

    budget_bytes: int
    plan: Plan
    step_ns: int
    bound: Bound

    @property
    def again(self) -> int:
        """How many operators run again."""
        steps = self.plan.queues[0]
        return len(steps) - len({step.operator for step in steps})


@dataclass(frozen=True)
class _Step:
    model: "nn.Module"
    inputs: Sequence[Any]
    loss: Callable[[Any], Any] | None


def captured(target: str, device: str) -> Graph:
    """The graph of the step that MODULE:FUNCTION gives; times are modelled for a device.

    Raises:
        CommandError: there is none; says what is wrong with what.
    """
    try:
        from tierline_torch.planned.capture import capture  # noqa: PLC0415 - seconds
        from tierline_torch.planned.lowering import NotCapturedError  # noqa: PLC0415
        from tierline_torch.planned.modelled import DEVICES  # noqa: PLC0415
    except ImportError as error:
        raise CommandError(
            f"tierline fit captures with PyTorch, which cannot be imported ({error}): "
            "pip install 'tierline[torch]'",
            EXIT_BAD_INPUT,
        ) from error
    step = _given(target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return capture(
                step.model, step.inputs, step.loss, DEVICES[device].time_ns, target
            ).graph
    except NotCapturedError as error:
        raise CommandError(f"{target} cannot be planned: {error}", EXIT_BAD_INPUT) from error


def _given(target: str) -> _Step:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise CommandError(
            f"{target!r} is no MODULE:FUNCTION; write for instance scans.model:training_step",
            EXIT_BAD_INPUT,
        )
    found = _called(target, _function(target, module, name))
    parts = list(found) if isinstance(found, (tuple, list)) else []
    if not (2 <= len(parts) <= 3 and callable(parts[0]) and hasattr(parts[0], "parameters")):
        raise CommandError(f"{target} gives {_kind(found)}; it must give {_SHAPE}", EXIT_BAD_INPUT)
    loss = parts[2] if len(parts) == 3 else None
    if loss is not None and not callable(loss):
        raise CommandError(
            f"{target}: its loss is {_kind(loss)}; it must be a function of the model's output",
            EXIT_BAD_INPUT,
        )
    inputs = parts[1] if isinstance(parts[1], (tuple, list)) else (parts[1],)
    return _Step(parts[0], tuple(inputs), loss)


def _kind(found: Any) -> str:
    if isinstance(found, (tuple, list)):
        return f"{len(found)} things ({', '.join(type(one).__name__ for one in found)})"
    return f"a {type(found).__name__}"


def _function(target: str, module: str, name: str) -> Callable[[], Any]:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            raise CommandError(
                f"{target}: there is no module {module} here or among what is installed",
                EXIT_BAD_INPUT,
            ) from error
        raise CommandError(f"{target}: {_failure(error)}", EXIT_BAD_INPUT) from error
    function = getattr(found, name, None)
    if not callable(function):
        raise CommandError(f"{target}: {module} has no function {name}", EXIT_BAD_INPUT)
    return function  # type: ignore[no-any-return]  # whatever the module holds


def _called(target: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise CommandError(f"{target}: {_failure(error)}", EXIT_BAD_INPUT) from error


def _failure(error: Exception) -> str:
    """An exception of the user's code: what, and in which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}{place}" if words else f"{type(error).__name__}{place}"


def fitted(
    graph: Graph, budget_bytes: int, seconds: float, seed: int
) -> Point | Infeasible | NotFound:
    """A verified plan within the budget, or why there is none."""
    end = time.monotonic() + seconds
    found = plan(graph, budget_bytes, seed=seed, go_on=lambda: time.monotonic() < end)
    return _point(graph, found, budget_bytes) if isinstance(found, Plan) else found


def _point(graph: Graph, found: Plan, budget_bytes: int) -> Point:
    least = bound(graph, budget_bytes, None)
    if isinstance(least, Infeasible):
        raise PlanRejectedError(None, None, f"a bound excludes it: {least.reason}")
    return Point(budget_bytes, found, finish_ns(graph, found, None), least)


def curve(graph: Graph, seconds: float, seed: int, count: int) -> list[Point]:
    """Points from the least memory that a plan was found for to the peak as it is.

    What more memory does not make faster keeps the plan for less.
    """
    least = floor(graph).least_bytes
    most = max(graph.peak_bytes(), least + 1)
    points: list[Point] = []
    for number in range(count):
        budget = round(least * (most / least) ** (number / (count - 1)))
        found = fitted(graph, budget, seconds / count, seed)
        if not isinstance(found, Point):
            continue
        if points and points[-1].step_ns < found.step_ns:
            found = Point(budget, points[-1].plan, points[-1].step_ns, found.bound)
        points.append(found)
    return points


def read_plan(path: Path, graph: Graph) -> Plan:
    """A plan that was written to a file, verified for this graph.

    Raises:
        CommandError: it is none, or not right for the graph under every timing.
    """
    try:
        found = Plan.from_json(path.read_text())
        verify(graph, found)
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: no plan: it is no text", EXIT_BAD_INPUT) from error
    except (PlanError, PlanRejectedError) as error:
        raise CommandError(f"{path}: {error}", EXIT_BAD_INPUT) from error
    return found


def as_dict(
    graph: Graph, device: str, answer: Point | Infeasible | NotFound | None
) -> Mapping[str, Any]:
    """The object that `--json` prints."""
    least = floor(graph)
    found: dict[str, Any] = {
        "graph": {
            "name": graph.name,
            "digest": graph.digest,
            "operators": len(graph.operators),
            "liveInBytes": graph.live_in_bytes,
            "peakBytes": graph.peak_bytes(),
            "stepNs": graph.time_ns,
            "modelledFor": device,
        },
        "leastBytes": least.least_bytes,
    }
    if isinstance(answer, Point):
        found["plan"] = {
            "budgetBytes": answer.budget_bytes,
            "bytes": answer.plan.arena_bytes + graph.live_in_bytes,
            "hostBytes": answer.plan.host_bytes,
            "stepNs": answer.step_ns,
            "boundNs": answer.bound.time_ns,
            "again": answer.again,
            "digest": answer.plan.digest,
        }
    elif isinstance(answer, Infeasible):
        found["infeasible"] = {"leastBytes": answer.least_bytes, "reason": answer.reason}
    elif isinstance(answer, NotFound):
        found["notFound"] = {
            "leastBytes": answer.least_bytes,
            "boundNs": answer.time_bound_ns,
        }
    return found
