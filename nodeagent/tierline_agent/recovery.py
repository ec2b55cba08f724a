"""After a restart: who was here before, and when leases may be granted again.

The agent writes down its clients: token, task, process, number of sealed arenas and workspaces.
When it starts again, those that still live are *expected*: each is back once it has offered so
many. No lease is granted and nothing new is stored or lent until all are back, or `recovery_s` has
passed: stored content has no references before its owners return, and must not be evicted
meanwhile.

One client of each device is special: the *holder*, who was inside a job. It goes on computing from
its ring while the agent is away, so no other job may stream through that ring until it is back or
dead; not even after `recovery_s`. A live holder that does not come back in `holder_grace_s` is
killed.

Invariant: leases are unblocked exactly once, when nobody is expected and all holders are settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierline_agent.identity import Process, ProcessWatch, is_alive
from tierline_agent.kills import KillReason, Kills
from tierline_agent.leases import LeaseManager
from tierline_agent.state import BootFile, LeaseMark

_log = logging.getLogger(__name__)
_REASON = "clients of before the restart"


@dataclass(frozen=True)
class ClientRecord:
    """A client as it is written down."""

    token: int
    task: str
    process: Process
    kept: int
    """Its sealed arenas, and its workspace."""


class ClientBook:
    """The clients that are connected, written down at each change."""

    def __init__(self, path: Path) -> None:
        self.file = BootFile(path)
        self._clients: dict[int, ClientRecord] = {}

    def load(self) -> list[ClientRecord]:
        """The clients that an earlier agent of this boot wrote down, and that still live.

        They stay written down until they are noted anew or forgotten.
        """
        held: list[ClientRecord] = self.file.read(_parse_clients) or []
        living = [record for record in held if is_alive(record.process)]
        self._clients = {record.token: record for record in living}
        return living

    @property
    def records(self) -> list[ClientRecord]:
        """Who is written down."""
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
                ]
                for record in self._clients.values()
            ]
        )


def _parse_clients(value: Any) -> list[ClientRecord]:
    return [
        ClientRecord(int(token), str(task), Process(int(pid), int(ticks)), int(kept))
        for token, task, pid, ticks, kept in value
    ]


@dataclass(frozen=True)
class _Holder:
    """Who was inside a job."""

    process: Process
    mark: LeaseMark
    leases: LeaseManager


class Recovery:
    """The wait for the clients of before."""

    def __init__(
        self,
        *,
        book: ClientBook,
        devices: Sequence[tuple[LeaseMark, LeaseManager]],
        watch: ProcessWatch,
        kills: Kills,
        recovery_s: float,
        holder_grace_s: float,
        all_back: Callable[[], None] = lambda: None,
    ) -> None:
        """`all_back` is called once, when each client of before is back or dead."""
        self._book = book
        self._devices = devices
        self._watch = watch
        self._kills = kills
        self._grace_s = holder_grace_s
        self._loop = asyncio.get_running_loop()
        self._known = {record.token: record for record in book.load()}
        self._expected = set(self._known)
        self._holders: dict[int, _Holder] = {}
        for mark, leases in devices:
            held = mark.read()
            if held is not None and is_alive(held[1]):
                self._holders[held[0]] = _Holder(held[1], mark, leases)
            else:
                mark.clear()
            leases.block(_REASON)
        self._away = self._expected | self._holders.keys()
        """Those that may still come back, in time or not."""
        self._all_back = all_back
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        if self._expected or self._holders:
            self._begin(recovery_s, holder_grace_s)
        else:
            all_back()
        self._consider()

    @property
    def pending(self) -> bool:
        """Whether leases still wait."""
        return not self._settled.done()

    async def settled(self) -> None:
        """Wait until new content may be stored."""
        if not self._settled.done():
            await asyncio.shield(self._settled)

    def record_of(self, token: int, task: str, process: Process) -> ClientRecord | None:
        """What was written down of this client, if it had this token in an earlier agent."""
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
            "waiting for %d clients of before the restart%s",
            len(self._expected),
            f", {len(self._holders)} of them inside a job" if self._holders else "",
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
            if not self._away:
                self._all_back()
        holder = self._holders.pop(token, None)
        if holder is not None and holder.leases.holder is None:  # back without a job in progress
            holder.mark.clear()
        self._consider()

    def _time_is_up(self) -> None:
        if self._expected:
            _log.warning("%d clients of before did not come back in time", len(self._expected))
        self._expected.clear()
        self._consider()

    def _kill_holders(self) -> None:
        sentence = (
            "the program was inside a job when the agent ended, did not come back to the next one "
            f"within {self._grace_s:g} s, and was killed"
        )
        for token, holder in self._holders.items():
            known = self._known.get(token)
            self._kills.kill(
                known.task if known else "", holder.process, KillReason.JOB_NOT_RESUMED, sentence
            )

    def _consider(self) -> None:
        if self._expected or self._holders or self._settled.done():
            return
        self._settled.set_result(None)
        self.close()
        for _, leases in self._devices:
            leases.unblock(_REASON)
