"""From the graph that AOTAutograd traced to the graph that is planned.

AOTAutograd gives one functional graph of forward and backward. Its nodes that only look at memory
differently (views, elements of tuples) are no operators: tensors that share a storage are one
value. What is left are kernel calls, each of which writes storages of its own.

Operators that the forward's results need come first, then all others: what only the backward needs
runs in the backward.

Results (what the forward gives, new running statistics, and what else the program's tensors are
changed to) are the program's to keep. They take no part of the arena: memory of their own is
counted all the time, as one value that nothing reads, and what writes one runs once. With
`allocates` that value also counts what a kernel allocates before it is moved to its place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tierline_steps.graph import Graph, Operator, Role, Value
from tierline_torch.planned.norms import is_training

Times = Callable[[fx.Node], int]
"""How long a node's kernel runs, in nanoseconds."""

_ROOT = re.compile(r"^[LG]\[[^]]*\]\.?")


class NotCapturedError(Exception):
    """A graph that cannot be planned; says why."""


@dataclass(frozen=True)
class Lowered:
    """A graph, the node that runs each operator, and the storage of each value."""

    graph: Graph
    nodes: tuple[fx.Node, ...]
    values: dict[int, int]
    """The value of each storage, by its key."""

    def value_of(self, tensor: torch.Tensor) -> int:
        """The value whose storage a tensor of the traced graph has."""
        return self.values[key(tensor)]


def key(tensor: torch.Tensor) -> int:
    """The identity of storages of one traced graph, as long as the graph is there."""
    return int(tensor.untyped_storage()._cdata)


def tensors(found: Any) -> list[torch.Tensor]:
    """All tensors in what a node gives."""
    return [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]


def operands(node: fx.Node) -> list[torch.Tensor]:
    """All tensors that a node reads."""
    return [one for read in node.all_input_nodes for one in tensors(read.meta.get("val"))]


def lowered(
    joint: fx.GraphModule,
    num_fwd_outputs: int,
    static: Sequence[int],
    times: Times,
    name: str,
    *,
    allocates: bool = False,
) -> Lowered:
    """The graph of a joint module, whose first outputs are the forward's.

    Raises:
        NotCapturedError: it has what cannot be planned.
    """
    return _Lowering(joint, num_fwd_outputs, static, times, allocates).run(name)


def writes_operands(node: fx.Node) -> bool:
    """Whether a kernel gives one of its operands' storages back."""
    read = set(map(key, operands(node)))
    return any(key(one) in read for one in tensors(node.meta["val"]))


