"""Tasks without a profile are measured first: alone on a device, or while tasks with a plan run.

A program that is measured alone runs unmanaged: it takes no lease, and its times are those of the
task alone only where nothing else runs. So it gets a device on which nothing holds anything. Were
it planned as soon as it has been measured, it would run on there, and the next task would never
find a device for itself. So a task that has been measured waits (Standing.MEASURED; its program
runs no job until its plan is there, and has left the device) for the tasks that are to be measured
there as well: those whose pods came within `BATCH_S` of the first one's allocation. Then all of
them are planned together, and the device is open to everyone.

Where every device is in use, a program is measured *while* the tasks of one *run*, if its spec says
for how long a job of it may have the device (`realtime.measuringLimit`). It takes the lease for
each job, in what all others leave, so that its times are still those of its jobs alone. A job
cannot be interrupted, and nothing is known of it: without a bound it could make any other one late,
and no measuring in pieces helps, since a piece is a layer of unknown length. So the bound must be
said, is proven together with the others as the longest section of a BestEffort task, and is
enforced: the node's agent kills a program whose job has the device for longer (so an untrue word
costs its own pod only). Of the device's memory it takes nothing: what it allocates is its pod's
own. All that holds on `cpu`. On a GPU it does not (a program loads its model over the links by
which others stream, launches outside of its jobs, and has its memory where the agent's is), so
there it waits for a device of its own. Measured, it is planned at once in addition to the others:
if it does not hold there, it is the one that gets no time.

Invariants: while a program is measured alone on a device, nothing there has a plan; one that is
measured while others run has a plan for its limit, made in one proof with theirs. So measuring
breaks no proof, and no task is admitted that measuring could make late.

It ends: a task that waits to be measured has a turn as soon as no other is measured; a measuring
that takes longer than others must wait is given up when others want the device
(Standing.UNMEASURED; its pod gets no time until it is started again or somebody brings the
profile), and so is one made while others run, for which a device that became slower has no room; a
task that comes later than the batch is not waited for. All of it is read from claims and profiles:
a restart changes nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

from tierline_api.objects.optin import Standing
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.seats import Claim, ClaimKey, Seat, TaskKey
from tierline_operator.placement.entry import Entry

BATCH_S: Final = 600
"""The task that is measured first waits for those whose pods come within so long."""


def to_be_measured(entry: Entry) -> bool:
    """Whether a task without a profile waits for a device on which its first pod is measured."""
    return not entry.leaving and not any(s.measured for s in entry.seats) and bool(entry.unseated())


class Measuring:
    """How those stand that were started to be measured, as the fleet's own books tell."""

    def __init__(
        self,
        entries: Mapping[TaskKey, Entry],
        claims: Mapping[ClaimKey, Claim],
        unmeasured: AbstractSet[TaskKey],
        missing: AbstractSet[TaskKey],
        profiled: Callable[[Entry], bool],
    ) -> None:
        """Look into books that the fleet keeps.

        Args:
            entries: all tasks.
            claims: all claims.
            unmeasured: tasks without a profile of which `to_be_measured` holds.
            missing: tasks that wait for a place.
            profiled: whether a task has a profile.
        """
        self._entries = entries
        self._claims = claims
        self._unmeasured = unmeasured
        self._missing = missing
        self._profiled = profiled

    def standing(self, seat: Seat, ledger: Ledger) -> Standing | None:
        """How a seat stands that has no plan and `measured`; None if it is to be planned now."""
        if self._profiled(self._entries[seat.task]):
            return Standing.MEASURED if self._awaits(ledger) else None
        if seat.standing is Standing.UNMEASURED or (seat.overdue and self._wanted(seat, ledger)):
            return Standing.UNMEASURED
        if ledger.holds and not seat.sharing:
            return Standing.UNMEASURED
        return Standing.PROFILING

    def moves(self, ledger: Ledger) -> bool:
        """Whether a seat of a device stands otherwise by now."""
        return any(
            self.standing(seat, ledger) is not seat.standing
            for seat in ledger.seats
            if seat.standing in {Standing.PROFILING, Standing.MEASURED}
        )

    def keep(self, ledger: Ledger) -> None:
        """After a ruling: a task measured while others run still is, or there is no room."""
        for seat in ledger.seats:
            if seat.sharing and seat.measured and not self._profiled(self._entries[seat.task]):
                ruled = seat.plan is not None
                seat.standing = Standing.PROFILING if ruled else Standing.UNMEASURED

    def _awaits(self, ledger: Ledger) -> bool:
        """Whether somebody is measured on a device now, or is to be in this batch."""
        if not ledger.only_measures:
            return False
        if any(self._goes_on(seat) for seat in ledger.seats):
            return True
        begun = [self._claims[seat.claim].allocated for seat in ledger.seats if seat.claim]
        first = min((one for one in begun if one), default="")
        waiting = (self._entries[key] for key in self._unmeasured)
        return any(entry.runs_on(ledger.device) and _in_time(entry, first) for entry in waiting)

    def _goes_on(self, seat: Seat) -> bool:
        measured = seat.standing is not Standing.PROFILING
        return not measured and not self._profiled(self._entries[seat.task])

    def _wanted(self, seat: Seat, ledger: Ledger) -> bool:
        """Whether somebody else waits for the device of a seat."""
        if any(other.standing is Standing.MEASURED for other in ledger.seats):
            return True
        others = (self._entries[key] for key in self._missing if key != seat.task)
        return any(
            entry.runs_on(ledger.device)
            and (entry.key in self._unmeasured or self._profiled(entry))
            for entry in others
        )


def _in_time(entry: Entry, first: str) -> bool:
    """Whether its pod came early enough after the first that was measured began."""
    try:
        came, began = (datetime.fromisoformat(t) for t in (entry.unseated()[0].created, first))
        return came <= began + timedelta(seconds=BATCH_S)
    except (TypeError, ValueError):
        return not first  # nobody's measuring has begun, or it is not known when
