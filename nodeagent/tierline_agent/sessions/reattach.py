"""Re-attaching: JOB_HELD, DIGESTS, ATTACH and its descriptors, after the agent was restarted.

A client offers what an earlier agent lent it. Nothing is believed: placements must be what this
agent would have made within the plan, descriptors must be memory that the earlier agent noted as
this domain's, and every digest must be in a store of this node, in this domain.

Descriptors are adopted as they arrive. After a failure those that are still to come are taken and
closed, and only then the ATTACH is answered, so that the client's messages stay in step.

A job in progress comes with the arena or the workspace that it uses, or, where it has the lease
alone, by JOB_HELD, before a client that has nothing to offer counts as back.

Invariant: an arena is managed again completely or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tierline_agent.devices.base import Words
from tierline_agent.errors import ConnectionViolation, QuotaExceeded
from tierline_agent.memory.arenas import Arena, release_all
from tierline_agent.memory.extents import Pooled
from tierline_agent.policy.layout import extents_for, place, residents_of
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.jobs import Jobs
from tierline_agent.transport.protocol import (
    Attach,
    Attached,
    DescriptorKind,
    Digests,
    Fds,
    JobHeld,
)

_log = logging.getLogger(__name__)
_MAX_DIGESTS = 1 << 16


@dataclass
class _Offer:
    """An ATTACH whose descriptors are arriving."""

    sequence: int
    message: Attach
    wanted: dict[DescriptorKind, int]
    residents: list[Pooled] = field(default_factory=list)
    ring: list[Pooled] = field(default_factory=list)
    words: Words | None = None
    failure: Exception | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is to come."""
        return not any(self.wanted.values())


