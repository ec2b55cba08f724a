"""The cost of preserved workspaces to a dispatch: dirty bytes out (d2h), one's own back in.

Theorem (P11). Tasks of one domain have their workspaces in the same extents. Before a job of task i
is granted, the content that another task j preserves is saved to its backup, then i's own content
is restored; if the job before was i's own, or preserves nothing, less is moved (agent's rule,
policy/overlay.py: one owner at a time, so at most one save and one restore). So a job of i takes
at most

    turn_i = max { save_j : j != i in i's domain } + restore_i

longer, before its first copy; save_j = 0 for a task that preserves nothing, restore_i likewise.
It is part of the composite resource's time like any dispatch: device and link are held meanwhile,
so P2 and P3 hold with C_i + turn_i, and shorter or absent moves can only shorten jobs (the demand
test is sustainable). Saves and restores are charged one after the other, as agents do them; that
they could overlap is not used. Each moves whole extents at its link's planned rate.

Assumptions: jobs are not preempted. A preempted job's workspace would be moved twice more, on a
link that others may stream on; sets with preserved workspaces are planned non-preemptive.
Source: the composite-resource argument is P2 in docs/design/theory.md; RT-Swap's write-back
(RTAS 2024) is the special case in which all of a task is preserved.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.request import Backup, DeviceCapacity, TaskDemand


def turns_s(tasks: Sequence[TaskDemand], device: DeviceCapacity) -> list[float] | Infeasible:
    """Seconds that each task's dispatch takes longer; refused if the way out was not measured."""
    dirty = next((task for task in tasks if task.preserved_bytes), None)
    if dirty is None:
        return [0.0] * len(tasks)
    backup = device.backup
    if backup is None:
        return Infeasible(
            kind="tier",
            reason="TierUnknown",
            sentence=(
                f"the workspace of {dirty.name} is to be preserved, but this device has no "
                "measured link to save it over; write workspace: Discard, or use a device with "
                "a d2h link"
            ),
            task=dirty.name,
        )
    moves = [moves_s(task, backup, device.margins.bandwidth) for task in tasks]
    saves = [save_s for save_s, _ in moves]
    return [
        max(
            (
                saves[other]
                for other, neighbour in enumerate(tasks)
                if other != index and neighbour.domain == task.domain
            ),
            default=0.0,
        )
        + moves[index][1]
        for index, task in enumerate(tasks)
    ]


def moves_s(task: TaskDemand, backup: Backup, slower: float) -> tuple[float, float]:
    """Seconds to save the whole workspace that a task preserves, and to restore it.

    Links are `slower` times slower than measured.
    """
    size = task.layout.extent_bytes
    extents = -(-task.preserved_bytes // size)
    save_s, restore_s = (
        extents * (size / link.bandwidth_bytes_per_s + link.overhead_s)
        for link in (backup.save.slowed(slower), backup.restore.slowed(slower))
    )
    return save_s, restore_s
