"""After a restart: which clients were here before, and when leases may be granted again.

The agent writes down its clients: token, task, process, number of sealed arenas and workspaces.
When it starts again, those that still live are *expected*: each is back once it has offered so
many, or says something else than offers. No lease is granted and nothing new is stored or lent
until all are back, or `recovery_s` has passed: stored content has no references before its owners
return, and must not be evicted meanwhile.

One client of each device is special: the *holder*, which was inside a job. It goes on computing
from its ring while the agent is away, so no other job may stream through that ring until it is back
or dead; not even after `recovery_s`. From then on its trust domain's ring and workspace are
*fenced* on its device, and all other jobs go on. If it comes back later and another job has the
device, its job is revoked. A live holder that does not come back in `holder_grace_s` is killed; one
that outlives that (`processes.killing`) computes no more, and counts as dead.

A holder whose domain is fenced stays written down as such, in the book: by then the mark of the
lease is somebody else's. If neither book nor mark says whose it is, its device waits for it.

If what was written down cannot be read, anybody may come back: that is waited for as long.

Invariant: the leases of each device are unblocked exactly once, when nobody is expected and its
holder is settled or its domain fenced; nobody streams into a ring from which somebody may compute;
what an earlier agent lent is given up no sooner than everybody is back or dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tierline_agent.processes.identity import Process, ProcessWatch, is_alive
from tierline_agent.processes.interventions import Interventions, KillReason
from tierline_agent.processes.state import BootFile, LeaseMark
from tierline_agent.scheduling.leases import LeaseManager

_log = logging.getLogger(__name__)
_REASON = "clients of before the restart"
_UNKNOWN: Final[list[object]] = []
"""A row of the book that stands for those that may be missing."""
_ANY_NUMBER: Final = 1 << 32


@dataclass(frozen=True)
class ClientRecord:
    """A client as it is written down."""

    token: int
    task: str
    process: Process
    kept: int
    """Its sealed arenas, and its workspace."""
    inside: str = ""
    """The device of which it was the holder, and has not come back; empty if of none."""


class ClientBook:
    """The clients that are connected, written down at each change.

    Invariant: a client is here before it is told its token, until after its lease has gone on. So
    one that has left may still be here when the agent dies: the next one waits for it as for any
    other that does not come back, and not at all once its process is dead.
    """

    def __init__(self, path: Path) -> None:
        self.file = BootFile(path)
        self._clients: dict[int, ClientRecord] = {}
        self._is_loaded = False
        self.has_unknown = False
        """There may be others, because an earlier agent's book could not be read."""

    def load(self) -> list[ClientRecord]:
        """The clients that an earlier agent of this boot wrote down, and that still live.

        They stay written down until they are noted again or forgotten; that there may be others
        stays so until `knows_all`. The file is read once: what is odd of it is put aside.
        """
        if not self._is_loaded:
            self._is_loaded = True
            held, unknown = self.file.read(_parse_clients) or ([], False)
            living = [record for record in held if is_alive(record.process)]
            self._clients = {record.token: record for record in living}
            self.has_unknown = unknown or self.file.was_odd
            self._write()  # for the agent after this one; and it has its place on the disk by that
        return self.records

    def knows_all(self) -> None:
        """Nobody else is waited for any more."""
        if self.has_unknown:
            self.has_unknown = False
            self._write()

    @property
    def records(self) -> list[ClientRecord]:
        """The clients that are written down."""
        return [*self._clients.values()]

    def note(self, record: ClientRecord) -> None:
        """Add or change a client."""
        if self._clients.get(record.token) != record:
            self._clients[record.token] = record
            self._write()

    def forget(self, token: int) -> None:
        """The client is gone."""
        if self._clients.pop(token, None) is not None:
            self._write()

    def _write(self) -> None:
        self.file.note(
            [
                [
                    record.token,
                    record.task,
                    record.process.pid,
                    record.process.start_ticks,
                    record.kept,
                    *([record.inside] if record.inside else []),
                ]
                for record in self._clients.values()
            ]
            + [_UNKNOWN] * self.has_unknown
        )


