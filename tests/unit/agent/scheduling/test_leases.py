from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tierline_agent.policy.leases import Rank
from tierline_agent.scheduling.leases import LeaseManager, Ticket


@dataclass
class Desk:
    """A lease manager with a clock of its own, and what it granted."""

    now_ns: int = 0
    granted: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timers: list[Callable[[], None]] = []
        self.leases = LeaseManager(
            lambda: self.now_ns, self.waits_s.append, lambda _s, then: self.timers.append(then)
        )

    def expire(self) -> None:
        """All timers end."""
        due, self.timers = self.timers, []
        for then in due:
            then()

    def ask(
        self, name: str, deadline_ns: int, rank: Rank = Rank.GUARANTEED, eligible_ns: int = 0
    ) -> Ticket:
        ticket = self.leases.ticket(deadline_ns, rank, eligible_ns=eligible_ns)
        self.leases.request(ticket, lambda _now_ns: self.granted.append(name))
        return ticket


def test_a_free_lease_is_granted_at_once() -> None:
    desk = Desk()
    ticket = desk.ask("only", 5)
    assert desk.granted == ["only"]
    assert desk.leases.holder is ticket


def test_a_lease_is_idle_while_nobody_with_a_rank_has_it_or_wants_it() -> None:
    desk = Desk()
    ticket = desk.ask("only", 5)
    desk.now_ns = 10
    assert desk.leases.idle_ns < 10
    desk.leases.release(ticket)
    assert desk.leases.idle_ns == 10


def test_between_two_jobs_of_a_release_only_who_is_due_earlier_gets_the_lease() -> None:
    desk = Desk()
    first = desk.ask("first", 20)
    desk.ask("later", 30)
    desk.leases.keep(first.claim, 100)
    desk.leases.release(first)
    assert desk.granted == ["first"]
    urgent = desk.ask("urgent", 10)
    assert desk.granted == ["first", "urgent"]
    desk.leases.release(urgent)
    desk.now_ns = 10
    assert desk.leases.idle_ns < 10
    second = desk.ask("second", 20)
    desk.leases.let_go(first.claim.key)
    assert desk.granted == ["first", "urgent", "second"]
    desk.leases.keep(second.claim, 100)
    desk.leases.release(second)
    desk.expire()
    assert desk.granted == ["first", "urgent", "second", "later"]


def test_one_before_its_time_is_served_only_while_nobody_else_waits() -> None:
    desk = Desk()
    holder = desk.ask("early", 10, eligible_ns=5)
    desk.ask("early again", 20, eligible_ns=15)
    later = desk.ask("later", 100)
    desk.leases.release(holder)
    assert desk.granted == ["early", "later"]
    desk.leases.release(later)
    assert desk.granted == ["early", "later", "early again"]


def test_a_holder_is_asked_when_the_time_of_one_that_waits_comes() -> None:
    desk, asked = Desk(), list[str]()
    long = desk.leases.ticket(100, Rank.GUARANTEED, lambda: asked.append("long"))
    desk.leases.request(long, lambda _now_ns: desk.granted.append("long"))
    desk.ask("early", 10, eligible_ns=5)
    assert not desk.leases.must_yield(long)
    desk.expire()  # a clock that is a little ahead
    assert asked == []
    desk.now_ns = 5
    desk.expire()
    assert asked == ["long"]
    assert desk.leases.must_yield(long)


def test_waiters_follow_by_deadline_and_their_waits_are_measured() -> None:
    desk = Desk()
    holder = desk.ask("holder", 1)
    late = desk.ask("late", 30)
    desk.ask("early", 10)
    desk.now_ns = 2_000_000_000
    desk.leases.release(holder)
    assert desk.granted == ["holder", "early"]
    assert desk.waits_s == [0.0, 2.0]
    desk.leases.release(late)
    assert desk.leases.waiting == 0