class _Lowering:
    def __init__(
        self,
        joint: fx.GraphModule,
        num_fwd_outputs: int,
        static: Sequence[int],
        times: Times,
        allocates: bool,
    ) -> None:
        self.joint, self.times, self.allocates = joint, times, allocates
        self.static = set(static)
        (output,) = (node for node in joint.graph.nodes if node.op == "output")
        results = pytree.tree_leaves(output.args)
        self.results, self.gradients = results[:num_fwd_outputs], results[num_fwd_outputs:]
        self.values: dict[int, int] = {}
        self.about: list[tuple[str, int, Role]] = []
        self.kernels: list[fx.Node] = []

    def run(self, name: str) -> Lowered:
        self._read()
        used = self._used()
        forward = self._needed(self.results)
        first = [node for node in used if node in forward]
        then = [node for node in used if node not in forward]
        self._set_roles()
        kept = self._renumbered(first + then)
        operators = tuple(self._operator(node, kept) for node in first + then)
        values = tuple(self._value(old) for old in kept)
        apart = Value("kept by the program", self._apart(first + then, kept), Role.INPUT)
        graph = Graph(name, (*values, apart), operators, len(first))
        graph.check()
        return Lowered(
            graph,
            tuple(first + then),
            {storage: kept[old] for storage, old in self.values.items() if old in kept},
        )

    def _value(self, number: int) -> Value:
        name, size, role = self.about[number]
        return Value(name, 0 if role is Role.RESULT else size, role)

    def _apart(self, nodes: list[fx.Node], kept: dict[int, int]) -> int:
        """Bytes of results, and the most that kernels allocate."""
        results = sum(
            size
            for number, (_, size, role) in enumerate(self.about)
            if role is Role.RESULT and number in kept
        )
        if not self.allocates:
            return results
        made = [
            sum(
                size
                for _, size, role in map(self.about.__getitem__, self._made(node))
                if role is not Role.RESULT
            )
            for node in nodes
        ]
        return results + max(made, default=0)

    def _made(self, node: fx.Node) -> set[int]:
        found = set(self._values(tensors(node.meta.get("val"))))
        return found - set(self._values(operands(node)))

    def _read(self) -> None:
        number = 0
        for node in self.joint.graph.nodes:
            found = node.meta.get("val")
            if node.op == "placeholder":
                role = Role.WEIGHT if number in self.static else Role.INPUT
                self._name(found, str(node.target), role)
                number += 1
            elif node.op == "get_attr":
                self._name(found, str(node.target), Role.INPUT)
            elif node.op == "call_function" and node.target is not operator.getitem:
                self._read_call(node, found)

    def _name(self, found: Any, name: str, role: Role) -> list[int]:
        """Number the storages that were not there before."""
        new = []
        for tensor in tensors(found):
            _check_static(tensor, name)
            if key(tensor) not in self.values:
                self.values[key(tensor)] = len(self.about)
                new.append(len(self.about))
                self.about.append((name, tensor.untyped_storage().nbytes(), role))
        return new

    def _read_call(self, node: fx.Node, found: Any) -> None:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise NotCapturedError(f"it calls {target}, which is no operator of PyTorch's")
        if target._schema.is_mutable:
            raise NotCapturedError(f"it calls {target}, which writes its operands")
        if self._name(found, name_of(node), Role.ACTIVATION):
            if writes_operands(node):
                raise NotCapturedError(f"{target} gives an operand back among its results")
            self.kernels.append(node)

    def _values(self, found: Iterable[torch.Tensor]) -> list[int]:
        return sorted({self.values[key(one)] for one in found})

    def _needed(self, ends: Iterable[Any]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        todo = [node for node in ends if isinstance(node, fx.Node)]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += node.all_input_nodes
        return found

    def _used(self) -> list[fx.Node]:
        needed = self._needed(self.results) | self._needed(self.gradients)
        return [node for node in self.kernels if node in needed]

    def _set_roles(self) -> None:
        for nodes, role in ((self.gradients, Role.GRADIENT), (self.results, Role.RESULT)):
            for node in nodes:
                for tensor in tensors(node.meta.get("val")) if isinstance(node, fx.Node) else ():
                    name, size, before = self.about[self.values[key(tensor)]]
                    if not before.is_live_in:
                        self.about[self.values[key(tensor)]] = (name, size, role)

    def _renumbered(self, nodes: list[fx.Node]) -> dict[int, int]:
        """New numbers of the values that operators touch, in their order."""
        touched: set[int] = set()
        for node in nodes:
            touched.update(self._values([*operands(node), *tensors(node.meta.get("val"))]))
        return {old: new for new, old in enumerate(sorted(touched))}

    def _operator(self, node: fx.Node, kept: dict[int, int]) -> Operator:
        reads = {kept[old] for old in self._values(operands(node))}
        made = self._made(node)
        gives = any(self.about[old][2] is Role.RESULT for old in made)
        return Operator(
            name_of(node),
            tuple(sorted(reads)),
            tuple(sorted(kept[old] for old in made)),
            self.times(node),
            0,
            is_repeatable(node) and (is_training(node) or not gives),
        )


def is_repeatable(node: fx.Node) -> bool:
    """Whether a second run gives the same bits: it draws no random numbers.

    Attention that drops nothing draws none, although it could.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return True
    return bool(_argument(node, "dropout_p", None) == 0.0)


def _argument(node: fx.Node, name: str, otherwise: Any) -> Any:
    """The value in a call for one of its operator's arguments."""
    if name in node.kwargs:
        return node.kwargs[name]
    for number, about in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if about.name == name:
            return node.args[number] if number < len(node.args) else about.default_value
    return otherwise


def name_of(node: fx.Node) -> str:
    """The module that a kernel belongs to, and the kernel; or that of the forward it derives."""
    kernel = str(node.target).removeprefix("aten.").removesuffix(".default")
    for field, suffix in (("nn_module_stack", ""), ("fwd_nn_module_stack", " (backward)")):
        stack = node.meta.get(field)
        if stack:
            path = _path(next(reversed(stack.values()))[0])
            return f"{path}.{kernel}{suffix}" if path else f"{kernel}{suffix}"
    return kernel


def _path(found: str) -> str:
    """`layer.0.conv` of what Dynamo calls `L['model'].layer.0.conv`."""
    return _ROOT.sub("", found)


def _check_static(tensor: torch.Tensor, name: str) -> None:
    if any(isinstance(one, torch.SymInt) for one in (*tensor.shape, *tensor.stride())):
        raise NotCapturedError(f"the size of {name} is not known when it is planned")