def _parse_clients(value: Any) -> tuple[list[ClientRecord], bool]:
    """The clients, and whether there may be others."""
    rows = [row for row in value if row != _UNKNOWN]
    return [
        ClientRecord(int(token), str(task), Process(int(pid), int(ticks)), int(kept), *inside)
        for token, task, pid, ticks, kept, *inside in rows
    ], len(rows) < len(value)


@dataclass(frozen=True)
class Restarted:
    """A device, whose jobs wait."""

    name: str
    mark: LeaseMark
    leases: LeaseManager
    fence: Callable[[str], None]
    """Let no job of this domain have ring or workspace."""
    unfence: Callable[[str], None]
    """Let them have it again, unless it was fenced twice."""
    left_inside: Callable[[str, Process], None]
    """A process may still write to the workspace of this domain, until it is dead."""


@dataclass
class _Holder:
    """A client that was inside a job."""

    process: Process
    device: Restarted
    fenced: str | None = None
    """Its domain, if nobody else waits for it any more."""


class Recovery:
    """The wait for the clients from before the restart."""

    def __init__(
        self,
        *,
        book: ClientBook,
        devices: Sequence[Restarted],
        watch: ProcessWatch,
        interventions: Interventions,
        recovery_s: float,
        holder_grace_s: float,
        domain_of: Callable[[str], str | None],
        all_back: Callable[[], None] = lambda: None,
        away: Callable[[Collection[str]], None] = lambda _tasks: None,
    ) -> None:
        """`domain_of` a task: its trust domain, if it is registered.

        `all_back` is called once, when each client from before the restart is back or dead; until
        then, but not before the time is up, `away` with the tasks of those that are neither.
        """
        self._book = book
        self._watch = watch
        self._interventions = interventions
        self._grace_s = holder_grace_s
        self._loop = asyncio.get_running_loop()
        self._known = {record.token: record for record in book.load()}
        self._expected = set(self._known)
        self._domain_of = domain_of
        self._holders: dict[int, _Holder] = {}
        by_name = {device.name: device for device in devices}
        for record in self._known.values():
            if record.inside in by_name:
                self._holders[record.token] = _Holder(record.process, by_name[record.inside])
        for device in devices:
            held = device.mark.read()
            if held is not None and is_alive(held[1]):
                token, process = held
                self._holders[token] = _Holder(process, device)
                if device.mark.task:  # the book may not have it
                    missing = ClientRecord(token, device.mark.task, process, _ANY_NUMBER)
                    self._known.setdefault(token, missing)
            else:
                device.mark.clear()
            device.leases.block(_REASON)
        self._away = self._expected | self._holders.keys()
        """Those that may still come back, in time or not."""
        self._all_back = all_back
        self._tell_away = away
        self._is_late = False
        self._blocked = [device.leases for device in devices]
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        if self._expected or self._holders or book.has_unknown:
            self._begin(recovery_s, holder_grace_s)
        else:
            all_back()
        self._consider()

    @property
    def pending(self) -> bool:
        """Whether somebody is still waited for."""
        return not self._settled.done()

    async def settled(self) -> None:
        """Wait until new content may be stored."""
        if not self._settled.done():
            await asyncio.shield(self._settled)

    def record_of(self, token: int, task: str, process: Process) -> ClientRecord | None:
        """The record of this client, if it had this token in an earlier agent."""
        holder = self._holders.get(token)
        if token not in self._known and holder is not None and holder.process == process:
            # The book does not have it, the mark of the lease does: it goes on with its job, and is
            # back when it says something else than offers.
            self._known[token] = ClientRecord(token, task, process, _ANY_NUMBER)
        record = self._known.get(token)
        if record is None or (record.task, record.process) != (task, process):
            return None
        return record

    def may_resume(self, token: int) -> bool:
        """Whether this client was inside a job, and nobody used the ring since."""
        return token in self._holders

    def attached(self, token: int, kept: int) -> None:
        """The client has offered so many arenas and workspaces back."""
        record = self._known.get(token)
        if record is not None and kept >= record.kept:
            self._returned(token)

    def begins_again(self, task: str, process: Process) -> None:
        """A process says HELLO without a token: it never got one that it was to come back with."""
        for record in [*self._known.values()]:
            lost = (record.task, record.process, record.kept) == (task, process, 0)
            if lost and record.token not in self._holders:
                self._died(record.token)

    def has_offered_all(self, token: int) -> None:
        """The client is connected and offers nothing more, whatever was written down of it.

        What it was to have, and had not been told when the agent died, it does not have.
        """
        if token in self._expected or token in self._holders:
            self._returned(token)

    def awaits(self, token: int) -> bool:
        """Whether this client has not come back with all that it had, even if it is connected.

        One that leaves then, because an offer failed, may try again; until it is back or dead it
        counts as away.
        """
        return token in self._away

    def close(self) -> None:
        """Stop waiting."""
        for timer in self._timers:
            timer.cancel()

    def _begin(self, recovery_s: float, holder_grace_s: float) -> None:
        _log.info(
            "waiting for %d clients of before the restart%s%s",
            len(self._expected),
            f", {len(self._holders)} of them inside a job" if self._holders else "",
            "; there may be others, whom nobody knows" if self._book.has_unknown else "",
        )
        for record in self._known.values():
            self._await_death(record.process, record.token)
        self._timers.append(self._loop.call_later(recovery_s, self._time_is_up))
        for token, holder in self._holders.items():
            if token not in self._known:
                self._await_death(holder.process, token)
        if self._holders:
            self._timers.append(self._loop.call_later(holder_grace_s, self._kill_holders))

    def _await_death(self, process: Process, token: int) -> None:
        self._watch.on_death(process, lambda _process: self._died(token))

    def _died(self, token: int) -> None:
        self._book.forget(token)
        self._known.pop(token, None)
        self._returned(token)

    def _returned(self, token: int) -> None:
        self._expected.discard(token)
        if token in self._away:
            self._away.discard(token)
            self._consider_away()
        holder = self._holders.pop(token, None)
        if holder is not None:
            held = holder.device.mark.read()
            marked = held is not None and held[0] == token
            if marked and holder.device.leases.holder is None:  # back without a job in progress
                holder.device.mark.clear()
            if holder.fenced is not None:
                holder.device.unfence(holder.fenced)
        self._consider()

    def _time_is_up(self) -> None:
        if self._expected:
            _log.warning("%d clients of before did not come back in time", len(self._expected))
        self._expected.clear()
        self._is_late = True
        for token, holder in self._holders.items():
            self._fence(token, holder)
        if self._book.has_unknown:
            self._book.knows_all()
        self._consider_away()
        self._consider()

    def _consider_away(self) -> None:
        if not self._away and not self._book.has_unknown:
            self._all_back()
        elif self._is_late:
            known = (self._known.get(token) for token in self._away)
            self._tell_away({record.task for record in known if record is not None})

    def _fence(self, token: int, holder: _Holder) -> None:
        """Let others go on without this one, as far as they have nothing of what it uses."""
        record = self._known.get(token)
        domain = self._domain_of(record.task) if record is not None else None
        if record is None or domain is None:
            return
        self._known[token] = record = replace(record, inside=holder.device.name)
        self._book.note(record)
        holder.device.fence(domain)
        holder.fenced = domain

    def outlived(self, process: Process) -> None:
        """It was killed, and does not die: it computes no more."""
        for token, holder in [*self._holders.items()]:
            if holder.process == process:
                if holder.fenced is not None:
                    holder.device.left_inside(holder.fenced, process)
                self._died(token)

    def _kill_holders(self) -> None:
        sentence = (
            "the program was inside a job when the agent ended, did not come back to the next one "
            f"with all that it had within {self._grace_s:g} s, and was killed"
        )
        for token, holder in self._holders.items():
            known = self._known.get(token)
            self._interventions.kill(
                known.task if known else "", holder.process, KillReason.JOB_NOT_RESUMED, sentence
            )

    def _consider(self) -> None:
        if self._expected or self._book.has_unknown:
            return
        waited_for = [one for one in self._holders.values() if one.fenced is None]
        held = [holder.device.leases for holder in waited_for]
        free = [leases for leases in self._blocked if leases not in held]
        self._blocked = held
        for leases in free:
            leases.unblock(_REASON)
        if not held and not self._settled.done():
            self._settled.set_result(None)
        if not self._holders:
            self.close()
