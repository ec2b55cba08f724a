"""The lease of a device: one holder at a time, by the order of `policy.leases`.

Everything happens in the event loop and without suspension: a request for a free lease is granted
inside `request`, so that nothing but the two messages is between a job and its start.

Grants can be *blocked* for named reasons: after a restart until the earlier clients are back,
after a job until the last copy of its stream has ended. A *resumed* job, one that ran while the
agent was away, is not granted again: it holds the lease from the moment it is back.

A preemptible holder is asked once to give the lease away, when an earlier deadline waits, also when
the time of one that waits has come only then; when it
stands at a gate it is *parked*: it waits among the others, and is granted again in its turn.

The lease may be left *open* to one client (`cached_lease`), whose jobs take it without asking: if
nobody has it, or from the moment that client is granted it on, so that its next job may follow
before the end of this one is heard of. That is no grant: as soon as anybody else asks, or grants
are blocked, it is closed; if the client has taken it by then it is waited for as for a holder that
is not preemptible, for one job.

A release of several jobs gives the lease back between them, and it is *kept* for the next one: only
a job that is due earlier is granted it meanwhile, for as long as its plan says.

Invariant: between a ticket's `granted` callback and its `park` or `release` no other ticket is
granted, and the lease is not open to another client; none is granted while it is open, or taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tierline_agent.concurrency import attempt
from tierline_agent.policy.leases import (
    Ask,
    Claim,
    Grant,
    Rank,
    decide,
    next_eligible_ns,
    yields,
)


def in_running_loop(delay_s: float, then: Callable[[], None]) -> asyncio.TimerHandle:
    """Call back after so many seconds."""
    return asyncio.get_running_loop().call_later(delay_s, then)


@dataclass(eq=False)
class Ticket:
    """A request for the lease, until it is released."""

    claim: Claim
    requested_ns: int = 0
    granted: Callable[[int], None] | None = None
    """Told when (CLOCK_MONOTONIC, nanoseconds) the lease became this ticket's."""
    granted_ns: int | None = None
    """When it got the lease for the first time."""
    asked: Callable[[], None] | None = None
    """Told, once until it is parked, that it should give the lease away."""
    asked_ns: int | None = None
    """Since when it should."""
    wanted: Callable[[], None] | None = None
    """Told once, while it has the lease, that others wait for it: what is no job may have it for
    longer than it works."""
    task: str = ""
    """The name of the job's task; no other task has it."""


class Opened(Protocol):
    """The lease as it is left to one client."""

    def close(self) -> bool:
        """Take it back; False if the client has it, and will say that it does not any more."""
        ...


