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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from tierline_agent.admin.client import Agent, AgentRefused
from tierline_agent.errors import AgentError
from tierline_agent.kubernetes.description import Version, describe, device_id
from tierline_agent.kubernetes.folders import Descriptions, Library, PodFolders
from tierline_agent.kubernetes.gpus import Access
from tierline_agent.kubernetes.grants import Grant, NotGranted
from tierline_api.objects.optin import Standing

_log = logging.getLogger(__name__)

Claims = Callable[[], Mapping[str, Grant | None]]
"""The node's claims, by uid; None for one that cannot be read."""
Registered = frozenset[str]
"""Claims that the agent knew when this turn began; each of them is dealt with once in it."""
Opener = Callable[[Grant], Access]
"""Says what opens its device to a pod; raises OSError."""


class PreparedClaims:
    """Claims that are prepared on this node. Not safe for threads; calls wait for each other."""

    def __init__(
        self,
        agent: Agent,
        library: Library,
        version: Version,
        folders: PodFolders,
        descriptions: Descriptions,
        boot: str,
        opener: Opener = lambda _grant: Access(),
        *,
        reconnect_s: float,
    ) -> None:
        self._agent = agent
        self._library = library
        self._version = version
        self._folders = folders
        self._descriptions = descriptions
        self._boot = boot
        self._opener = opener
        self._reconnect_s = reconnect_s
        self._made: dict[str, Grant] = {}
        """By claim: what was made of it by this process, completely."""
        self._held_back: dict[str, Grant] = {}
        """By claim: its newer plan, which waits until the program that has its memory leaves."""
        self._turn = asyncio.Lock()

    async def prepare(self, grant: Grant) -> tuple[str, ...]:
        """Let a pod start with what its claim grants; returns the CDI devices that it gets.

        Raises:
            NotGranted: the claim is there and grants nothing (any more).
            AgentError, OSError: it could not be done; asking again is right.
        """
        if grant.standing is Standing.LOST:
            raise NotGranted(
                f"claim {grant.namespace}/{grant.claim}: MemTask/{grant.task} no longer fits its "
                "device; its conditions say what is missing"
            )
        if grant.standing is Standing.UNMEASURED:
            raise NotGranted(
                f"claim {grant.namespace}/{grant.claim}: the pod left no profile of MemTask/"
                f"{grant.task} in time, and others waited for the device; delete the pod to have "
                "it measured again"
            )
        async with self._turn:
            registered = await self._registered()
            return await self._make(grant, self._version_of(grant.uid), registered)

    async def unprepare(self, uid: str) -> None:
        """Undo whatever there is of a claim. Raises AgentError, OSError."""
        async with self._turn:
            await self._undo(uid, await self._registered())

    async def settle(self, claims: Claims) -> None:
        """Hold what is here against the node's claims, as they are when it is this call's turn.

        What belongs to no claim goes. Prepared claims whose terms, plan or standing changed get
        them; a claim that is not prepared is left to the kubelet.

        What cannot be done for one claim is logged; settling again tries it again.

        Raises:
            AgentError, OSError: the agent does not answer, or a folder cannot be read.
        """
        async with self._turn:
            grants = claims()
            described = self._descriptions.all()
            registered = await self._registered()
            here = self._folders.uids() | set(described) | self._descriptions.drafts()
            for uid in sorted((here | registered) - set(grants)):
                _log.info("claim %s is gone; what was prepared for it goes", uid)
                await self._attempt(self._undo(uid, registered), uid)
            for uid in sorted(set(described) & set(grants)):
                grant = grants[uid]
                current = described[uid].boot == self._boot
                if grant is not None and current and self._made.get(uid) != _lasting(grant):
                    version = self._library.version(described[uid].version) or self._version
                    await self._attempt(self._renew(grant, version, registered), uid)

    @staticmethod
    async def _attempt(work: Awaitable[None], uid: str) -> None:
        """Do something for one claim; the others do not suffer from its failure."""
        try:
            await work
        except (AgentError, OSError) as error:
            _log.warning("claim %s is not as it should be yet: %s", uid, error)

    def remove_unused_versions(self) -> None:
        """Remove versions of the library that no prepared claim of this boot has."""
        held = {one.version for one in self._descriptions.all().values() if one.boot == self._boot}
        self._library.remove_others(frozenset(held | {self._version.name}))

    def _version_of(self, uid: str) -> Version:
        known = self._descriptions.all().get(uid)
        if known is None or known.boot != self._boot:
            return self._version
        return self._library.version(known.version) or self._version

    async def _make(
        self, grant: Grant, version: Version, registered: Registered
    ) -> tuple[str, ...]:
        measured = grant.standing is Standing.PROFILING
        folder = self._folders.make(grant.uid, version, measured=measured)
        if grant.standing is Standing.UNMEASURED:
            self._folders.give_up(grant.uid)
        complete = await self._register(grant, registered)
        access = self._opener(grant)
        learned = self._folders.has_measured(grant.uid)
        description = describe(
            *(grant, folder, version, self._boot, access.nodes),
            learned=learned,
            reconnect_s=self._reconnect_s,
        )
        self._descriptions.write(grant.uid, description)
        if grant.planned:
            self._folders.tell_planned(grant.uid)  # not before what it is to start with is there
        if complete:
            self._made[grant.uid] = _lasting(grant)
        return (device_id(grant.uid), *access.described)

    async def _renew(self, grant: Grant, version: Version, registered: Registered) -> None:
        """Bring a prepared claim to what it grants now."""
        if grant.standing is Standing.LOST:
            await self._unregister(grant.uid, registered)
            self._made[grant.uid] = _lasting(grant)
            return
        # Refused for want of room, it stays as it was: another claim's change may make that room.
        await self._make(grant, version, registered)

    async def _register(self, grant: Grant, registered: Registered) -> bool:
        """Tell the agent; returns whether it holds all of it already."""
        wanted = grant.registration
        if wanted is None:
            await self._unregister(grant.uid, registered)
        elif grant.uid in registered:
            answer = await self._agent.ask("revise", **wanted.as_json())
            if not answer["complete"]:
                self._held_back[grant.uid] = grant
                return False
        else:
            try:
                await self._agent.ask("register", **wanted.as_json())
            except AgentRefused as error:
                raise AgentRefused(f"{error}{self._held_up()}") from error
        self._held_back.pop(grant.uid, None)
        return True

    def _held_up(self) -> str:
        """Which pods still have memory by an earlier plan, as the end of a sentence."""
        if not self._held_back:
            return ""
        tasks = ", ".join(sorted(f"{one.namespace}/{one.task}" for one in self._held_back.values()))
        return (
            f"; pods of {tasks} have memory by an earlier plan until they start again: restart them"
        )

    async def _unregister(self, uid: str, registered: Registered) -> None:
        if uid in registered:
            await self._agent.ask("remove", name=uid)

    async def _registered(self) -> Registered:
        return frozenset((await self._agent.ask("tasks"))["tasks"])

    async def _undo(self, uid: str, registered: Registered) -> None:
        self._made.pop(uid, None)
        self._held_back.pop(uid, None)
        self._descriptions.remove(uid)
        await self._unregister(uid, registered)
        self._folders.remove(uid)


def _lasting(grant: Grant) -> Grant:
    """A grant without what changes with every report."""
    return replace(grant, observed=None)
