"""Working memory of a set of tasks, in addition to weights: workspaces and contexts.

Theorem (memory). Let every program hold no more than its workspace in addition to what the agent
gives it. Where programs give theirs back between jobs, at most one job's is in use: the largest is
enough. Where they keep it, the sum is held as soon as each has run once, whichever runs: so the sum
is charged. What a preempted job has computed so far lies in its own workspace there and costs
nothing more. Extents that tasks have in turns are charged once a domain. A task that trains is
charged for itself, whatever others take: it gives the device away in the middle of a step, and what
it keeps from one step to the next is nobody else's.

The rule itself is tierline_api/devices/fast_memory.py, by which the agent refuses registrations,
too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierline_api.devices.fast_memory import Workspace, charge
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.refusals.reasons import mebibytes
from tierline_operator.planning.request import DeviceCapacity, TaskDemand


def workspace_bytes(demands: Sequence[TaskDemand], *, overlay: bool) -> int:
    """Fast memory that the workspaces of `demands` take together, bytes."""
    if not demands:
        return 0
    size = demands[0].layout.extent_bytes
    rows = (Workspace(d.domain, d.working_bytes, d.in_extents, d.trains) for d in demands)
    return charge(rows, size, overlay=overlay).total_bytes


def contexts_exceeded(tasks: int, device: DeviceCapacity) -> Infeasible | None:
    """The refusal where the contexts of so many tasks do not fit next to the fast memory."""
    contexts = device.contexts
    missing = contexts.missing_bytes(tasks) if contexts is not None else 0
    if contexts is None or not missing:
        return None
    return Infeasible(
        kind="memory",
        reason="FastMemoryExceeded",
        sentence=(
            f"the CUDA contexts of {tasks} tasks and the agent take "
            f"{mebibytes((tasks + 1) * contexts.each_bytes)} in addition to the fast memory, and "
            f"{mebibytes(contexts.outside_bytes)} of the device are left for them: "
            f"{mebibytes(missing)} are missing; configure so much less fast memory "
            "(fast_bytes) on the device, or leave a task out"
        ),
        missing_bytes=missing,
    )