class LeaseManager:
    """Hands out the lease of one device."""

    def __init__(
        self,
        clock_ns: Callable[[], int],
        observe_wait_s: Callable[[float], None] | None = None,
        later: Callable[[float, Callable[[], None]], object] = in_running_loop,
    ) -> None:
        """`later` calls back after so many seconds of the clock."""
        self._clock_ns = clock_ns
        self._observe_wait_s = observe_wait_s
        self._later = later
        self._holder: Ticket | None = None
        self._opened: Opened | None = None
        self._wanted = False
        """It could not be closed: its client has a job."""
        self._wanted_ns = 0
        """Since when."""
        self._waiting: dict[int, Ticket] = {}
        self._blocked: set[str] = set()
        self._arrivals = 0
        self._idle_ns = clock_ns()
        self._kept: dict[int, Claim] = {}
        """Releases between two jobs, which nobody due later comes between."""
        self._advancing = False
        self._wakes_ns: int | None = None
        """When it looks again, because the time of one that waits has come."""

    @property
    def holder(self) -> Ticket | None:
        """The ticket that has the lease."""
        return self._holder

    @property
    def opened(self) -> Opened | None:
        """The cached lease of the client that it is left to, or that has taken it."""
        return self._opened

    def may_leave_open(self, after: Ticket) -> bool:
        """Whether nobody but this job's client has it, or wants it."""
        busy = self._opened or self._waiting or self._blocked or self._kept
        return not busy and self._holder in (None, after)

    @property
    def idle_ns(self) -> int:
        """The last moment at which nobody with a rank had the lease or waited for it."""
        self._look_whether_idle()
        return self._idle_ns

    def _look_whether_idle(self) -> None:
        tickets = [*self._waiting.values(), *([self._holder] if self._holder else [])]
        busy = self._opened is not None or self._kept
        if not busy and all(ticket.claim.rank for ticket in tickets):
            self._idle_ns = self._clock_ns()

    def keep(self, claim: Claim, until_ns: int) -> None:
        """A release gives the lease back and has more jobs.

        Until `until_ns`, or until `let_go`, only jobs due earlier than `claim` are granted it.
        """
        self._kept[claim.key] = claim
        self._later((until_ns - self._clock_ns()) / 1e9, lambda: self.let_go(claim.key))

    def let_go(self, key: int) -> None:
        """The next job of that release asks, or none does; does nothing the second time."""
        if self._kept.pop(key, None) is not None:
            self._look_whether_idle()
            self._advance()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def blocked(self) -> bool:
        """Whether nobody would be granted it."""
        return bool(self._blocked)

    def ticket(
        self,
        deadline_ns: int,
        rank: Rank,
        asked: Callable[[], None] | None = None,
        eligible_ns: int = 0,
    ) -> Ticket:
        """Make a ticket, with which nothing is asked yet; preemptible if `asked` is given."""
        self._arrivals += 1
        number, preemptible = self._arrivals, asked is not None
        claim = Claim(number, deadline_ns, number, rank, preemptible, eligible_ns)
        return Ticket(claim, asked=asked)

    def request(self, ticket: Ticket, granted: Callable[[int], None]) -> None:
        """Ask for the lease; `granted` may be called before this returns, and may release."""
        ticket.granted = granted
        ticket.requested_ns = self._clock_ns()
        self._waiting[ticket.claim.key] = ticket
        self._advance()

    def resume(self, ticket: Ticket) -> bool:
        """Give the lease to a job that runs already, whatever blocks others.

        False if somebody else has it: then the job was overtaken and cannot go on.
        """
        if self._holder is not None or not self.recall():
            return False
        ticket.granted_ns = self._clock_ns()
        self._holder = ticket
        return True

    def must_yield(self, ticket: Ticket) -> bool:
        """Whether a job waits to which this holder, at a gate, gives the lease away."""
        return yields(ticket.claim, self._claims(), now_ns=self._clock_ns())

    def kept_waiting_ns(self, since_ns: int, *, besides: str | None = None) -> int:
        """How long a holder, which has the lease since then, has kept anybody with a deadline that
        is guaranteed waiting; `besides` jobs of that task."""
        waiting = [one for one in self._waiting.values() if besides is None or one.task != besides]
        ranked = [one.requested_ns for one in waiting if one.claim.rank is Rank.GUARANTEED]
        return self._clock_ns() - max(since_ns, min(ranked)) if ranked else 0

    def park(self, ticket: Ticket, granted: Callable[[int], None]) -> None:
        """The holder gives the lease away, and wants it again; see `request`."""
        if ticket is not self._holder:
            raise ValueError("only the holder of the lease can be parked")
        self._holder = None
        ticket.asked_ns = None
        self.request(ticket, granted)

    def demote(self, ticket: Ticket) -> bool:
        """A claim has had what it was guaranteed: it goes on in what is left.

        False if it was guaranteed nothing.
        """
        if ticket.claim.rank is not Rank.GUARANTEED:
            return False
        ticket.claim = replace(ticket.claim, rank=Rank.BEST_EFFORT)
        self._look_whether_idle()
        self._advance()
        return True

    def release(self, ticket: Ticket) -> None:
        """Give the lease back, or withdraw the request; does nothing the second time."""
        if ticket is self._holder:
            self._holder = None
            self._look_whether_idle()
            self._advance()
        elif self._waiting.pop(ticket.claim.key, None) is not None:
            self._look_whether_idle()
        ticket.granted = None

    # -- left open

    def leave_open(self, lease: Opened, after: Ticket) -> None:
        """Leave the lease to the client that `lease` is of, after a job of its own."""
        if not self.may_leave_open(after):
            raise ValueError("a lease that others have or want cannot be left open")
        self._opened, self._wanted = lease, False

    def taken(self) -> None:
        """A job has begun by the cached lease: it waited for nobody."""
        if self._observe_wait_s is not None:
            self._observe_wait_s(0.0)

    def recall(self) -> bool:
        """Close what is open; False if its client has it, and is waited for."""
        if self._opened is not None and not self._wanted:
            if self._opened.close():
                self._opened = None
            else:
                self._wanted, self._wanted_ns = True, self._clock_ns()
        return self._opened is None

    def taken_by_ns(self, lease: Opened) -> int | None:
        """By when its client had taken what it could not have taken since; None: it still may."""
        return self._wanted_ns if self._wanted and lease is self._opened else None

    def returned(self, lease: Opened) -> bool:
        """A job that took it is over; returns whether it is left to that client's next one.

        Another one may have taken it before it was closed, and have it now.
        """
        if self._wanted and lease is self._opened and lease.close():
            self._opened, self._wanted = None, False
            self._advance()
        return lease is self._opened and not self._wanted

    def withdraw(self, lease: Opened) -> None:
        """Its client says that it does not have it, or is gone."""
        if lease is self._opened:
            lease.close()
            self._opened, self._wanted = None, False
            self._advance()

    # -- blocked

    def block(self, reason: str) -> None:
        """Grant nothing until `unblock` with the same reason."""
        self._blocked.add(reason)
        self.recall()

    def unblock(self, reason: str) -> None:
        """Withdraw a reason."""
        self._blocked.discard(reason)
        self._advance()

    def _advance(self) -> None:
        """Grant as long as the policy says so; a callback may release, request and block."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self._blocked and (not self._waiting or self.recall()):
                holder = self._holder.claim if self._holder else None
                now_ns = self._clock_ns()
                decision = decide(holder, self._claims(), self._kept.values(), now_ns=now_ns)
                if isinstance(decision, Ask):
                    self._ask()
                if not isinstance(decision, Grant):
                    self._say_wanted()
                    self._look_again(now_ns)
                    return
                self._grant(self._waiting.pop(decision.key))
        finally:
            self._advancing = False

    def _claims(self) -> list[Claim]:
        return [ticket.claim for ticket in self._waiting.values()]

    def _look_again(self, now_ns: int) -> None:
        """Nothing else happens when the time of one comes that waits."""
        next_ns = next_eligible_ns(self._claims(), now_ns)
        if next_ns is not None and (self._wakes_ns is None or next_ns < self._wakes_ns):
            self._wakes_ns = next_ns
            self._later((next_ns - now_ns) / 1e9, self._wake)

    def _wake(self) -> None:
        self._wakes_ns = None
        self._advance()

    def _ask(self) -> None:
        ticket = self._holder
        if ticket is not None and ticket.asked is not None and ticket.asked_ns is None:
            ticket.asked_ns = self._clock_ns()
            attempt("leases", ticket.asked)  # whoever asks now has no part in it

    def _say_wanted(self) -> None:
        ticket = self._holder
        if ticket is not None and ticket.wanted is not None and self._waiting:
            wanted, ticket.wanted = ticket.wanted, None
            attempt("leases", wanted)

    def _grant(self, ticket: Ticket) -> None:
        self._holder = ticket
        now_ns = self._clock_ns()
        if ticket.granted_ns is None:
            ticket.granted_ns = now_ns
            if self._observe_wait_s is not None:
                self._observe_wait_s((now_ns - ticket.requested_ns) / 1e9)
        granted, ticket.granted = ticket.granted, None
        if granted is not None:
            granted(now_ns)