def test_a_blocked_lease_is_granted_when_the_last_reason_is_gone() -> None:
    desk = Desk()
    desk.leases.block("a")
    desk.leases.block("b")
    desk.ask("waiter", 1)
    desk.leases.unblock("a")
    assert desk.granted == []
    desk.leases.unblock("b")
    assert desk.granted == ["waiter"]


def test_a_job_that_ran_before_goes_on_although_leases_are_blocked() -> None:
    desk = Desk()
    desk.leases.block("restart")
    desk.ask("waiter", 1)
    back = desk.leases.ticket(100, Rank.GUARANTEED)
    assert desk.leases.resume(back)
    assert not desk.leases.resume(desk.leases.ticket(1, Rank.GUARANTEED))
    desk.leases.unblock("restart")
    assert desk.granted == []
    desk.leases.release(back)
    assert desk.granted == ["waiter"]


def test_a_grant_that_finds_its_client_dead_passes_the_lease_on() -> None:
    desk = Desk()
    holder = desk.ask("holder", 1)
    dead = desk.leases.ticket(2, Rank.GUARANTEED)
    desk.leases.request(dead, lambda _now_ns: desk.leases.release(dead))
    desk.ask("next", 3)
    desk.leases.release(holder)
    assert desk.granted == ["holder", "next"]


def test_a_preemptible_holder_is_asked_once_and_comes_back_in_its_turn() -> None:
    desk = Desk()
    asked: list[str] = []
    long = desk.leases.ticket(100, Rank.GUARANTEED, lambda: asked.append("long"))
    desk.leases.request(long, lambda _now_ns: desk.granted.append("long"))
    desk.ask("later", 200)
    assert asked == []
    first = desk.ask("first", 10)
    second = desk.ask("second", 20)
    assert asked == ["long"]
    assert desk.leases.must_yield(long)
    desk.leases.park(long, lambda _now_ns: desk.granted.append("long again"))
    desk.leases.release(first)
    desk.leases.release(second)
    assert desk.granted == ["long", "first", "second", "long again"]
    assert not desk.leases.must_yield(long)


def test_a_demoted_holder_yields_to_a_later_deadline() -> None:
    desk = Desk()
    asked: list[str] = []
    greedy = desk.leases.ticket(100, Rank.GUARANTEED, lambda: asked.append("greedy"))
    desk.leases.request(greedy, lambda _now_ns: None)
    desk.ask("later", 200)
    assert asked == []
    assert desk.leases.demote(greedy)
    assert asked == ["greedy"]
    assert not desk.leases.demote(greedy)


def test_releasing_twice_changes_nothing() -> None:
    desk = Desk()
    first = desk.ask("first", 1)
    desk.leases.release(first)
    second = desk.ask("second", 1)
    desk.leases.release(first)
    assert desk.leases.holder is second


def test_a_holder_that_is_no_job_is_told_once_that_others_wait() -> None:
    desk, told = Desk(), list[str]()
    ticket = desk.leases.ticket(1, Rank.WARMUP)
    ticket.wanted = lambda: told.append("wanted")
    desk.leases.request(ticket, lambda _now_ns: desk.granted.append("meanwhile"))
    assert told == []
    desk.leases.block("restart")
    desk.ask("first", 2)
    assert told == []  # nobody would be granted it
    desk.leases.unblock("restart")
    desk.ask("second", 3)
    assert told == ["wanted"]
    desk.leases.release(ticket)
    assert desk.granted == ["meanwhile", "first"]
    assert told == ["wanted"]


def test_one_that_is_granted_while_others_wait_is_told_at_once() -> None:
    desk, told = Desk(), list[str]()
    holder = desk.ask("holder", 1)
    ticket = desk.leases.ticket(2, Rank.GUARANTEED)
    ticket.wanted = lambda: told.append("wanted")
    desk.leases.request(ticket, lambda _now_ns: desk.granted.append("meanwhile"))
    desk.ask("later", 3)
    assert told == []
    desk.leases.release(holder)
    assert desk.granted == ["holder", "meanwhile"]
    assert told == ["wanted"]
