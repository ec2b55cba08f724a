"""A planner's answer: three queues with waits and addresses, and no times.

Compute, device to host and host to device each run their steps in order; a step starts once the
steps that it waits for are over. So a plan is right or wrong whatever the times turn out to be:
a slow link costs time, never data.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

FORMAT = 1
ALIGNMENT = 512  # what PyTorch's allocator aligns to; every offset is a multiple


class PlanError(ValueError):
    """The input is not a plan as it was written; says why."""


class Queue(IntEnum):
    """The queues that run steps, each one after another."""

    COMPUTE = 0
    D2H = 1
    H2D = 2


@dataclass(frozen=True, slots=True)
class Instance:
    """A value at a place in the arena; a live-in value has no place there (`offset` is None).

    A value that is made again, or comes back from the host, is another instance. The last
    instance of a live-out value is the one that the program gets.
    """

    value: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a queue: an operator, or a copy of one value (`operator` is None).

    `reads` and `writes` are indices of instances, an operator's in the order of its values. A copy
    to the host reads one instance and writes none; a value goes to the host at most once. A copy
    from the host writes one and reads none. `waits` are pairs of another queue and the index of
    its step, at most one for each queue. `workspace` is the offset of the operator's workspace in
    the arena, if it needs one.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    waits: tuple[tuple[Queue, int], ...]
    operator: int | None = None
    workspace: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of the three queues, and one arena; live-in values lie outside of it.

    Right for the graph of that digest only. `budget_bytes` counts the arena and all live-in
    values; `host_bytes` is what its copies need on the host.
    """

    graph: str
    budget_bytes: int
    arena_bytes: int
    host_bytes: int
    instances: tuple[Instance, ...]
    queues: tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]

    @property
    def digest(self) -> str:
        """SHA-256 of its fields' canonical text."""
        return hashlib.sha256(_text(self._stored()).encode()).hexdigest()

    def to_json(self) -> str:
        """Its canonical text, which ends with the digest: one line, no spaces."""
        return _text({**self._stored(), "digest": self.digest})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote; raises PlanError for anything else.

        That it is a plan does not make it right: `verify` decides.
        """
        try:
            stored = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"no plan, or one that was cut short: {error}") from None
        try:
            plan = _plan(stored)
        except PlanError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError(f"no plan: {error!r}") from None
        if plan.to_json() != text:
            raise PlanError("the plan was edited: it is not the text that its digest is of")
        return plan

    def _stored(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "graph": self.graph,
            "budget_bytes": self.budget_bytes,
            "arena_bytes": self.arena_bytes,
            "host_bytes": self.host_bytes,
            "instances": [
                {"value": instance.value, "offset": instance.offset} for instance in self.instances
            ],
            "queues": [
                [
                    {
                        "reads": step.reads,
                        "writes": step.writes,
                        "waits": step.waits,
                        "operator": step.operator,
                        "workspace": step.workspace,
                    }
                    for step in queue
                ]
                for queue in self.queues
            ],
        }


@dataclass(frozen=True, slots=True)
class Links:
    """How fast the host's link copies, in bytes a second, and what each copy costs beforehand.

    `together` is what both directions reach at once, the sum of the two. None copies: a plan
    may then only compute again.
    """

    d2h: float
    h2d: float
    together: float
    latency_ns: int

    def __post_init__(self) -> None:
        """Raise ValueError that names the speed that copies nothing."""
        for name in ("d2h", "h2d", "together"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is no speed in bytes a second")
        if self.latency_ns < 0:
            raise ValueError(f"latency_ns: {self.latency_ns} is below 0")


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No plan takes less than `least_bytes`: `operator` needs them while it runs.

    Without an operator it is what must be there whatever runs.
    """

    least_bytes: int
    operator: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class NotFound:
    """None was found; one may exist. The least that was reached, and a bound on its time."""

    least_bytes: int
    time_bound_ns: int


def _text(stored: dict[str, Any]) -> str:
    return json.dumps(stored, separators=(",", ":"))


def _count(found: Any, field: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 63:
        raise PlanError(f"{field}: {found!r:.40} is not a whole number from 0 to 2^63 - 1")
    return found


def _count_or_none(found: Any, field: str) -> int | None:
    return None if found is None else _count(found, field)


def _plan(stored: Any) -> Plan:
    if stored["format"] != FORMAT:
        raise PlanError(f"format {stored['format']!r:.40} is not {FORMAT}")
    if len(stored["queues"]) != len(Queue):
        raise PlanError(f"queues: there are {len(Queue)}, not {len(stored['queues'])}")
    compute, d2h, h2d = (tuple(_step(entry) for entry in queue) for queue in stored["queues"])
    return Plan(
        str(stored["graph"]),
        _count(stored["budget_bytes"], "budget_bytes"),
        _count(stored["arena_bytes"], "arena_bytes"),
        _count(stored["host_bytes"], "host_bytes"),
        tuple(
            Instance(_count(entry["value"], "value"), _count_or_none(entry["offset"], "offset"))
            for entry in stored["instances"]
        ),
        (compute, d2h, h2d),
    )


def _step(stored: Any) -> Step:
    return Step(
        tuple(_count(instance, "reads") for instance in stored["reads"]),
        tuple(_count(instance, "writes") for instance in stored["writes"]),
        tuple((_queue(queue), _count(index, "waits")) for queue, index in stored["waits"]),
        _count_or_none(stored["operator"], "operator"),
        _count_or_none(stored["workspace"], "workspace"),
    )


def _queue(found: Any) -> Queue:
    number = _count(found, "waits")
    if number >= len(Queue):
        raise PlanError(f"waits: there is no queue {number}")
    return Queue(number)
