"""The leader's loop: see, decide, write; again and again, from whatever state it finds.

See: a leader reads everything first, and goes on from there with a watch of each kind (`follow`).
Decide: the fleet settles, in a thread, so that watches are read meanwhile. Write: for each task
that something changed for, what is not yet as it should be (reconciler.py); what fails is tried
again later.

No double admission, whenever the process dies:

* a claim is allocated only after a consistent listing of all claims by the same leader, and what it
  allocates is noted before anything else is decided;
* an allocation carries the claim's resourceVersion, and a leader that follows one which did not
  give up its Lease, or finds none, first changes every unallocated claim: a write still under way
  is refused;
* what was decided but not allocated is nowhere: the next leader decides it again. Where it is
  lost meanwhile, the same leader decides again, and first changes the claim likewise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from tierline_api.objects.memprofile import MemProfileStatus
from tierline_api.objects.memquota import MemQuotaStatus
from tierline_kube.client import BOOKMARK, Kube
from tierline_kube.errors import Ending, KubeError, NotFound, Refused, Unreachable
from tierline_kube.resource import MEMPROFILE, MEMQUOTA, Json, Resource
from tierline_operator import metrics
from tierline_operator.cluster.resources import CLAIM, WATCHED
from tierline_operator.cluster.state import Name, View, name_of
from tierline_operator.controller.allowance import Allowance
from tierline_operator.controller.outside import Outside
from tierline_operator.controller.quotas import quota_status, shares
from tierline_operator.controller.reconciler import Reconciler
from tierline_operator.controller.writer import Later, Stale
from tierline_operator.leadership.lease import Leadership
from tierline_operator.placement.books.rules import Rules
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")
Step = Callable[[TaskKey], Awaitable[None]]
TERM = "tierline.io/term"
"""Annotation of an unallocated claim: the term of the leader that saw it last at a change."""
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 30.0
_SILENCE_RETRY_S = 5.0
_STUCK_S = 120.0
_SHOW_S = 2.0
"""Between two looks at everything for the metrics."""
_PROFILES_A_TURN = 50
"""MemProfiles that are written to then."""
_DOUBT_S = 60.0
"""For so long a request without an answer may still be carried out: the API server's own limit."""


