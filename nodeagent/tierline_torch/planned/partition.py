"""A joint graph divided into the two halves that AOTAutograd runs, by a verified plan.

The forward saves what the plan keeps at its end, and the tensors of the program that the backward
reads; the backward makes the rest again. Each half is there twice: as the plan's steps, and as an
ordinary graph of its own (`plain`), for when the arena is not free. Both take and give the same.

Results that the program gets are no part of the arena (`lowering`), so what it keeps stays right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import _extract_fwd_bwd_modules
from torch.utils import _pytree as pytree

from tierline_steps.plan import Plan, Queue
from tierline_torch.planned import norms
from tierline_torch.planned.execution import Arena, Program, gathered, last_instances
from tierline_torch.planned.kernels import Found, Reference, References
from tierline_torch.planned.lowering import Lowered

Plain = Callable[..., Any]


@dataclass
class Half:
    """The forward or the backward of a planned step, called as AOTAutograd calls it.

    `inputs` names its arguments. `saved` says which of them are results of the forward, by instance
    and number.
    """

    program: Program
    arena: Arena
    steps: range
    inputs: tuple[str, ...]
    saved: dict[str, tuple[int, int]]
    outputs: list[Reference | Any]
    plain: Plain
    is_backward: bool
    _boxed_call: bool = True

    def __deepcopy__(self, memo: Any) -> Half:
        """AOTAutograd copies graphs; the arena is one."""
        return self

    def __call__(self, arguments: list[Any]) -> Any:
        """Run as planned if the arena is free, else as the graph says."""
        given = dict(zip(self.inputs, arguments, strict=True))
        saved = {place: given[name] for name, place in self.saved.items()}
        with torch.no_grad():
            found = self._backward(given, saved) if self.is_backward else self._forward(given)
        return self.plain(*arguments) if found is None else found

    def _forward(self, given: dict[str, Any]) -> list[Any] | None:
        for one in given.values():
            self._move_gradient(one)
        device = next(
            (one.device for one in given.values() if isinstance(one, torch.Tensor)),
            torch.device("cpu"),
        )
        with self.arena.taken(self.program.plan.arena_bytes, device) as arena:
            return None if arena is None else self._run(arena, given, {})

    def _move_gradient(self, weight: Any) -> None:
        """A gradient of the step before that the program still has goes out of the arena."""
        gradient = weight.grad if isinstance(weight, torch.Tensor) and weight.is_leaf else None
        if gradient is not None and self.arena.holds(gradient):
            weight.grad = gradient.clone()

    def _backward(
        self, given: dict[str, Any], saved: dict[tuple[int, int], torch.Tensor]
    ) -> list[Any] | None:
        if torch._C._autograd._get_current_graph_task_keep_graph():
            return None  # another backward will read what is saved
        inside = [one for (instance, _), one in saved.items() if self.program.is_in_arena(instance)]
        if not inside:
            return None
        with self.arena.taken_again(inside) as arena:
            return None if arena is None else self._run(arena, given, saved)

    def _run(
        self,
        arena: torch.Tensor,
        given: dict[str, Any],
        results: dict[tuple[int, int], torch.Tensor],
    ) -> list[Any]:
        before = {self.program.plan.instances[instance].value: instance for instance, _ in results}
        self.program.run(arena, self.steps, given, results)
        now = before | last_instances(self.program.plan, self.steps)
        return gathered(self.outputs, Found(given, results, now))


def divided(
    joint: fx.GraphModule, lowered: Lowered, plan: Plan, num_fwd_outputs: int, arena: Arena
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The graphs of forward and backward, each with its planned half in `meta`.

    The plan is one that `verify` accepted for the graph. `joint` is changed.
    """
    cut = _Cut(joint, lowered, plan, num_fwd_outputs)
    twins = norms.split(joint)
    saved = cut.saved | _needed_inputs(joint, num_fwd_outputs, cut.saved)
    order = [node for node in joint.graph.nodes if node in saved]
    forward, backward = _extract_fwd_bwd_modules(
        joint, order, saved_sym_nodes=[], num_fwd_outputs=num_fwd_outputs
    )
    norms.joined(forward, twins)
    named = {node.name: node for node in joint.graph.nodes}
    given = outputs_of(forward)
    kept = [named[node.name] for node in given[num_fwd_outputs:]]
    forward.meta["tierline"] = cut.half(
        arena,
        range(cut.boundary),
        _placeholders(forward),
        [*cut.outputs[:num_fwd_outputs], *map(cut.references.of, kept)],
        forward.forward,
        is_backward=False,
    )
    backward.meta["tierline"] = cut.half(
        arena,
        range(cut.boundary, len(plan.queues[Queue.COMPUTE])),
        _placeholders(backward),
        cut.outputs[num_fwd_outputs:],
        backward.forward,
        is_backward=True,
    )
    return forward, backward


