"""Events: what happened to a task and to its pods, told once each.

An event is no part of the truth: one that cannot be written is only logged. What was told is
remembered for as long as the object is there that it was told about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

from tierline_api.conditions import ConditionStatus, ConditionType, find
from tierline_api.memtask_status import MemTaskStatus
from tierline_kube.client import Kube
from tierline_kube.errors import KubeError
from tierline_kube.events import Reporter, event
from tierline_kube.resource import EVENT, MEMTASK, Resource
from tierline_operator.leader import Leadership
from tierline_operator.placement.seats import TaskKey
from tierline_operator.reading import Meta

log = logging.getLogger(__name__)
_TOLD: Final = (
    *(ConditionType.PROFILED, ConditionType.ADMITTED, ConditionType.READY),
    ConditionType.DEADLINES_MET,
)
"""Conditions of which a change is worth an event, in the order in which they come true."""


class Told:
    """What was told already: topics, of objects by uid, of tasks."""

    def __init__(self) -> None:
        self._topics: dict[TaskKey, dict[str, set[str]]] = {}

    def first(self, key: TaskKey, uid: str, topic: str) -> bool:
        """Note a topic; returns whether it is told for the first time."""
        topics = self._topics.setdefault(key, {}).setdefault(uid, set())
        new = topic not in topics
        topics.add(topic)
        return new

    def keep(self, key: TaskKey, uids: Collection[str]) -> None:
        """Forget what was told about objects of a task that are gone: all but `uids`."""
        kept = {uid: told for uid, told in self._topics.pop(key, {}).items() if uid in uids}
        if kept:
            self._topics[key] = kept

    def __len__(self) -> int:
        """How many objects something is remembered of."""
        return sum(map(len, self._topics.values()))


class Telling:
    """Writes events while this replica leads."""

    def __init__(self, kube: Kube, leadership: Leadership) -> None:
        self._kube = kube
        self._leadership = leadership
        self.told = Told()

    async def changes(self, meta: Meta, before: MemTaskStatus | None, now: MemTaskStatus) -> None:
        """Tell what changed of a MemTask's conditions."""
        for kind in _TOLD:
            was = find(before.conditions, kind) if before else None
            is_ = find(now.conditions, kind)
            if is_ is None or is_.status == ConditionStatus.UNKNOWN:
                continue
            good = is_.status == ConditionStatus.TRUE
            if before is None and kind == ConditionType.PROFILED and good:
                continue  # nothing has happened: it was there
            if kind == ConditionType.READY and not good:
                continue  # pods come and go, and say themselves why
            if was is None or (was.status, was.reason) != (is_.status, is_.reason):
                await self.tell(MEMTASK, meta, is_.reason, is_.message, normal=good)

    async def once(
        self,
        key: TaskKey,
        resource: Resource,
        meta: Meta,
        reason: str,
        message: str,
        *,
        topic: str = "",
    ) -> None:
        """Warn about an object of a task, unless that was done of this topic, or message."""
        if self.told.first(key, meta.uid, topic or message):
            await self.tell(resource, meta, reason, message, normal=False)

    async def tell(
        self, resource: Resource, meta: Meta, reason: str, message: str, *, normal: bool
    ) -> None:
        """Write an event about an object."""
        reporter = Reporter("tierline.io/operator", self._leadership.identity, "Admission")
        about = resource.reference(
            {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        )
        told = event(reporter, about, reason, message, time.time_ns(), normal=normal)
        log.info(message, extra={"task": f"{meta.namespace}/{meta.name}", "reason": reason})
        try:
            self._leadership.check()
            await self._kube.create(EVENT, told)
        except KubeError as error:
            log.warning("cannot write an event: %s", error)
