"""Preparing and unpreparing claims, and making the node as its claims say after whatever happened.

A prepared claim is four things, made in this order and undone in the reverse one:

    1. its pod's folder, with the library
    2. its registration with the agent, which makes the socket in that folder
    3. its description, by which the container runtime mounts the folder
    4. the kubelet's knowledge that it is prepared

Invariant: where there is a description, the folder and the registration are as it says. So a crash
between any two steps leaves either nothing that a pod can start from, or all of it; `prepare` goes
on from any state, and `unprepare` undoes any. What nobody asks about any more (a pod deleted by
force, a claim that went while the agent was away) is found by `settle`, which holds what lies here
against the claims that the API server has.

A version of the library stays with a prepared claim until the machine boots again: the kubelet also
asks for claims of running pods, after its own restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from tierline_agent.kubernetes.agent import Agent, AgentRefused
from tierline_agent.kubernetes.description import Version, describe
from tierline_agent.kubernetes.folders import Descriptions, Library, PodFolders
from tierline_agent.kubernetes.grants import Grant, NotGranted, Standing

_log = logging.getLogger(__name__)

DeviceNodes = Callable[[Grant], Sequence[str]]
"""The device nodes that a pod needs for its device."""


class Placing:
    """What is prepared on this node. Not safe for threads; calls wait for each other."""

    def __init__(
        self,
        agent: Agent,
        library: Library,
        version: Version,
        folders: PodFolders,
        descriptions: Descriptions,
        boot: str,
        device_nodes: DeviceNodes = lambda _grant: (),
    ) -> None:
        self._agent = agent
        self._library = library
        self._version = version
        self._folders = folders
        self._descriptions = descriptions
        self._boot = boot
        self._device_nodes = device_nodes
        self._turn = asyncio.Lock()

    async def prepare(self, grant: Grant) -> None:
        """Let a pod start with what its claim grants.

        Raises:
            NotGranted: the claim is there and grants nothing (any more).
            AgentError, OSError: it could not be done; asking again is right.
        """
        if grant.standing is Standing.LOST:
            raise NotGranted(
                f"claim {grant.namespace}/{grant.claim}: MemTask/{grant.task} no longer fits its "
                "device; its conditions say what is missing"
            )
        async with self._turn:
            await self._make(grant, self._version_of(grant.uid))

    async def unprepare(self, uid: str) -> None:
        """Undo whatever there is of a claim. Raises AgentError, OSError."""
        async with self._turn:
            await self._undo(uid)

    async def settle(self, grants: Mapping[str, Grant | None]) -> None:
        """Hold what is here against the node's claims: by uid, None for one that is unreadable.

        What belongs to no claim goes. Prepared claims whose terms, plan or standing changed get
        them; a claim that is not prepared is left to the kubelet.

        Raises:
            AgentError, OSError: something could not be done; settling again is right.
        """
        async with self._turn:
            described = self._descriptions.all()
            registered = await self._registered()
            here = self._folders.uids() | set(described) | self._descriptions.drafts()
            for uid in sorted((here | registered) - set(grants)):
                _log.info("claim %s is gone; what was prepared for it goes", uid)
                await self._undo(uid)
            for uid in sorted(set(described) & set(grants)):
                grant = grants[uid]
                if grant is not None and described[uid].boot == self._boot:
                    await self._renew(grant, described[uid].version)

    def remove_unused_versions(self) -> None:
        """Remove versions of the library that no prepared claim of this boot has."""
        held = {one.version for one in self._descriptions.all().values() if one.boot == self._boot}
        self._library.remove_others(frozenset(held | {self._version.name}))

    def _version_of(self, uid: str) -> Version:
        known = self._descriptions.all().get(uid)
        if known is None or known.boot != self._boot:
            return self._version
        return self._library.version(known.version) or self._version

    async def _make(self, grant: Grant, version: Version) -> None:
        measured = grant.standing is Standing.PROFILING
        folder = self._folders.make(grant.uid, version, measured=measured)
        await self._register(grant)
        nodes = self._device_nodes(grant)
        self._descriptions.write(grant.uid, describe(grant, folder, version, self._boot, nodes))

    async def _renew(self, grant: Grant, version: str) -> None:
        """Bring a prepared claim to what it grants now."""
        if grant.standing is Standing.LOST:
            await self._unregister(grant.uid)
            return
        try:
            await self._make(grant, self._library.version(version) or self._version)
        except AgentRefused as error:
            # Another claim's change may be what makes room for this one; it is tried again.
            _log.warning("claim %s/%s stays as it was: %s", grant.namespace, grant.claim, error)

    async def _register(self, grant: Grant) -> None:
        wanted = grant.registration
        if wanted is None:
            await self._unregister(grant.uid)
        elif grant.uid in await self._registered():
            await self._agent.ask("revise", **wanted.as_json())
        else:
            await self._agent.ask("register", **wanted.as_json())

    async def _unregister(self, uid: str) -> None:
        if uid in await self._registered():
            await self._agent.ask("remove", name=uid)

    async def _registered(self) -> set[str]:
        answer = await self._agent.ask("snapshot")
        return {task["name"] for task in answer["snapshot"]["tasks"]}

    async def _undo(self, uid: str) -> None:
        self._descriptions.remove(uid)
        await self._unregister(uid)
        self._folders.remove(uid)