def whole(module: fx.GraphModule, lowered: Lowered, plan: Plan, arena: Arena) -> Half:
    """A forward alone, planned."""
    cut = _Cut(module, lowered, plan, len(outputs_of(module)))
    return cut.half(
        arena,
        range(cut.boundary),
        _placeholders(module),
        cut.outputs,
        module.forward,
        is_backward=False,
    )


def outputs_of(module: fx.GraphModule) -> list[Any]:
    """The results of a graph: nodes, and constants."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return list(pytree.tree_leaves(output.args[0], is_leaf=lambda one: one is None))


def _placeholders(module: fx.GraphModule) -> tuple[str, ...]:
    return tuple(node.name for node in module.graph.nodes if node.op == "placeholder")


def _needed_inputs(
    joint: fx.GraphModule, num_fwd_outputs: int, saved: set[fx.Node]
) -> set[fx.Node]:
    """The program's tensors that the backward reads when it makes the rest from what is saved."""
    found: set[fx.Node] = set()
    todo = [one for one in outputs_of(joint)[num_fwd_outputs:] if isinstance(one, fx.Node)]
    while todo:
        node = todo.pop()
        if node in found or node in saved:
            continue
        found.add(node)
        todo += node.all_input_nodes
    return {node for node in found if _is_primal(node)}


def _is_primal(node: fx.Node) -> bool:
    return node.op == "placeholder" and not node.name.startswith("tangents")


class _Cut:
    """Where a plan's steps divide, and what crosses."""

    def __init__(
        self, joint: fx.GraphModule, lowered: Lowered, plan: Plan, num_fwd_outputs: int
    ) -> None:
        self.references = References(lowered, joint)
        self.nodes = lowered.nodes
        self.program = Program(
            lowered.graph,
            plan,
            [self.references.kernel(node) for node in lowered.nodes],
            frozenset(n for n, node in enumerate(lowered.nodes) if norms.is_training(node)),
        )
        self.boundary = self.program.boundary
        ends = outputs_of(joint)
        self.outputs: list[Reference | Any] = [
            self.references.of(one) if isinstance(one, fx.Node) else one for one in ends
        ]
        self.at_boundary = last_instances(plan, range(self.boundary))
        self.saved = self._crossing(ends[num_fwd_outputs:])
        made = {node.name: self.references.made(node) for node in self.saved}
        self.places = {
            name: (self.at_boundary[found[0]], found[1])
            for name, found in made.items()
            if found is not None
        }

    def _crossing(self, gradients: list[Any]) -> set[fx.Node]:
        steps = self.program.plan.queues[Queue.COMPUTE]
        now, found = dict(self.at_boundary), set()
        done = {step.operator for step in steps[: self.boundary]}
        for step in steps[self.boundary :]:
            assert step.operator is not None  # noqa: S101 - `verify` has seen to it
            read = self.nodes[step.operator].all_input_nodes
            if step.operator in done and step.operator in self.program.norms:
                read = [one for one in self.nodes[step.operator].args[:3] if one is not None]  # type: ignore[misc]
            found |= self._from_before(read, now)
            done.add(step.operator)
            now.update({self.program.plan.instances[one].value: one for one in step.writes})
        ends = [one for one in gradients if isinstance(one, fx.Node)]
        return found | self._from_before(ends, now)

    def _from_before(self, nodes: Sequence[fx.Node], now: dict[int, int]) -> set[fx.Node]:
        """The nodes' sources that the forward made, or the program gave to it."""
        found = set()
        for node in nodes:
            for source in self.references.sources(node):
                made = self.references.made(source)
                if made is None:
                    if _is_primal(source):
                        found.add(source)
                elif now.get(made[0]) == self.at_boundary.get(made[0]):
                    found.add(source)
        return found

    def half(
        self,
        arena: Arena,
        steps: range,
        inputs: tuple[str, ...],
        outputs: list[Reference | Any],
        plain: Plain,
        *,
        is_backward: bool,
    ) -> Half:
        saved = self.places if is_backward else {}
        return Half(self.program, arena, steps, inputs, saved, outputs, plain, is_backward)
