"""The workspaces of one device: extents that the tasks of a trust domain have in turns.

A client asks once, and maps what it gets for good; `policy.overlay` says which task's content lies
in the extents. Before a job is granted, with the lease held, the content of the task before is
saved into that task's backup, and the job's own is restored. Backups are host memory of the agent,
made (and on a GPU pinned) when the client asks, so that a job waits for copies only.

A program without layers (policy `Swap`) keeps its allocations in such a workspace, preserved: it
is swapped whole at job boundaries, and only when another task wants the memory.

The memory of extents and backups is also the clients'. One that comes back after a restart of the
agent offers both, and each backup says where its task's content is.

A client that leaves in the middle of a job may still write: a killed process is seen to leave its
socket before its GPU has stopped. Nobody else of the domain begins until that process is dead. If
it outlives being killed (`processes.killing`), nobody waits for it: their jobs are refused, with
its pid, until it is dead.

Invariant: an extent's content is copied only while its task does not run, nobody's job begins while
another's may still write to the domain's extents, and a backup is closed only when no copy uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierline_agent.devices.base import Backup, Device
from tierline_agent.errors import DescriptorRefused, QuotaExceeded
from tierline_agent.memory.extents import ExtentPool, Pooled
from tierline_agent.policy.overlay import Overlay
from tierline_agent.processes.identity import Process


@dataclass
class _Domain:
    overlay: Overlay = field(default_factory=Overlay)
    backups: dict[int, Backup] = field(default_factory=dict)
    extents: list[Pooled] = field(default_factory=list)
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    inside: dict[Process, asyncio.Event] = field(default_factory=dict)
    """Those that left in the middle of a job and may still write; set when nobody waits any more:
    they are dead, or outlive being killed."""


class Workspaces:
    """All workspaces of one device. For the event loop's thread only."""

    def __init__(
        self, device: Device, pool: ExtentPool, has_outlived: Callable[[Process], bool]
    ) -> None:
        """`has_outlived`: whether a process was killed long ago and is not dead."""
        self._device = device
        self._pool = pool
        self._has_outlived = has_outlived
        self._domains: dict[str, _Domain] = {}

    async def lend(
        self, domain: str, token: int, importer: Process, size_bytes: int, *, preserve: bool
    ) -> list[Pooled]:
        """The extents that back a workspace of `size_bytes`, which a client may now map.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them, or the host has no memory for the backup.
        """
        count = self.extents_of(size_bytes)
        shared = self._domains.setdefault(domain, _Domain())
        if kept := self._kept_by(shared):
            raise QuotaExceeded(f"cannot lend a workspace: {kept}")
        async with shared.moving:
            # The backup first: a client that has mapped nothing keeps no extents if it fails.
            backup = await _make(self._device.create_backup, count) if preserve else None
            try:
                lent = self._pool.workspace(domain, count, importer)
            except BaseException:
                if backup is not None:
                    backup.close()
                raise
            shared.extents = max(shared.extents, lent, key=len)
            if backup is not None:
                shared.backups[token] = backup
            shared.overlay.join(token, count * self._device.extent_bytes, preserve=preserve)
        return lent

    def backup_descriptor(self, domain: str, token: int) -> int:
        """A descriptor of a preserving client's backup, for it to keep. Raises OSError."""
        return self._domains[domain].backups[token].memory.export()

    async def take_back(
        self,
        domain: str,
        token: int,
        importer: Process,
        descriptors: Sequence[int],
        backup: int | None,
        reach_bytes: int,
        *,
        running: bool,
    ) -> None:
        """Manage a workspace again that an earlier agent lent; with `running`, inside a job.

        Raises:
            DescriptorRefused: a descriptor is not what was lent, or others have used it since.
            QuotaExceeded: the fast memory holds no more.
            OSError: the backup could not be taken.
        """
        shared = self._domains.setdefault(domain, _Domain())
        if importer in shared.inside:
            raise DescriptorRefused(
                "cannot take a workspace back: its connection broke in the middle of a job, whose "
                "content may not be whole; restart the task"
            )
        size_bytes = len(descriptors) * self._device.extent_bytes
        preserve = backup is not None
        async with shared.moving:
            lent = [
                self._pool.adopt_workspace(domain, number, descriptor, importer)
                for number, descriptor in enumerate(descriptors)
            ]
            shared.extents = max(shared.extents, lent, key=len)
            saved = False
            if backup is not None:
                taken = await _make(self._device.adopt_backup, backup, len(lent))
                shared.backups[token] = taken
                saved = taken.memory.saved and not running
            reach_bytes = size_bytes if running else reach_bytes
            if not shared.overlay.rejoin(
                token, size_bytes, reach_bytes, preserve=preserve, saved=saved
            ):
                raise DescriptorRefused(
                    "cannot take a workspace back: other tasks have used it since, and its "
                    "content is gone; restart the task"
                )
            if running:
                shared.overlay.entered(token)

    async def bring_in(self, domain: str, token: int) -> None:
        """Make the workspace what the client's last job left. With the lease held.

        A client that leaves while others are waited for needs nothing.

        Raises OSError: a copy failed, and with it the content of the task that was copied; or a
        process that does not die may still write there.
        """
        shared = self._domains[domain]
        for settled in list(shared.inside.values()):
            await settled.wait()
        if kept := self._kept_by(shared):
            raise OSError(f"cannot bring in a workspace: {kept}")
        async with shared.moving:
            if token not in shared.overlay:
                return
            moves = shared.overlay.moves(token)
            if moves.save is not None:
                await self._move(shared, moves.save, moves.save_bytes, saving=True)
                shared.backups[moves.save].memory.saved = True
                shared.overlay.saved(moves.save)
            if moves.restore_bytes:
                await self._move(shared, token, moves.restore_bytes, saving=False)
            if token in shared.backups:
                shared.backups[token].memory.saved = False
            shared.overlay.entered(token)

    def ended(self, domain: str, token: int, reach_bytes: int) -> None:
        """The client's job has left content in the first `reach_bytes`."""
        self._domains[domain].overlay.ended(token, reach_bytes)

    def left_inside(self, domain: str, process: Process) -> None:
        """The client has gone in the middle of a job; `died` is told of its process's death."""
        settled = self._domains.setdefault(domain, _Domain()).inside.setdefault(
            process, asyncio.Event()
        )
        if self._has_outlived(process):
            settled.set()

    def outlived(self, process: Process) -> None:
        """A process was killed, and is not dead: nobody waits for it any more."""
        for shared in self._domains.values():
            if process in shared.inside:
                shared.inside[process].set()

    def _kept_by(self, shared: _Domain) -> str:
        """Why nobody of a domain has its workspace; empty if somebody may."""
        pids = [process.pid for process in shared.inside if self._has_outlived(process)]
        return (
            f"process {pids[0]} of its trust domain was killed inside a job, has not ended, and "
            "may still write there; end what keeps it (its tracer, a frozen group)"
            if pids
            else ""
        )

    def died(self, process: Process) -> None:
        """A process that left in the middle of a job is dead."""
        for shared in self._domains.values():
            dead = shared.inside.pop(process, None)
            if dead is not None:
                dead.set()

    async def leave(self, domain: str, token: int) -> None:
        """The client has gone; what nobody else needs is given up."""
        shared = self._domains.setdefault(domain, _Domain())
        async with shared.moving:
            shared.overlay.leave(token)
            backup = shared.backups.pop(token, None)
            needed = self.extents_of(shared.overlay.size_bytes)
            del shared.extents[needed:]
            try:
                self._pool.shrink_workspace(domain, needed)
            finally:
                if backup is not None:
                    backup.close()

    def extents_of(self, size_bytes: int) -> int:
        """How many extents back so many bytes."""
        return -(-size_bytes // self._device.extent_bytes)

    async def _move(self, shared: _Domain, token: int, size_bytes: int, *, saving: bool) -> None:
        backup = shared.backups[token]
        extents = [pooled.extent for pooled in shared.extents[: self.extents_of(size_bytes)]]
        await asyncio.to_thread(backup.save if saving else backup.restore, extents)


async def _make(make: Callable[..., Backup], *args: int) -> Backup:
    """Have a backup made in a thread. If cancelled, wait for the thread, and close what it made."""
    making = asyncio.get_running_loop().run_in_executor(None, make, *args)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait([making])
        if making.exception() is None:
            making.result().close()
        raise


def check_granted(size_bytes: int, granted_bytes: int) -> None:
    """Compare what a client wants with its plan. Raises QuotaExceeded."""
    if size_bytes > granted_bytes:
        raise QuotaExceeded(
            f"cannot lend a workspace of {size_bytes} bytes: the task's plan has "
            f"{granted_bytes} bytes for it; register the task with a larger workspace"
        )
