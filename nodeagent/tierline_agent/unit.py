"""A unit: one device of the node with everything that is done on it.

Units share nothing but the tiers and the processes that use them: each has its pool, its lease, its
stream and its account. What goes wrong on one is the other ones' business only where they share a
link.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierline_agent.accounting import FastMemory
from tierline_agent.devices.base import Device
from tierline_agent.execution import Executor
from tierline_agent.extents import ExtentPool
from tierline_agent.leases import LeaseManager
from tierline_agent.state import BootFile, LeaseMark
from tierline_agent.workspaces import Workspaces


@dataclass(frozen=True, eq=False)
class Unit:
    """One device at work."""

    name: str
    """Its name on this node: cpu, gpu-0, gpu-1, ..."""
    device: Device
    pool: ExtentPool
    memory: FastMemory
    leases: LeaseManager
    mark: LeaseMark
    executor: Executor
    workspaces: Workspaces
    lent: BootFile
    """Which extents there are, for the next agent."""

    def extents_changed(self) -> None:
        """The number of extents is another one."""
        self.memory.set_extents(self.pool.bytes_held)
