"""A device that is lost costs its own tasks, and nobody else.

A sticky error, or the device falling off its bus, ends a context: every extent, every copy, every
flag word of the device is gone for the agent. Then its tasks' connections are closed with a
sentence; when all that they used is given up, the device is made again, as often as it takes, and
its leases are granted again. Their programs connect and load again. Other devices go on.

Invariant: between the loss and the recovery no lease of the device is granted and no client of it
is welcomed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tierline_agent.context import Node
from tierline_agent.scheduling.unit import Unit
from tierline_agent.sessions.server import TaskServer

_log = logging.getLogger(__name__)
_REASON = "the device is lost"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class Losses:
    """Watches over the devices of a node. For the event loop's thread, where it is not said."""

    def __init__(self, node: Node, server: TaskServer) -> None:
        self._node = node
        self._server = server
        self._recoveries: set[asyncio.Task[None]] = set()
        for unit in node.units.values():
            unit.device.on_lost = self._listener(unit)

    def look(self) -> None:
        """Find out about losses that no call has met yet."""
        for unit in self._node.units.values():
            unit.device.check()

    def hardware_error(self, name: str, number: int) -> None:
        """The driver reports an error (Xid) of a device; in any thread."""
        self._node.loop.call_soon_threadsafe(self._error_reported, self._node.units[name], number)

    def _error_reported(self, unit: Unit, number: int) -> None:
        _log.warning("%s reports Xid %d", unit.name, number)
        self._node.metrics.device_errors.labels(unit.name).inc()
        self._node.metrics.device_last_xid.labels(unit.name).set(number)
        unit.device.check()

    def close(self) -> None:
        """Stop recovering."""
        for unit in self._node.units.values():
            unit.device.on_lost = None
        for recovery in self._recoveries:
            recovery.cancel()

    def _listener(self, unit: Unit) -> Callable[[str], None]:
        """The listener of a unit, which any thread may call."""

        def lost(why: str) -> None:
            self._node.loop.call_soon_threadsafe(self._lost, unit, why)

        return lost

    def _lost(self, unit: Unit, why: str) -> None:
        _log.error("%s is lost: %s", unit.name, why)
        self._node.metrics.device_losses.labels(unit.name).inc()
        unit.leases.block(_REASON)
        recovery = self._node.loop.create_task(self._recover(unit, why))
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, unit: Unit, why: str) -> None:
        leaving = []
        for session in list(self._server.sessions()):
            if session.client.unit is unit:
                session.device_lost(why)
                leaving.append(session.closed)
        if leaving:
            await asyncio.wait(leaving)
        unit.pool.close()
        unit.extents_changed()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await asyncio.to_thread(unit.device.recover)
            except OSError as error:
                _log.warning("%s cannot be used yet: %s", unit.name, error)
            else:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        _log.info("%s works again", unit.name)
        unit.leases.unblock(_REASON)
