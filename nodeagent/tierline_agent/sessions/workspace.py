"""The workspace of one client: WORKSPACE, WORKSPACE_RETURN, and what its jobs mean for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from tierline_agent.errors import ConnectionViolation, QuotaExceeded
from tierline_agent.memory.extents import Pooled
from tierline_agent.memory.workspaces import check_granted
from tierline_agent.processes.interventions import KillReason
from tierline_agent.sessions.client import Client
from tierline_agent.transport.protocol import (
    DescriptorKind,
    Fds,
    Workspace,
    WorkspaceFlags,
    WorkspaceLent,
    WorkspaceReturn,
    WorkspaceTaken,
)

_log = logging.getLogger(__name__)
_KINDS = (DescriptorKind.WORKSPACE, DescriptorKind.BACKUP)


class ClientWorkspace:
    """One client's share in its domain's workspace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked = False
        self._lent = False
        self._offer: WorkspaceReturn | None = None
        self._sequence = 0
        self._descriptors: list[int] = []
        self._arrived = 0
        """Descriptors of the offer so far."""
        self._failure: Exception | None = None
        """Why the offer will be refused, if that is known."""
        self.on_running: Callable[[WorkspaceReturn], None] = lambda _: None
        """Told of a workspace that came back inside a job."""

    @property
    def lent(self) -> bool:
        """Whether its jobs find their workspace in extents of the agent."""
        return self._lent

    def ask(self, sequence: int, message: Workspace) -> None:
        """Lend the extents that back it."""
        self._only_once()
        failure = self._own(message.workspace_bytes)
        if failure is None:
            self._client.spawn(sequence, self._lend(sequence, message))
        else:
            self._client.refuse(sequence, failure)

    def _only_once(self) -> None:
        if self._asked:
            raise ConnectionViolation("WORKSPACE was sent twice", out_of_order=True)
        self._asked = True

    async def _lend(self, sequence: int, message: Workspace) -> None:
        client = self._client
        await client.others_are_back()  # they may offer the domain's extents
        preserve = bool(message.flags & WorkspaceFlags.PRESERVE)
        workspaces = client.unit.workspaces
        lent = await workspaces.lend(
            client.domain,
            client.token,
            client.process,
            message.workspace_bytes,
            preserve=preserve,
        )
        try:
            extents, backup = self._export(lent, preserve=preserve)
        except Exception:
            await workspaces.leave(client.domain, client.token)
            raise
        self._has_it()
        client.reply(sequence, WorkspaceLent(len(lent)))
        client.send_descriptors(sequence, 0, DescriptorKind.WORKSPACE, extents)
        client.send_descriptors(sequence, 0, DescriptorKind.BACKUP, backup)
        _log.info("%s has a workspace of %d extents", client, len(lent))

    def _export(self, lent: Sequence[Pooled], *, preserve: bool) -> tuple[list[int], list[int]]:
        """Descriptors of the extents, and of the backup if there is one. Raises OSError."""
        client, unit = self._client, self._client.unit
        extents: list[int] = []
        try:
            for pooled in lent:
                extents.append(unit.device.export_extent(pooled.extent, writable=True))  # noqa: PERF401 - those made so far must be closed if one fails
            if not preserve:
                return extents, []
            return extents, [unit.workspaces.backup_descriptor(client.domain, client.token)]
        except BaseException:
            for descriptor in extents:
                os.close(descriptor)
            raise

    def _has_it(self) -> None:
        self._lent = True
        self._client.has_workspace = True
        self._client.write_down()

    # -- after a restart of the agent

    def offer(self, sequence: int, message: WorkspaceReturn) -> None:
        """Begin to take it back."""
        self._only_once()
        if message.extent_count != self._client.unit.workspaces.extents_of(message.workspace_bytes):
            raise ConnectionViolation("a workspace has another size than its extents")
        self._offer, self._sequence = message, sequence
        try:
            check_granted(message.workspace_bytes, self._client.task.plan.workspace_bytes)
        except QuotaExceeded as failure:
            self._failure = failure

    def takes(self, message: Fds) -> bool:
        """Whether these descriptors are of the offer."""
        return message.kind in _KINDS

    def descriptors(self, _sequence: int, message: Fds) -> None:
        """Take the descriptors; with the last one it can be managed again."""
        offer = self._offer
        arrived = self._client.connection.take_descriptors(message.count)
        self._descriptors += arrived
        self._arrived += len(arrived)
        if offer is None:
            raise ConnectionViolation("descriptors without a WORKSPACE_RETURN", out_of_order=True)
        backup = message.kind == DescriptorKind.BACKUP
        preserve = bool(offer.flags & WorkspaceFlags.PRESERVE)
        extents = self._arrived - backup
        if backup and (extents != offer.extent_count or not preserve or message.count != 1):
            raise ConnectionViolation("a backup does not follow its extents", out_of_order=True)
        if not backup and extents > offer.extent_count:
            raise ConnectionViolation("more descriptors of a workspace than it has extents")
        if self._failure is not None:  # it is answered when all have come
            self._close_descriptors()
        if self._arrived == offer.extent_count + preserve:
            self._offer = None
            self._complete(offer)

    def _complete(self, offer: WorkspaceReturn) -> None:
        client = self._client
        if self._failure is None:
            self._failure = self._own(offer.workspace_bytes)
        if self._failure is None:
            client.spawn(self._sequence, self._take_back(offer))
        else:
            self._close_descriptors()
            client.refuse(self._sequence, self._failure)

    def _own(self, size_bytes: int) -> Exception | None:
        """Have the task's memory for itself, from the moment on that its message is read."""
        client = self._client
        if client.task.registration.preemption is not None:
            return QuotaExceeded(
                f"cannot lend a workspace: jobs of {client.task.name} are planned to give the "
                "device away in the middle, and those of others would write there; plan it without"
            )
        try:
            check_granted(size_bytes, client.task.plan.workspace_bytes)
            client.own_arenas()
            client.node.watch_importer(client.process)
        except (QuotaExceeded, OSError) as failure:
            return failure
        return None

    async def _take_back(self, offer: WorkspaceReturn) -> None:
        client = self._client
        extents = self._descriptors[: offer.extent_count]
        backup = self._descriptors[offer.extent_count :]
        try:
            await client.unit.workspaces.take_back(
                client.domain,
                client.token,
                client.process,
                extents,
                backup[0] if backup else None,
                offer.reach_bytes,
                running=offer.running_job != 0,
            )
        except Exception:
            await client.unit.workspaces.leave(client.domain, client.token)
            raise
        finally:
            self._close_descriptors()
        self._has_it()
        client.unit.extents_changed()
        client.reply(self._sequence, WorkspaceTaken())
        if offer.running_job:
            self.on_running(offer)
        client.node.recovery.attached(client.token, client.kept)
        _log.info("%s has its workspace of %d extents back", client, offer.extent_count)

    def _close_descriptors(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        self._client.close_elsewhere(descriptors)

    # -- jobs

    async def bring_in(self) -> None:
        """Before a job of the client is granted. Raises OSError."""
        await self._client.unit.workspaces.bring_in(self._client.domain, self._client.token)

    def job_ended(self, reach_bytes: int) -> None:
        """The client's job is over."""
        if self._lent:
            client = self._client
            client.unit.workspaces.ended(client.domain, client.token, reach_bytes)

    def left_inside(self) -> None:
        """The client is gone in the middle of a job: those that share the extents await its death.

        One that closed its connection and lives must not, for longer than it might take to come
        back after a restart of the agent.
        """
        if not self._lent:
            return
        client, node = self._client, self._client.node
        client.unit.workspaces.left_inside(client.domain, client.process)
        node.watch.on_death(client.process, client.unit.workspaces.died)
        grace_s = node.config.holder_grace_s
        sentence = (
            f"the program closed its connection in the middle of a job, lived on for {grace_s:g} s "
            "in memory that others wait for, and was killed"
        )
        reason = KillReason.JOB_NOT_ENDED
        kill = partial(node.interventions.kill, client.task.name, client.process, reason, sentence)
        node.loop.call_later(grace_s, kill)

    async def close(self) -> None:
        """The client is gone, and none of its requests is at work any more."""
        self._close_descriptors()
        if self._lent:
            self._lent = False
            await self._client.unit.workspaces.leave(self._client.domain, self._client.token)
