"""What tasks take of a device's memory besides weights; one rule for planner and agent. Pure.

A *workspace* is what a program allocates besides its weights. What several of them take together
depends on where they lie:

* in extents of the agent, which tasks of a trust domain have in turns (programs without layers,
  policy Swap): the largest of each domain, in whole extents;
* on a device whose programs give memory back between jobs (`cpu`): the largest, since jobs run one
  at a time;
* on one whose programs keep what they have once had (a PyTorch process on a GPU: its caching
  allocator, the pool of a captured graph): all of them;
* that of a task that trains stays while others have the device, in the middle of a step and between
  two (parameters, gradients, the optimizer's state): in addition to all others.

Every process on a GPU also takes a CUDA context, for which memory outside the fast memory is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tierline_api.devices.device import DeviceKind

OVERLAY = {DeviceKind.CPU: True, DeviceKind.CUDA: False}
"""Whether programs of this version leave the memory of their workspaces to each other."""


@dataclass(frozen=True)
class Workspace:
    """That of one task."""

    domain: str
    size_bytes: int
    in_extents: bool
    """Whether it lies in extents of the agent."""
    kept: bool = False
    """Whether it is in use while others have the device, too."""


@dataclass(frozen=True)
class WorkspaceCharge:
    """What the workspaces of a device's tasks take of its fast memory, bytes."""

    in_extents_bytes: int
    apart_bytes: int
    """What lies in memory of the programs' own."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.in_extents_bytes + self.apart_bytes


def charge(workspaces: Iterable[Workspace], extent_bytes: int, *, overlay: bool) -> WorkspaceCharge:
    """What these take together; `overlay`: the device's programs give theirs back between jobs."""
    apart: list[int] = []
    kept_bytes = 0
    shared: dict[str, int] = {}
    for workspace in workspaces:
        if workspace.kept:
            kept_bytes += workspace.size_bytes
        elif workspace.in_extents and not overlay:
            extents = -(-workspace.size_bytes // extent_bytes)
            shared[workspace.domain] = max(shared.get(workspace.domain, 0), extents)
        else:
            apart.append(workspace.size_bytes)
    together = max(apart, default=0) if overlay else sum(apart)
    return WorkspaceCharge(sum(shared.values()) * extent_bytes, together + kept_bytes)


@dataclass(frozen=True)
class Contexts:
    """What processes take of a device by being there."""

    each_bytes: int
    outside_bytes: int
    """Memory of the device that is not fast memory."""

    def missing_bytes(self, tasks: int) -> int:
        """How much more so many tasks need outside fast memory; the agent has a context, too."""
        return max(0, (tasks + 1) * self.each_bytes - self.outside_bytes)
