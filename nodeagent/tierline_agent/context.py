"""The parts of the agent that sessions share, gathered in one object.

It holds no logic but what needs several parts at once: the death of a process, and the amounts
that are derived from parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierline_agent.config import AgentConfig
from tierline_agent.processes.identity import Process, ProcessWatch
from tierline_agent.processes.interventions import Interventions
from tierline_agent.processes.reclaim_latency import Reclaims
from tierline_agent.processes.state import BootFile
from tierline_agent.registry import Task, TaskRegistry
from tierline_agent.scheduling.recovery import ClientBook, Recovery
from tierline_agent.scheduling.unit import Unit
from tierline_agent.storage.node_tiers import Storage
from tierline_agent.telemetry.accounting import JobLog
from tierline_agent.telemetry.health import Health
from tierline_agent.telemetry.metrics import Metrics
from tierline_agent.transport.closing import Closer
from tierline_agent.transport.in_flight import InFlight
from tierline_agent.transport.readiness import Readiness


@dataclass
class Node:
    """The parts that one agent owns."""

    config: AgentConfig
    loop: asyncio.AbstractEventLoop
    readiness: Readiness
    units: Mapping[str, Unit]
    """Its devices, by name."""
    storage: Storage
    registry: TaskRegistry
    clients: ClientBook
    recovery: Recovery
    watch: ProcessWatch
    closer: Closer
    in_flight: InFlight
    interventions: Interventions
    jobs: JobLog
    reclaims: Reclaims
    metrics: Metrics
    health: Health
    instance: str
    """Changes with every start of the agent: cursors and counters begin again."""
    files: tuple[BootFile, ...] = ()
    """The record of clients and of what they were lent."""
    notes: tuple[str, ...] = ()
    """Differences from the configuration, a sentence each."""
    stopping: bool = False
    """The agent ends, its clients do not: what is on disk about them must stay."""
    _importers: dict[Process, int] = field(default_factory=dict)

    def stop(self) -> None:
        """Leave to the next agent what is: no lease is open that nobody has taken."""
        self.stopping = True
        for unit in self.units.values():
            unit.leases.recall()

    @property
    def job_limit_ns(self) -> int:
        """How long any job may have a device."""
        return int(self.config.job_limit_s * 1e9)

    def unit_of(self, task: Task) -> Unit:
        """The device that a task was registered for."""
        return self.units[task.device]

    def watch_importer(self, process: Process) -> None:
        """Take note when a process that maps extents dies."""
        if process not in self._importers:
            self._importers[process] = self.watch.on_death(process, self._importer_died)

    def importer_left(self, process: Process) -> None:
        """A session of a process is over: stop watching it if it maps nothing any more.

        One that was seen to die before it was given its last extents is seen to once more.
        """
        if any(unit.pool.maps_any(process) for unit in self.units.values()):
            self.watch_importer(process)
        else:
            ticket = self._importers.pop(process, None)
            if ticket is not None:
                self.watch.forget(process, ticket)

    def plans_changed(self) -> None:
        """A task was registered or removed: what must be kept free and what rings are needed."""
        for name, unit in self.units.items():
            unit.pool.reserve(*self.registry.reserved_bytes(name))
            for domain in unit.pool.ring_domains():
                unit.pool.shrink_ring(domain, self.registry.ring_slots(name, domain))

    def _importer_died(self, process: Process) -> None:
        self._importers.pop(process, None)
        for unit in self.units.values():
            unit.pool.died(process)
        self.reclaims.died(process)
