"""One replica leads: it holds the Lease, and acts only while the Lease is surely its own.

The protocol is that of client-go: the holder renews every `retry_period_s`; another may take the
Lease when it has not seen it change for the duration written in it, by its own clock (clocks of
machines are never compared). A leader that could not renew for `renew_deadline_s` stops acting and
the process ends: a restarted one begins with what the cluster says. So does one whose loop has not
turned for `longest_turn_s`. The Lease is renewed in another thread than that loop's (renewal.py).

Fencing. Between asking `check` and the arrival of a write a process may be stopped for any time, so
a time alone does not fence. The successor therefore first changes every unallocated claim
(controller/loop.py): a late write of a former leader carries a resourceVersion that is no longer
current, and is refused. A leader that ended in good order has stopped writing before it gave the
Lease up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from datetime import UTC, datetime

from tierline_kube.client import Kube
from tierline_kube.errors import Conflict, KubeError, NotFound
from tierline_kube.resource import LEASE, Json
from tierline_operator.metrics import LEADER
from tierline_operator.settings import Settings

log = logging.getLogger(__name__)


class NoLongerLeader(Exception):  # noqa: N818 - a state, not a mistake
    """The Lease may belong to another replica by now: nothing may be written."""


class Leadership:
    """This replica's hold on the Lease."""

    def __init__(self, kube: Kube, settings: Settings, longest_turn_s: float = 120.0) -> None:
        self._kube = kube
        self._settings = settings
        self._longest_turn_s = longest_turn_s
        self._turned_at = 0.0
        self._lease: Json | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self.took_over = False
        """The Lease was taken from a holder that did not give it up, or may have been: of one that
        is deleted nobody knows."""
        self.term = 0
        """Counts holders of the Lease."""
        self.tenure = ""
        """Of this holder's time, and of no other, also where the Lease was deleted."""

    @property
    def identity(self) -> str:
        """This replica's name."""
        return self._settings.identity

    def turn(self) -> None:
        """Note that the loop turns which acts while the Lease is held."""
        self._turned_at = time.monotonic()

    def check(self) -> None:
        """Raise NoLongerLeader unless the Lease is surely held now."""
        renewed_at = self._renewed_at  # the thread that renews may change it meanwhile
        if renewed_at is None or time.monotonic() - renewed_at > self._settings.renew_deadline_s:
            raise NoLongerLeader(f"{self._settings.identity} may not hold the Lease any more")

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        said = ""
        while not await self._try():
            holder = self._holder()
            if holder != said:
                said = holder
                log.info("waits: %s leads", holder or "nobody", extra={"lease": self._name()})
            await asyncio.sleep(self._settings.retry_period_s)
        LEADER.set(1)
        log.info("leads, term %d", self.term, extra={"lease": self._name()})

    async def keep(self) -> None:
        """Renew for as long as that works; raises NoLongerLeader."""
        try:
            self.turn()
            while True:
                await asyncio.sleep(self._settings.retry_period_s)
                if time.monotonic() - self._turned_at > self._longest_turn_s:
                    self._renewed_at = None
                    raise NoLongerLeader(
                        f"{self._settings.identity} has done nothing for "
                        f"{self._longest_turn_s:.0f} s and leaves the Lease to another replica"
                    )
                if not await self._try() and self._holder() != self._settings.identity:
                    self._renewed_at = None
                self.check()
        finally:
            LEADER.set(0)

    async def release(self) -> None:
        """Give the Lease up, so that another replica need not wait; call when all writes ended."""
        if self._renewed_at is None or self._lease is None:
            return
        self._renewed_at = None
        LEADER.set(0)
        try:
            try:
                await self._give_up(self._lease)
            except Conflict:
                # The renewal under which `keep` was cancelled has arrived after all.
                await self._observe()
                if self._lease is not None and self._holder() == self._settings.identity:
                    await self._give_up(self._lease)
        except KubeError as error:
            log.warning("cannot give up the Lease, it will expire: %s", error)

    async def _give_up(self, lease: Json) -> None:
        spec = {**lease["spec"], "holderIdentity": "", "renewTime": _now()}
        await self._kube.replace(LEASE, {**lease, "spec": spec})

    async def _try(self) -> bool:
        """Renew or take the Lease; returns whether that worked."""
        begun = time.monotonic()
        try:
            if self._renewed_at is None:
                await self._observe()
                if not self._may_take():
                    return False
            await self._write()
        except KubeError as error:
            # Someone was faster, or there is no answer: the next try tells.
            log.debug("cannot renew the Lease: %s", error)
            return False
        # The Lease runs from before the request, however long the answer took.
        self._renewed_at = begun
        return True

    async def _observe(self) -> None:
        try:
            lease = await self._kube.get(LEASE, self._settings.namespace, self._settings.lease)
        except NotFound:
            self._lease = None
            return
        before = self._lease["metadata"]["resourceVersion"] if self._lease else None
        if lease["metadata"]["resourceVersion"] != before:
            self._seen_at = time.monotonic()
        self._lease = lease

    def _may_take(self) -> bool:
        holder = self._holder()
        if holder in {"", self._settings.identity} or self._lease is None:
            return True
        duration_s = float(
            self._lease["spec"].get("leaseDurationSeconds") or self._settings.lease_duration_s
        )
        return time.monotonic() - self._seen_at > duration_s

    async def _write(self) -> None:
        spec = dict(self._lease["spec"]) if self._lease else {}
        ours = spec.get("holderIdentity") == self._settings.identity
        if not ours or self._renewed_at is None:
            self.took_over = self._lease is None or bool(spec.get("holderIdentity"))
            self.term = int(spec.get("leaseTransitions") or 0) + 1
            spec |= {"acquireTime": _now(), "leaseTransitions": self.term}
            self.tenure = f"{self.term} {spec['acquireTime']} {self._settings.identity}"
        spec |= {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": math.ceil(self._settings.lease_duration_s),
            "renewTime": _now(),
        }
        if self._lease is None:
            body: Json = {
                "apiVersion": LEASE.group_version,
                "kind": LEASE.kind,
                "metadata": {"namespace": self._settings.namespace, "name": self._settings.lease},
                "spec": spec,
            }
            self._lease = await self._kube.create(LEASE, body)
        else:
            try:
                self._lease = await self._kube.replace(LEASE, {**self._lease, "spec": spec})
            except (Conflict, NotFound):
                await self._observe()
                raise

    def _holder(self) -> str:
        return str(self._lease["spec"].get("holderIdentity") or "") if self._lease else ""

    def _name(self) -> str:
        return f"{self._settings.namespace}/{self._settings.lease}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
