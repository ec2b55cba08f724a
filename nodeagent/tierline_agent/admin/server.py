"""The administrator's socket: one JSON object a line, each answered by one.

    {"method": "snapshot"}  ->  {"ok": true, ...}   or   {"ok": false, "error": "..."}

Only the agent's own user and root may talk here. Methods change the node through its parts and
hold no state of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tierline_agent.context import Node
from tierline_agent.errors import AgentError, ConfigError
from tierline_agent.processes.identity import peer_of
from tierline_agent.registration import parse_registration
from tierline_agent.registry import Start
from tierline_agent.reporting.snapshot import describe_node, snapshot
from tierline_agent.sessions.server import TaskServer
from tierline_agent.telemetry.accounting import MAX_RECORDS_PER_READ

_log = logging.getLogger(__name__)
_LATEST_NS = 1 << 62

Method = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Admin:
    """The methods of one agent."""

    def __init__(
        self, node: Node, server: TaskServer, name: str, shut_down: Callable[[], None]
    ) -> None:
        self._node = node
        self._server = server
        self._name = name
        self._shut_down = shut_down
        self._changing = asyncio.Lock()
        self._methods: dict[str, Method] = {
            "node": self._describe,
            "tasks": self._tasks,
            "register": self._register,
            "revise": self._revise,
            "remove": self._remove,
            "start": self._start,
            "snapshot": self._snapshot,
            "jobs": self._jobs,
            "interventions": self._interventions,
            "verdict": self._verdict,
            "shutdown": self._shutdown,
        }

    async def answer(self, line: bytes) -> dict[str, Any]:
        """Answer one request, whatever it is."""
        try:
            request = json.loads(line)
        except ValueError as error:
            return _failure(f"the request is not JSON: {error}")
        method = request.pop("method", None) if isinstance(request, dict) else None
        if method not in self._methods:
            return _failure(f"there is no method {method!r}; there are {', '.join(self._methods)}")
        try:
            return {"ok": True, **await self._methods[method](request)}
        except (AgentError, OSError) as error:
            return _failure(str(error))
        except Exception:
            _log.exception("method %s failed", method)
            return _failure(f"the agent failed at {method}; its log says why")

    async def _describe(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        described = describe_node(self._node, self._name)
        return {"node": described.to_api(), "notes": self._node.notes}

    async def _tasks(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"tasks": [task.name for task in self._node.registry]}

    async def _register(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registration = parse_registration(request)
        async with self._changing:
            task = self._node.registry.register(registration)
            try:
                path = self._server.open(task)
            except BaseException:
                self._node.registry.remove(task.name)
                raise
            self._node.plans_changed()
        _log.info("registered %s", task.name)
        return {"socket": str(path)}

    async def _revise(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registration = parse_registration(request)
        async with self._changing:
            task = self._node.registry.revise(registration)
            self._node.unit_of(task).leases.recall()  # its terms may not allow it any more
            self._node.plans_changed()
        # A plan waits for the client that has the arenas of the one before.
        return {"complete": task.registration == registration}

    async def _remove(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = str(request.get("name"))
        async with self._changing:
            self._node.registry.remove(name)
            await self._server.remove(name)
            self._node.plans_changed()
        _log.info("removed %s", name)
        return {}

    async def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        start = Start(_moment(request, "epoch_ns"), _moment(request, "until_ns"))
        self._node.registry.set_start(start)
        started = []
        for session in self._server.sessions():
            if session.status.ready:
                session.status.start()
                started.append(session.client.task.name)
        _log.info("releases begin for %s", ", ".join(sorted(started)) or "tasks to come")
        return {"started": sorted(started)}

    async def _snapshot(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"snapshot": snapshot(self._node, self._server.sessions())}

    async def _jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cursor = _moment(request, "since")
        most = _moment(request, "most") or MAX_RECORDS_PER_READ
        return {"instance": self._node.instance, **self._node.jobs.since(cursor, most)}

    async def _interventions(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._node.interventions.since(_moment(request, "since"))

    async def _verdict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        admitted = request.get("admitted")
        if not isinstance(admitted, bool):
            raise ConfigError(f"admitted must be true or false, not {admitted!r}")
        self._node.metrics.admissions.labels("admitted" if admitted else "infeasible").inc()
        return {}

    async def _shutdown(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        self._node.loop.call_soon(self._shut_down)
        return {}


def _moment(request: Mapping[str, Any], name: str) -> int:
    value = request.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LATEST_NS:
        raise ConfigError(f"{name} must be a whole number from 0 to {_LATEST_NS}, not {value!r}")
    return value


def _failure(reason: str) -> dict[str, Any]:
    return {"ok": False, "error": reason}


async def serve(admin: Admin, listener: socket.socket, longest_line_bytes: int) -> asyncio.Server:
    """Answer at a listening socket until the server is closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _may_administer(writer.get_extra_info("socket")):
                await _converse(admin, reader, writer)
            else:
                refusal = _failure("only the agent's user and root may administer it")
                writer.write(json.dumps(refusal).encode() + b"\n")
        except (ConnectionError, TimeoutError):
            pass  # the administrator left; there is nobody to tell
        finally:
            writer.close()

    return await asyncio.start_unix_server(connected, sock=listener, limit=longest_line_bytes)


async def _converse(
    admin: Admin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the limit
            writer.write(json.dumps(_failure("the request is too long")).encode() + b"\n")
            return
        if not line:
            return
        writer.write(json.dumps(await admin.answer(line)).encode() + b"\n")
        await writer.drain()


def _may_administer(connection: Any) -> bool:
    _, uid = peer_of(connection)
    return uid in (0, os.geteuid())
