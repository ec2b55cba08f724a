"""The workspace of one client: WORKSPACE, and what its jobs mean for it."""

from __future__ import annotations

import logging

from tierline_agent.errors import ConnectionViolation
from tierline_agent.protocol import DescriptorKind, Workspace, WorkspaceFlags, WorkspaceLent
from tierline_agent.sessions.client import Client
from tierline_agent.workspaces import check_granted

_log = logging.getLogger(__name__)


class ClientWorkspace:
    """One client's share in its domain's workspace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked = False
        self._lent = False

    @property
    def lent(self) -> bool:
        """Whether its jobs find their workspace in extents of the agent."""
        return self._lent

    def ask(self, sequence: int, message: Workspace) -> None:
        """Lend the extents behind it."""
        if self._asked:
            raise ConnectionViolation("WORKSPACE was sent twice", out_of_order=True)
        self._asked = True
        self._client.spawn(sequence, self._lend(sequence, message))

    async def _lend(self, sequence: int, message: Workspace) -> None:
        client = self._client
        check_granted(message.workspace_bytes, client.task.plan.workspace_bytes)
        client.own_arenas()
        client.node.watch_importer(client.process)
        lent = await client.unit.workspaces.lend(
            client.domain,
            client.token,
            client.process,
            message.workspace_bytes,
            preserve=bool(message.flags & WorkspaceFlags.PRESERVE),
        )
        self._lent = True
        client.reply(sequence, WorkspaceLent(len(lent)))
        device = client.unit.device
        descriptors = [device.export_extent(pooled.extent, writable=True) for pooled in lent]
        client.send_descriptors(sequence, 0, DescriptorKind.WORKSPACE, descriptors)
        _log.info("%s has a workspace of %d extents", client, len(lent))

    async def bring_in(self) -> None:
        """Before a job of the client is granted. Raises OSError."""
        await self._client.unit.workspaces.bring_in(self._client.domain, self._client.token)

    def job_ended(self, reach_bytes: int) -> None:
        """The client's job is over."""
        if self._lent:
            client = self._client
            client.unit.workspaces.ended(client.domain, client.token, reach_bytes)

    async def close(self) -> None:
        """The client is gone, and none of its requests is at work any more."""
        if self._lent:
            await self._client.unit.workspaces.leave(self._client.domain, self._client.token)