class Reattach:
    """The offers of one client."""

    def __init__(self, client: Client, jobs: Jobs) -> None:
        self._client = client
        self._jobs = jobs
        self._digests: dict[int, list[bytes]] = {}
        self._offer: _Offer | None = None
        self._awaits_held = False

    def begins(self, *, comes_back: bool) -> None:
        """A client has said HELLO; what it kept, and a job that it has, may still be to come."""
        self._awaits_held = comes_back
        if not comes_back:
            self._client.node.recovery.attached(self._client.token, 0)

    def held(self, _sequence: int, message: JobHeld) -> None:
        """Go on with a job that has the lease alone."""
        client = self._client
        if not self._awaits_held:
            raise ConnectionViolation("JOB_HELD does not follow a WELCOME", out_of_order=True)
        self._awaits_held = False
        if message.job and client.node.recovery.may_resume(client.token):
            self._jobs.resume(None, message.job, message.release_ns, message.deadline_ns)
        client.node.recovery.attached(client.token, 0)

    def digests(self, _sequence: int, message: Digests) -> None:
        """Keep digests for the ATTACH to come."""
        known = self._digests.setdefault(message.arena, [])
        if message.first != len(known):
            raise ConnectionViolation(
                f"digests of arena {message.arena} begin at {message.first}, not {len(known)}",
                out_of_order=True,
            )
        if sum(map(len, self._digests.values())) + len(message.digests) > _MAX_DIGESTS:
            raise ConnectionViolation("too many digests were sent")
        known.extend(message.digests)

    def attach(self, sequence: int, message: Attach) -> None:
        """Begin to take an arena back."""
        if self._offer is not None:
            raise ConnectionViolation("another arena is being attached", out_of_order=True)
        self._check_place(message)
        wanted = {
            DescriptorKind.RESIDENT: len(residents_of(message.placement)),
            DescriptorKind.RING: message.ring_slots,
            DescriptorKind.CONTROL: 1,
        }
        if message.ring_slots > len(message.placement):
            raise ConnectionViolation("a ring has more slots than its arena has extents")
        self._offer = _Offer(sequence, message, wanted)
        try:
            self._check(message)
        except (ConnectionViolation, QuotaExceeded) as failure:
            self._offer.failure = failure

    def descriptors(self, _sequence: int, message: Fds) -> None:
        """Adopt what the descriptors lead to."""
        offer = self._offer
        descriptors = self._client.connection.take_descriptors(message.count)
        try:
            kind = DescriptorKind(message.kind)
            if offer is None or message.arena != offer.message.arena:
                raise ConnectionViolation("descriptors without an ATTACH", out_of_order=True)
            if message.count > offer.wanted.get(kind, 0):
                raise ConnectionViolation(f"too many descriptors of kind {kind.name.lower()}")
            offer.wanted[kind] -= message.count
            if offer.failure is None:
                try:
                    self._adopt(offer, kind, message.first, descriptors)
                except Exception as failure:  # it is answered when all have come
                    offer.failure = failure
        finally:
            self._client.close_elsewhere(descriptors)
        if offer.complete:
            self._offer = None
            self._settle(offer)

    def close(self) -> None:
        """The client is gone in the middle of an offer."""
        if self._offer is not None:
            self._withdraw(self._offer)
            self._offer = None

    def _check_place(self, message: Attach) -> None:
        if message.arena in self._client.arenas:
            raise ConnectionViolation(f"arena {message.arena} is there already", out_of_order=True)
        if message.running_job and self._jobs.in_progress:
            raise ConnectionViolation("two jobs are in progress at once", out_of_order=True)

    def _check(self, message: Attach) -> None:
        client = self._client
        plan, extent_bytes = client.task.plan, client.unit.device.extent_bytes
        count = len(message.placement)
        resident = residents_of(message.placement)
        if message.arena >= client.node.config.limits.arenas:
            raise QuotaExceeded(f"a client may have {client.node.config.limits.arenas} arenas")
        if count != extents_for(message.weight_bytes, extent_bytes) or count != len(
            self._digests.get(message.arena, ())
        ):
            raise ConnectionViolation(
                f"arena {message.arena} has {count} extents, not so many bytes or digests"
            )
        client.check_plan(count, len(resident))
        if message.ring_slots > plan.ring_extents:
            raise QuotaExceeded(
                f"the plan of {client.task.name} has fewer ring extents than offered"
            )
        if len(resident) < count and message.ring_slots == 0:
            raise ConnectionViolation("an arena streams without a ring")
        if message.placement != place(count, frozenset(resident), message.ring_slots):
            raise ConnectionViolation(f"arena {message.arena} is placed as no agent places it")
        client.own_arenas()

    def _adopt(
        self, offer: _Offer, kind: DescriptorKind, first: int, descriptors: list[int]
    ) -> None:
        client, pool = self._client, self._client.unit.pool
        into = offer.ring if kind is DescriptorKind.RING else offer.residents
        if kind is DescriptorKind.CONTROL:
            offer.words = client.unit.device.adopt_words(descriptors[0])
            return
        if first != len(into):
            raise ConnectionViolation(f"{kind.name.lower()} descriptors come out of order")
        client.node.watch_importer(client.process)
        for number, descriptor in enumerate(descriptors, first):
            if kind is DescriptorKind.RING:
                into.append(pool.adopt_ring(client.domain, number, descriptor, client.process))
            else:
                into.append(pool.adopt_resident(client.share, descriptor, client.process))

    def _settle(self, offer: _Offer) -> None:
        client, message = self._client, offer.message
        if offer.failure is None:
            try:
                arena = self._build(offer)
            except Exception as failure:  # every failure becomes an answer
                offer.failure = failure
        client.unit.extents_changed()
        if offer.failure is not None:
            _log.warning("cannot take an arena of %s back: %s", client, offer.failure)
            self._withdraw(offer)
            client.refuse(offer.sequence, offer.failure)
            return
        client.arenas[message.arena] = arena
        client.write_down()
        client.reply(offer.sequence, Attached(message.arena))
        if message.running_job:
            self._jobs.resume(arena, message.running_job, message.release_ns, message.deadline_ns)
        client.node.recovery.attached(client.token, client.kept)

    def _build(self, offer: _Offer) -> Arena:
        client, message = self._client, offer.message
        self._check_place(message)  # other messages may have come between
        self._check(message)
        stored = []
        try:
            for digest in self._digests.pop(message.arena):
                stored.append(client.node.storage.find(client.domain, digest))  # noqa: PERF401 - those found must be known if one fails
        except Exception:
            release_all(client.node.storage, stored)
            raise
        assert offer.words is not None, "a complete offer has its control page"  # noqa: S101 - an invariant
        return Arena(
            index=message.arena,
            weight_bytes=message.weight_bytes,
            pinned_bytes=message.pinned_bytes,
            extent_bytes=client.unit.device.extent_bytes,
            placement=message.placement,
            residents=offer.residents,
            ring=offer.ring,
            words=offer.words,
            stored=list(stored),
            first=self._first_extent(message.arena),
            sealed=True,
        )

    def _first_extent(self, index: int) -> int | None:
        before = [self._client.arenas.get(lower) for lower in range(index)]
        known = [arena.extent_count for arena in before if arena is not None]
        return sum(known) if len(known) == index else None

    def _withdraw(self, offer: _Offer) -> None:
        self._digests.pop(offer.message.arena, None)
        self._client.unit.pool.give_up(offer.residents)
        if offer.words is not None:
            offer.words.close()
