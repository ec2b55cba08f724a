"""The operator graph of a forward, or of a training step's forward and backward together."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

FORMAT = 1


class GraphError(ValueError):
    """The input is not the graph of a step; says which field, and why."""


class Role(str, Enum):
    """The role of a value in the program.

    Weights and inputs are live-in: the program made them, they stay, and no step may write
    them. Gradients and results are live-out: they must be there when the step ends. What is
    neither is an activation: it may be dropped and made again, or moved to the host and back.
    """

    WEIGHT = "weight"
    INPUT = "input"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    RESULT = "result"

    @property
    def is_live_in(self) -> bool:
        """Whether it is there before the first operator runs."""
        return self in {Role.WEIGHT, Role.INPUT}

    @property
    def is_live_out(self) -> bool:
        """Whether it must be there after the last operator ran."""
        return self in {Role.GRADIENT, Role.RESULT}


@dataclass(frozen=True, slots=True)
class Value:
    """One storage; tensors that share a storage are one value."""

    name: str
    size_bytes: int
    role: Role


@dataclass(frozen=True, slots=True)
class Operator:
    """One kernel call; reads and writes are indices of values, each once, in ascending order.

    An operator that is not repeatable (random numbers, atomics, statistics that it moves) runs
    exactly once, and after those before it: two may draw from one generator. `workspace_bytes`
    is what it needs in addition to operands and results while it runs.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    time_ns: int
    workspace_bytes: int = 0
    repeatable: bool = True


@dataclass(frozen=True)
class Graph:
    """Operators in an order that the program may run them in, and the values between them.

    Each value that is not live-in is written by exactly one operator, before all that read it.
    `backward` is the index of the backward's first operator; of a forward alone it is their
    number. Between the two the program has control: no operator of the backward runs before each
    of the forward has.
    """

    name: str
    values: tuple[Value, ...]
    operators: tuple[Operator, ...]
    backward: int

    @cached_property
    def writer(self) -> tuple[int, ...]:
        """Per value the index of the operator that writes it; -1 for a live-in one."""
        writer = [-1] * len(self.values)
        for index, operator in enumerate(self.operators):
            for value in operator.writes:
                writer[value] = index
        return tuple(writer)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per value the indices of the operators that read it, ascending."""
        readers: list[list[int]] = [[] for _ in self.values]
        for index, operator in enumerate(self.operators):
            for value in operator.reads:
                readers[value].append(index)
        return tuple(map(tuple, readers))

    @cached_property
    def live_in_bytes(self) -> int:
        """Memory of weights and inputs, all the time."""
        return sum(value.size_bytes for value in self.values if value.role.is_live_in)

    @cached_property
    def time_ns(self) -> int:
        """How long the operators take, each once."""
        return sum(operator.time_ns for operator in self.operators)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its canonical text: a plan names the graph that it was made for."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def peak_bytes(self) -> int:
        """The most that is live at once when every operator runs once, in the given order."""
        change = [0] * (len(self.operators) + 1)
        last = len(self.operators) - 1
        for index, value in enumerate(self.values):
            begun = self.writer[index]
            if begun < 0:
                continue
            end = last if value.role.is_live_out else max(self.readers[index], default=begun)
            change[begun] += value.size_bytes
            change[end + 1] -= value.size_bytes
        live = most = 0
        for index, operator in enumerate(self.operators):
            live += change[index]
            most = max(most, live + operator.workspace_bytes)
        return self.live_in_bytes + most

    def to_json(self) -> str:
        """Its canonical text: one line, no spaces."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Graph":
        """Read what `to_json` wrote; raises GraphError for anything else."""
        try:
            stored = json.loads(text)
            if stored["format"] != FORMAT:
                raise GraphError(f"format {stored['format']} is not {FORMAT}")
            graph = cls(
                str(stored["name"]),
                tuple(_value(entry) for entry in stored["values"]),
                tuple(_operator(entry) for entry in stored["operators"]),
                _count(stored["backward"], "backward"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise GraphError(f"no graph of a step: {error!r}") from None
        except json.JSONDecodeError as error:
            raise GraphError(f"no JSON: {error}") from None
        graph.check()
        return graph

    def check(self) -> None:
        """See that it is a graph as described; raises GraphError that names what is not."""
        if not 0 <= self.backward <= len(self.operators):
            raise GraphError(f"backward {self.backward} is no operator's index")
        made = [value.role.is_live_in for value in self.values]
        for index, operator in enumerate(self.operators):
            where = f"operator {index} ({operator.name})"
            for value in chain(operator.reads, operator.writes):
                if value >= len(self.values):
                    raise GraphError(f"{where}: there is no value {value}")
            for operands in (operator.reads, operator.writes):
                if any(a >= b for a, b in pairwise(operands)):
                    raise GraphError(f"{where}: its operands are not each once, in ascending order")
            for value in operator.reads:
                if not made[value]:
                    raise GraphError(f"{where} reads {self.values[value].name} before it is made")
            for value in operator.writes:
                if made[value]:
                    raise GraphError(f"{where} writes {self.values[value].name}, which is there")
                made[value] = True
        for index, is_made in enumerate(made):
            if not is_made:
                raise GraphError(f"no operator makes {self.values[index].name}")


def _count(found: Any, field: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise GraphError(f"{field}: {found!r} is not a whole number of at least 0")
    return found


def _value(stored: dict[str, Any]) -> Value:
    try:
        role = Role(stored["role"])
    except ValueError:
        raise GraphError(f"role: there is none {stored['role']!r}") from None
    return Value(str(stored["name"]), _count(stored["size_bytes"], "size_bytes"), role)


def _operator(stored: dict[str, Any]) -> Operator:
    return Operator(
        str(stored["name"]),
        tuple(_count(value, "reads") for value in stored["reads"]),
        tuple(_count(value, "writes") for value in stored["writes"]),
        _count(stored["time_ns"], "time_ns"),
        _count(stored["workspace_bytes"], "workspace_bytes"),
        bool(stored["repeatable"]),
    )
