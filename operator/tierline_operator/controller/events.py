"""Events: what happened to a task and to its pods, told once each.

An event is no part of the truth: one that cannot be written is only logged. What was told is
remembered for as long as the object is there that it was told about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tierline_api.objects.conditions import ConditionStatus, ConditionType, Reason, find
from tierline_api.objects.memtask_status import MemTaskStatus
from tierline_kube.client import Kube
from tierline_kube.errors import Ending, KubeError, NotFound
from tierline_kube.events import Reporter, event
from tierline_kube.resource import EVENT, MEMTASK, Resource
from tierline_operator.cluster.decode import Meta
from tierline_operator.leadership.lease import Leadership
from tierline_operator.placement.books.seats import TaskKey

log = logging.getLogger(__name__)
_TOLD: Final = (
    *(ConditionType.PROFILED, ConditionType.ADMITTED, ConditionType.READY),
    ConditionType.DEADLINES_MET,
)
"""Conditions of which a change is worth an event, in the order in which they come true."""


USUAL: Final = frozenset({Reason.PROFILING, Reason.PENDING, Reason.BEING_DELETED, Reason.NO_PODS})
"""Why tasks are not admitted in the course of a normal life: no reason for a warning."""


_MOST_SERIES: Final = 16
"""So many events of an object are counted on; another one that comes back is a new one."""


@dataclass
class Series:
    """One event for something that happens again and again."""

    name: str = ""
    """Of the event; empty before the first."""
    times: int = 0


class Told:
    """Events that were told already: topics, of objects by uid, of tasks."""

    def __init__(self) -> None:
        self._topics: dict[TaskKey, dict[str, set[str]]] = {}
        self._series: dict[str, dict[str, Series]] = {}
        """By uid and topic, the ones told last at the end."""

    def first(self, key: TaskKey, uid: str, topic: str) -> bool:
        """Note a topic; returns whether it is told for the first time."""
        topics = self._topics.setdefault(key, {}).setdefault(uid, set())
        new = topic not in topics
        topics.add(topic)
        return new

    def keep(self, key: TaskKey, uids: Collection[str]) -> None:
        """Forget what was told about objects of a task that are gone: all but `uids`."""
        gone = self._topics.get(key, {}).keys() - set(uids)
        for uid in gone:
            self._series.pop(uid, None)
        kept = {uid: told for uid, told in self._topics.pop(key, {}).items() if uid in uids}
        if kept:
            self._topics[key] = kept

    def series(self, key: TaskKey, uid: str, topic: str) -> Series:
        """The events so far of something that happens again and again; see `keep`."""
        self._topics.setdefault(key, {}).setdefault(uid, set())
        of = self._series.setdefault(uid, {})
        one = of[topic] = of.pop(topic, Series())
        if len(of) > _MOST_SERIES:  # figures in messages change often
            del of[next(iter(of))]
        return one

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
            if kind == ConditionType.READY and not good and is_.reason != Reason.STALLED:
                continue  # pods come and go, and say themselves why
            if was is None or (was.status, was.reason) != (is_.status, is_.reason):
                key = TaskKey(meta.namespace, meta.name)
                await self.series(
                    *(key, MEMTASK, meta, is_.reason, is_.message),
                    topic=f"{is_.reason}: {is_.message}",
                    normal=good or is_.reason in USUAL,
                )

    async def once(
        self,
        key: TaskKey,
        resource: Resource,
        meta: Meta,
        reason: str,
        message: str,
        *,
        topic: str = "",
        normal: bool = False,
    ) -> None:
        """Tell of an object of a task, unless that was done of this topic, or message."""
        if self.told.first(key, meta.uid, topic or message):
            await self.tell(resource, meta, reason, message, normal=normal)

    async def series(
        self,
        key: TaskKey,
        resource: Resource,
        meta: Meta,
        reason: str,
        message: str,
        *,
        topic: str,
        times: int | None = None,
        normal: bool = False,
    ) -> None:
        """Tell of an object of a task what happens again and again, by one event that counts.

        It has happened `times` times, or once more than is known.
        """
        known = self.told.series(key, meta.uid, topic)
        if times is None:
            times = known.times + 1
        if times <= known.times:
            return
        if known.name and await self._count(meta.namespace, known.name, times):
            known.times = times
            return
        known.name = await self.tell(resource, meta, reason, message, normal=normal)
        known.times = times

    async def _count(self, namespace: str, name: str, times: int) -> bool:
        """Add to an event; returns False if it is gone, as events are after an hour."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            self._leadership.check()
            counted = {"series": {"count": times, "lastObservedTime": now}}
            await self._kube.patch(EVENT, namespace, name, counted)
        except NotFound:
            return False
        except KubeError as error:
            log.warning("cannot write an event: %s", error)
        return True

    async def tell(
        self, resource: Resource, meta: Meta, reason: str, message: str, *, normal: bool
    ) -> str:
        """Write an event about an object; returns its name."""
        reporter = Reporter("tierline.io/operator", self._leadership.identity, "Admission")
        about = resource.reference(
            {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        )
        told = event(reporter, about, reason, message, time.time_ns(), normal=normal)
        log.info(message, extra={"task": f"{meta.namespace}/{meta.name}", "reason": reason})
        try:
            self._leadership.check()
            await self._kube.create(EVENT, told)
        except Ending as error:
            log.debug("no event: %s", error)
        except KubeError as error:
            log.warning("cannot write an event: %s", error)
        return str(told["metadata"]["name"])