class Engine:
    """Acts for the cluster while this replica leads."""

    def __init__(
        self,
        kube: Kube,
        leadership: Leadership,
        settings: Settings,
        rules: Rules,
        allowance: Allowance,
    ) -> None:
        self._kube = kube
        self._allowance = allowance
        self._leadership = leadership
        self._settings = settings
        self._rules = rules
        self._inbox: dict[tuple[str, Name], tuple[Resource, Json, bool]] = {}
        self._read: asyncio.Future[dict[Resource, str]] = asyncio.Future()
        self._wake = asyncio.Event()
        self._due: set[TaskKey] = set()
        self._retries: dict[TaskKey, int] = {}
        self._retry_at: dict[TaskKey, float] = {}
        self._late_at = math.inf
        self._show_at = self._shown_at = -math.inf
        self._began_at: float | None = None
        self._finishing = False
        self._doubt_until = 0.0
        self._resting = asyncio.Event()
        self._resting.set()
        self.view = View(Fleet(rules), settings.stalled_after_s)
        self._reconciler = Reconciler(kube, leadership, self.view)
        self._outside = Outside(kube, self._reconciler.telling)

    async def follow(self) -> None:
        """See what happens from what was read on; ends only with what went wrong."""
        read = await self._read
        async with asyncio.TaskGroup() as all_:
            for resource in WATCHED:
                all_.create_task(self._follow(resource, read[resource]), name=resource.plural)
            all_.create_task(self._outside.watch(), name="outside")

    @property
    def stuck(self) -> bool:
        """Whether a turn of the loop takes so long that something must be wrong."""
        return self._began_at is not None and time.monotonic() - self._began_at > _STUCK_S

    async def finish(self, timeout_s: float) -> bool:
        """Begin nothing more; returns whether every write that was begun has been answered.

        One that was not may still be carried out: then the Lease must not be given up, so that the
        successor fences.
        """
        self._finishing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._resting.wait()
        except TimeoutError:
            return False
        return time.monotonic() > self._doubt_until

    async def lead(self) -> None:
        """Act until the Lease is lost or `finish` is called; raises NoLongerLeader."""
        await _until_it_works(self._take_over)
        more = True
        while not self._finishing:
            self._began_at = None
            if not more:
                await self._pause()
            self._began_at = time.monotonic()
            more = await self._turn()

    async def _turn(self) -> bool:
        """See, decide, write, once; returns whether there is more to decide."""
        self._wake.clear()
        seen = self._read_inbox()
        now = time.monotonic()
        self._late_at = self._be_late(now)
        for key in [key for key, at in self._retry_at.items() if at <= now]:
            del self._retry_at[key]
            self._due.add(key)
        with metrics.SETTLE_SECONDS.time():
            settled = await asyncio.to_thread(self.view.fleet.settle)
        # Tasks that are tried in the next turn are told then: one write a verdict.
        due = (self._due | settled.changed | self.view.late) - settled.untried
        self._due &= settled.untried
        if self._finishing:
            return False
        self._resting.clear()
        await self._write(due)
        silent = bool(self.view.silent)
        await self._write_silences()
        if seen or due or silent:
            self._show_at = min(self._show_at, self._shown_at + _SHOW_S)
        if self._show_at <= time.monotonic():
            self._show()
            await self._show_profiles()
            await self._show_quotas()
        self._resting.set()
        return settled.more or bool(self._due)

    def _be_late(self, now: float) -> float:
        """Note tasks measured for too long; returns when to look again, as `time.monotonic`."""
        clock = datetime.now(UTC)
        next_ = self.view.turn(clock, self._settings.measuring_limit_s)
        return now + (next_ - clock).total_seconds() if next_ else math.inf

    def _read_inbox(self) -> bool:
        """Take what was seen; returns whether anything was."""
        inbox, self._inbox = self._inbox, {}
        for resource, body, gone in inbox.values():
            self._due |= self.view.take(resource, body, gone=gone)
        return bool(inbox)

    async def _pause(self) -> None:
        """Wait for something to see, or for something to be due."""
        until = min([self._late_at, self._show_at, *self._retry_at.values()])
        left_s = None if until == math.inf else max(0.0, until - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wake.wait()

    # Seeing

    async def _take_over(self) -> None:
        self._leadership.check()
        if self._leadership.took_over:
            await self._fence()
        read = {}
        for resource in WATCHED:
            read[resource] = await self._reread(resource)
            self._read_inbox()  # whole objects of one kind at a time are enough to keep
        self._read.set_result(read)
        self._due |= set(self.view.tasks)

    async def _fence(self) -> None:
        """Change every unallocated claim: what a former leader still writes is then refused."""
        term = {"metadata": {"annotations": {TERM: self._leadership.tenure}}}

        async def change(body: Json) -> None:
            metadata = body["metadata"]
            with contextlib.suppress(NotFound):
                await self._kube.patch(CLAIM, metadata["namespace"], metadata["name"], term)

        claims = (await self._kube.list_all(CLAIM)).items
        open_claims = [body for body in claims if "allocation" not in (body.get("status") or {})]
        await self._at_once(open_claims, change)
        log.info("took over: %d open claims fenced against the former leader", len(open_claims))

    async def _follow(self, resource: Resource, version: str) -> None:
        """Watch a kind from a version on, for ever.

        However a watch ends, the next one goes on where it was. That is refused where the server
        does not remember so far back: then all of the kind is read.
        """
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                async for kind, body in self._kube.watch(resource, version):
                    version = body["metadata"]["resourceVersion"]
                    if kind != BOOKMARK:
                        self._observe(resource, body, gone=kind == "DELETED")
                    delay_s = _FIRST_RETRY_S
                delay_s = _FIRST_RETRY_S  # the server ended it in good order
            except Refused as error:
                log.warning("reads all %s again: %s", resource.plural, error)
                version = await _until_it_works(partial(self._reread, resource))
            except Unreachable as error:
                log.warning("watches again in %.1f s: %s", delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    async def _reread(self, resource: Resource) -> str:
        """Observe all of a kind as it is now; returns from which version to watch it.

        Into the inbox only: the fleet may settle meanwhile. An object that is gone leaves with the
        listing's version, so that it hides nothing newer (cluster/state.py).
        """
        listing = await self._kube.list_all(resource)
        known = self.view.known(resource).items()
        gone = {name for name, version in known if version <= int(listing.version)}
        gone |= {name for plural, name in self._inbox if plural == resource.plural}
        for body in listing.items:
            gone.discard(name_of(body))
            self._observe(resource, body, gone=False)
        for namespace, name in gone:
            metadata = {"namespace": namespace, "name": name, "resourceVersion": listing.version}
            self._observe(resource, {"metadata": metadata}, gone=True)
        return listing.version

    def _observe(self, resource: Resource, body: Json, *, gone: bool) -> None:
        self._inbox[resource.plural, name_of(body)] = (resource, body, gone)
        self._wake.set()

    # Writing

    async def _write(self, due: Iterable[TaskKey]) -> None:
        """Bring what belongs to these tasks to where it should be; room is made first."""
        keys = sorted(due)
        now = time.monotonic()
        spent = {key: wait_s for key in keys if (wait_s := self._allowance.wait_s(key, now))}
        failed: set[TaskKey] = set()
        later: set[TaskKey] = set()
        for step in self._reconciler.steps:
            # What is said of a task must not hang on what could not be written for it.
            always = step == self._reconciler.status
            going = [key for key in keys if always or key not in failed]
            if step != self._reconciler.notes:  # by these others get what they are promised
                going = [key for key in going if key not in spent]

            async def take(key: TaskKey, step: Step = step) -> None:
                try:
                    if not await self._try(step, key):
                        failed.add(key)
                except Later as left:
                    log.log(self._level(key), "will try again: %s", left, extra={"task": key})
                    later.add(key)

            await self._at_once(going, take)
        for key in keys:
            if key in failed or key in later:
                tries = self._retries[key] = self._retries.get(key, 0) + 1
                delay_s = min(0.05 * 2**tries, _LONGEST_RETRY_S)
                self._retry_at[key] = time.monotonic() + delay_s
            else:
                self._retries.pop(key, None)
        for key, wait_s in spent.items():
            metrics.DEFERRED.inc()
            log.warning("makes too many requests, waits for %.0f s", wait_s, extra={"task": key})
            self._retry_at[key] = now + wait_s

    async def _write_silences(self) -> None:
        """Say in the MemNodes of silent agents that nobody knows how they are."""
        for node in sorted(self.view.silent):
            try:
                await self._reconciler.silence(node)
            except Stale:
                log.info("MemNode %s has gone with its node", node)
            except KubeError as error:
                log.warning("cannot say that the agent of %s is silent: %s", node, error)
                self._late_at = min(self._late_at, time.monotonic() + _SILENCE_RETRY_S)
                continue
            self.view.silent.discard(node)

    async def _at_once(self, all_: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
        """Do it for all, for so many at once as may write at once."""
        left = iter(all_)

        async def work() -> None:
            for one in left:
                await do(one)

        await asyncio.gather(*(work() for _ in range(self._settings.writes_at_once)))

    async def _try(self, step: Step, key: TaskKey) -> bool:
        try:
            with self._allowance.paying(key):
                await step(key)
        except Stale as stale:
            return await self._read_again(stale, key)
        except Unreachable as error:
            self._doubt_until = time.monotonic() + _DOUBT_S
            log.warning("will try again: %s", error, extra={"task": key})
            return False
        except Ending as error:
            log.debug("%s", error, extra={"task": key})
            return False
        except Refused as error:
            log.log(self._level(key), "the API server refuses: %s", error, extra={"task": key})
            return False
        return True

    def _level(self, key: TaskKey) -> int:
        """How loud a refusal is logged: what comes of trying again is the same mostly."""
        return logging.DEBUG if key in self._retries else logging.WARNING

    async def _read_again(self, stale: Stale, key: TaskKey) -> bool:
        """Someone was faster: see what is there now, and decide again."""
        try:
            body = await self._kube.get(stale.resource, *stale.name)
            self._due |= self.view.take(stale.resource, body)
        except NotFound:
            self._due |= self.view.forget(stale.resource, stale.name)
        except KubeError as error:
            log.warning("will read again: %s", error, extra={"task": key})
        return False

    def _show(self) -> None:
        """Bring the metrics up to date. Looks at everything there is, so not in each turn."""
        self._show_at, self._shown_at = math.inf, time.monotonic()
        self._allowance.forget(self._shown_at)
        fleet = self.view.fleet
        metrics.WAITING.set(len(fleet.waiting()))
        statuses = (task.status for task, _ in self.view.tasks.values())
        metrics.show_tasks(status for status in statuses if status is not None)
        metrics.STALLED.set(len(self.view.stalled.over))
        metrics.show_nodes(self.view.pulses.nodes())
        ledgers = fleet.devices().items()
        metrics.show_devices((key, one.load, len(one.seats)) for key, one in ledgers)

    async def _show_quotas(self) -> None:
        """Say in each MemQuota, and in the metrics, how much of it is taken."""
        shown = []
        for quota, used in list(self.view.fleet.quotas()):
            name = quota.metadata.namespace, quota.name
            status = quota_status(quota, used)
            shown += [(*name, of, share) for of, share in shares(status)]
            if status == quota.status:
                continue
            await self._show_in(MEMQUOTA, name, status)
        metrics.show_quotas(shown)

    async def _show_profiles(self) -> None:
        """Say in new MemProfiles how large and how slow their models are."""

        async def show(one: tuple[Name, MemProfileStatus]) -> None:
            if await self._show_in(MEMPROFILE, *one):
                self.view.unshown.pop(one[0], None)

        # A few at a time: verdicts go first.
        await self._at_once(list(self.view.unshown.items())[:_PROFILES_A_TURN], show)
        if self.view.unshown:
            self._show_at = self._shown_at + _SHOW_S

    async def _show_in(
        self, kind: Resource, name: Name, status: MemQuotaStatus | MemProfileStatus
    ) -> bool:
        """Write a status for people; returns whether that is done with."""
        try:
            await self._reconciler.show(kind, name, status)
        except Stale:
            log.info("%s %s has gone", kind.kind, "/".join(name))
        except KubeError as error:
            log.warning("cannot write the status of %s %s: %s", kind.kind, "/".join(name), error)
            self._show_at = self._shown_at + _SILENCE_RETRY_S
            return False
        return True


async def _until_it_works(read: Callable[[], Awaitable[T]]) -> T:
    delay_s = _FIRST_RETRY_S
    while True:
        try:
            return await read()
        except KubeError as error:
            log.warning("cannot read the cluster, tries again in %.1f s: %s", delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
