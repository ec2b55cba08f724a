"""The parts of the agent that sessions share, gathered in one object.

It holds no logic beside what needs several parts at once: the death of a process, and the amounts
that are derived from parts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tierline_agent.accounting import FastMemory, JobLog
from tierline_agent.config import AgentConfig
from tierline_agent.devices.base import Device
from tierline_agent.execution import Executor
from tierline_agent.extents import ExtentPool
from tierline_agent.identity import Process, ProcessWatch
from tierline_agent.metrics import Metrics
from tierline_agent.readiness import Readiness
from tierline_agent.recovery import ClientBook, Recovery
from tierline_agent.storage import Storage
from tierline_agent.tasks import TaskRegistry


@dataclass
class Node:
    """What one agent owns."""

    config: AgentConfig
    loop: asyncio.AbstractEventLoop
    readiness: Readiness
    device: Device
    pool: ExtentPool
    storage: Storage
    executor: Executor
    registry: TaskRegistry
    clients: ClientBook
    recovery: Recovery
    watch: ProcessWatch
    memory: FastMemory
    jobs: JobLog
    metrics: Metrics
    instance: str
    """Changes with every start of the agent: cursors and counters begin anew."""
    stopping: bool = False
    """The agent ends, its clients do not: what is on disk about them must stay."""
    _importers: dict[Process, int] = field(default_factory=dict)

    def watch_importer(self, process: Process) -> None:
        """Take note when a process that maps extents dies."""
        if process not in self._importers:
            self._importers[process] = self.watch.on_death(process, self._importer_died)

    def forget_importer(self, process: Process) -> None:
        """Stop watching a process that maps nothing any more."""
        if not self.pool.maps_any(process):
            ticket = self._importers.pop(process, None)
            if ticket is not None:
                self.watch.forget(process, ticket)

    def extents_changed(self) -> None:
        """The number of extents is another one."""
        self.memory.set_extents(self.pool.bytes_held)

    def plans_changed(self) -> None:
        """A task was registered or removed: what must be kept free and what rings are needed."""
        self.pool.reserve_workspace(self.registry.workspace_bytes())
        for domain in self.pool.ring_domains():
            self.pool.shrink_ring(domain, self.registry.ring_slots(domain))

    def _importer_died(self, process: Process) -> None:
        self._importers.pop(process, None)
        self.pool.died(process)
