"""Run a plan's steps: eager kernels in the planned order, results at the planned places.

A kernel allocates what it gives, and that is moved to its place in the arena; what the program
gets of the forward (results) stays where the kernel put it, as the program may keep it. Both are
counted where a graph is `lowered` with `allocates`.

Invariant: nothing is written into an arena of which any tensor is left, other than by the step that
it belongs to. Tensors over an arena share its storage, and a storage counts its tensors: an arena
is free when only the one that it began with is left. So whatever keeps a tensor of an earlier step
(a backward that is still to come, a second one, a gradient, the program) makes the next step run as
it is, in memory of its own. And as they share one version counter, PyTorch itself would refuse a
backward whose saved tensors were overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tierline_steps.graph import Role
from tierline_steps.plan import Plan, Queue, Step
from tierline_torch.planned import norms
from tierline_torch.planned.kernels import Found, Kernel, Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tierline_steps.graph import Graph


class Arena:
    """Memory that the steps of one model share, one after the other."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._alone = 0
        self._turn = threading.Lock()

    @contextmanager
    def taken(self, size_bytes: int, device: torch.device) -> Iterator[torch.Tensor | None]:
        """Have the arena within; None if it is not free."""
        if not self._turn.acquire(blocking=False):
            yield None
            return
        try:
            yield self._sized(size_bytes, device)
        finally:
            self._turn.release()

    @contextmanager
    def taken_again(self, saved: Sequence[torch.Tensor]) -> Iterator[torch.Tensor | None]:
        """Have the arena that tensors lie in within; None if they lie elsewhere, or it is busy."""
        inside = all(self.holds(one) for one in saved)
        if not inside or not self._turn.acquire(blocking=False):
            yield None
            return
        try:
            yield self._bytes
        finally:
            self._turn.release()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in it."""
        return _storage(tensor) == _storage(self._bytes)

    def _sized(self, size_bytes: int, device: torch.device) -> torch.Tensor | None:
        if self._bytes.numel() and _tensors_of(self._bytes) > self._alone:
            return None
        if self._bytes.numel() < size_bytes or self._bytes.device != device:
            self._bytes = torch.empty(0, dtype=torch.uint8)  # first give back what there is
            self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
            self._alone = _tensors_of(self._bytes)
        return self._bytes


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors_of(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(_storage(tensor)))


@dataclass(frozen=True)
class Program:
    """A plan with its kernels."""

    graph: Graph
    plan: Plan
    kernels: Sequence[Kernel]
    norms: frozenset[int]
    """Operators that are a training BatchNorm."""

    def is_in_arena(self, instance: int) -> bool:
        """Whether an instance lies in the arena: it is neither the program's nor a result."""
        return self.graph.values[self.plan.instances[instance].value].role in {
            Role.ACTIVATION,
            Role.GRADIENT,
        }

    @property
    def boundary(self) -> int:
        """How many steps of the compute queue are the forward's: until each of it has run."""
        seen: set[int | None] = set()
        last = 0
        for index, step in enumerate(self.plan.queues[Queue.COMPUTE]):
            if step.operator is not None and step.operator < self.graph.backward:
                if step.operator not in seen:
                    last = index + 1
                seen.add(step.operator)
        return last

    def run(
        self,
        arena: torch.Tensor,
        steps: range,
        inputs: Mapping[str, Any],
        results: dict[tuple[int, int], torch.Tensor],
    ) -> None:
        """Run steps; `results` has tensors by instance and number, and gets those of the steps."""
        done = {step.operator for step in self.plan.queues[Queue.COMPUTE][: steps.start]}
        for index in steps:
            step = self.plan.queues[Queue.COMPUTE][index]
            self._step(arena, step, inputs, results, again=step.operator in done)
            done.add(step.operator)

    def _step(
        self,
        arena: torch.Tensor,
        step: Step,
        inputs: Mapping[str, Any],
        results: dict[tuple[int, int], torch.Tensor],
        *,
        again: bool,
    ) -> None:
        assert step.operator is not None  # noqa: S101 - `verify` has seen to it
        kernel = self.kernels[step.operator]
        instances = {self.plan.instances[one].value: one for one in step.reads}
        found = Found(inputs, results, instances)
        if again and step.operator in self.norms:
            arguments = norms.without_statistics(kernel.arguments)
            kernel = replace(kernel, target=norms.AGAIN, arguments=arguments)
        made = {self.plan.instances[one].value: one for one in step.writes}
        for number, tensor in enumerate(kernel.call(found)):
            value = kernel.values[number]
            if self.graph.values[value].role is Role.RESULT:
                if not again:
                    results[made[value], number] = tensor
            else:
                results[made[value], number] = self._put(arena, made[value], tensor)

    def _put(self, arena: torch.Tensor, instance: int, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the place of an instance, with all bytes of its storage."""
        about = self.plan.instances[instance]
        storage = tensor.untyped_storage()
        size, offset = storage.nbytes(), about.offset
        if offset is None or size > self.graph.values[about.value].size_bytes:
            return tensor  # the kernel gave more than was traced
        place = arena[offset : offset + size]
        place.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        typed = place.view(tensor.dtype)
        return torch.as_strided(
            typed, tensor.size(), tensor.stride(), typed.storage_offset() + tensor.storage_offset()
        )


def last_instances(plan: Plan, steps: range) -> dict[int, int]:
    """The instance of each value that was written last."""
    found: dict[int, int] = {}
    for step in plan.queues[Queue.COMPUTE][steps.start : steps.stop]:
        found.update({plan.instances[one].value: one for one in step.writes})
    return found


def gathered(outputs: Sequence[Reference | Any], found: Found) -> list[Any]:
    """The results of a half: what references find, and constants as they are."""
    return [one(found) if callable(one) else one for one in outputs]
