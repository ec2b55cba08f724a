"""A unit: one device of the node with everything that is done on it.

Units share nothing but the tiers and the processes that use them: each has its pool, its lease, its
stream and its account. What goes wrong on one is the other ones' business only where they share a
link.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tierline_agent.devices.base import Device
from tierline_agent.memory.extents import ExtentPool
from tierline_agent.memory.workspaces import Workspaces
from tierline_agent.policy.excess import Debts
from tierline_agent.processes.state import BootFile, LeaseMark
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry.accounting import FastMemory


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
    debts: Debts = field(default_factory=Debts)
    """What its tasks cost each other beyond their plans."""
    reserving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the extents of a large arena are made, in several turns, and taken."""

    def extents_changed(self) -> None:
        """The number of extents is another one."""
        self.memory.set_extents(self.pool.bytes_held)
