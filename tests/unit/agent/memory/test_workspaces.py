"""What a client is lent, or is not."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.devices.backup import HostBackup
from tierline_agent.devices.base import Extent
from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.memory.extents import ExtentPool, Share, State
from tierline_agent.memory.workspaces import Workspaces
from tierline_agent.processes.identity import Process
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.workspace import ClientWorkspace
from tierline_agent.transport.protocol import Message, Workspace, WorkspaceFlags

EXTENT_BYTES = 64 << 10
EXTENTS = 8
ASKED = 6
ALICE, BOB = Process(1, 1), Process(2, 2)


class Poor(CpuDevice):
    """A device that has no memory, or no descriptors, for what it is asked."""

    def __init__(
        self, *, backups: bool = True, extents: int = EXTENTS, descriptors: int = EXTENTS
    ) -> None:
        super().__init__(EXTENT_BYTES, EXTENTS * EXTENT_BYTES)
        self.backups: list[HostBackup] = []
        self._makes_backups = backups
        self._left = extents
        self._descriptors_left = descriptors

    def create_backup(self, extents: int) -> HostBackup:
        if not self._makes_backups:
            raise OSError(errno.ENOMEM, "no memory for a backup")
        self.backups.append(super().create_backup(extents))
        return self.backups[-1]

    def check_backup_is_closed(self) -> None:
        (backup,) = self.backups
        with pytest.raises(ValueError, match="released memoryview"):
            backup.memory.content[0]

    def create_extent(self) -> Extent:
        if self._left == 0:
            raise OSError(errno.ENOMEM, "no memory for an extent")
        self._left -= 1
        return super().create_extent()

    def export_extent(self, extent: Extent, *, writable: bool = False, sealed: bool = False) -> int:
        if self._descriptors_left == 0:
            raise OSError(errno.EMFILE, "no descriptor for an extent")
        self._descriptors_left -= 1
        return super().export_extent(extent, writable=writable, sealed=sealed)


class Slow(Poor):
    """A device that makes a backup when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may = threading.Event(), threading.Event()

    def create_backup(self, extents: int) -> HostBackup:
        self.begun.set()
        self.may.wait()
        return super().create_backup(extents)


class Asking:
    """A client of domain `a` that asks for a preserved workspace, and what the agent answers."""

    def __init__(self, device: CpuDevice, pool: ExtentPool) -> None:
        self.requests: list[Coroutine[Any, Any, None]] = []
        self.replies: list[Message] = []
        plan = SimpleNamespace(workspace_bytes=ASKED * EXTENT_BYTES)
        client = SimpleNamespace(
            node=SimpleNamespace(watch_importer=lambda _: None),
            others_are_back=self._at_once,
            task=SimpleNamespace(plan=plan, registration=SimpleNamespace(preemption=None)),
            unit=SimpleNamespace(
                device=device, workspaces=Workspaces(device, pool, lambda _: False)
            ),
            close_elsewhere=lambda _: None,
            domain="a",
            token=7,
            process=ALICE,
            own_arenas=lambda: None,
            spawn=lambda _, request: self.requests.append(request),
            reply=lambda _, message: self.replies.append(message),
        )
        self.workspace = ClientWorkspace(cast(Client, client))

    async def ask(self) -> None:
        self.workspace.ask(1, Workspace(ASKED * EXTENT_BYTES, WorkspaceFlags.PRESERVE))
        await self.requests.pop()

    async def _at_once(self) -> None:
        pass


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@in_loop
async def test_a_workspace_without_a_backup_takes_no_extents() -> None:
    device = Poor(backups=False)
    pool = ExtentPool(device)
    pool.reserve(ASKED * EXTENT_BYTES)
    asking = Asking(device, pool)
    with pytest.raises(OSError, match="no memory for a backup"):
        await asking.ask()
    await asking.workspace.close()
    pool.died(ALICE)
    assert pool.count_by_state()[State.WORKSPACE] == 0

    pool.reserve(0)  # the task was removed
    assert len(pool.take_resident(Share("b", "b", EXTENTS), EXTENTS, BOB)) == EXTENTS
    pool.close()


@in_loop
async def test_a_workspace_without_extents_keeps_no_backup() -> None:
    device = Poor(extents=ASKED - 1)
    pool = ExtentPool(device)
    asking = Asking(device, pool)
    with pytest.raises(OSError, match="no memory for an extent"):
        await asking.ask()
    assert pool.bytes_held == 0
    device.check_backup_is_closed()
    await asking.workspace.close()


@in_loop
async def test_a_workspace_that_cannot_be_handed_over_is_given_up() -> None:
    before = descriptors()
    device = Poor(descriptors=ASKED - 1)
    pool = ExtentPool(device)
    asking = Asking(device, pool)
    with pytest.raises(OSError, match="no descriptor for an extent"):
        await asking.ask()
    assert (asking.workspace.lent, asking.replies) == (False, [])
    pool.died(ALICE)
    assert pool.count_by_state()[State.WORKSPACE] == 0
    device.check_backup_is_closed()
    pool.died(ALICE)
    assert pool.count_by_state()[State.FREE] == ASKED
    pool.close()
    assert descriptors() == before


@in_loop
async def test_a_backup_that_nobody_waits_for_any_more_is_closed() -> None:
    device = Slow()
    pool = ExtentPool(device)
    asking = asyncio.create_task(Asking(device, pool).ask())
    await asyncio.to_thread(device.begun.wait)
    asking.cancel()
    device.may.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    device.check_backup_is_closed()
    assert pool.bytes_held == 0
