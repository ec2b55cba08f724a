"""The mends, each with what it looked like before, and the suite that finds it taken out.

A patch names text of the source as it is. Where that changes, the patch no longer applies, and
somebody looks whether the mend still is one.
"""

from __future__ import annotations

from dataclasses import dataclass

_AGENT = "tests/integration/agent"
MACHINE = f"{_AGENT}/hostile/test_session_machine.py"
_UNIT = "tests/unit/agent"
CLOSING = f"{_UNIT}/transport/test_closing.py::test_a_task_waits_for_its_own_descriptors_only"
CONNECTION = f"{_UNIT}/transport/test_connection.py"
LENDING = f"{_UNIT}/devices/test_memfd.py"
POOL = f"{_UNIT}/memory/test_extent_pool.py"
RECOVERY = f"{_UNIT}/scheduling/test_recovery.py"
REWOUND = f"{_UNIT}/scheduling/test_rewound_streams.py"
WORKERS = f"{_UNIT}/test_workers.py"


@dataclass(frozen=True)
class Patch:
    """Text of one file, as it is and as it was; an empty new text takes it out."""

    file: str
    text: str
    before: str = ""


@dataclass(frozen=True)
class Mend:
    """What holds, what was wrong before, and which test notices."""

    name: str
    point: int
    """Of the list of faults; those of the second list have 20 more."""
    fault: str
    found_by: str
    patches: tuple[Patch, ...]


MENDS = [
    Mend(
        "closed-elsewhere",
        1,
        "descriptors that clients send are closed in the event loop",
        CLOSING,
        (
            Patch(
                "transport/closing.py",
                "        with self._changed:\n            queue = self._queues.get(task)\n"
                "            if queue is None:\n                queue = self._queues[task]",
                "        for one in descriptors:\n            os.close(one)\n        return\n"
                "        with self._changed:\n            queue = self._queues.get(task)\n"
                "            if queue is None:\n                queue = self._queues[task]",
            ),
        ),
    ),
    Mend(
        "connections-closed-elsewhere",
        1,
        "connections, with what lies unread in them, are closed in the event loop",
        CONNECTION,
        (
            Patch(
                "transport/connection.py",
                "        self._close_elsewhere([self._socket.detach(), *self._received])\n",
                "        self._socket.close()\n        self._close_elsewhere([*self._received])\n",
            ),
        ),
    ),
    Mend(
        "descriptors-announced",
        1,
        "descriptors are taken with any message",
        MACHINE,
        (
            Patch(
                "transport/connection.py",
                "        if self._received and not self._decoder.buffered_bytes:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mend(
        "no-lease-on-what-is-lent",
        1,
        "a client has a lease on memory that the agent opens again",
        LENDING,
        (
            Patch(
                "devices/memfd.py",
                "own = reopen(descriptor, os.O_RDWR)\n        finally",
                "own = os.dup(descriptor)\n        finally",
            ),
            Patch("devices/memfd.py", "mode | os.O_CLOEXEC | os.O_NONBLOCK", "mode | os.O_CLOEXEC"),
        ),
    ),
    Mend(
        "opened-without-waiting",
        1,
        "memory that a client offers is opened although it has a lease",
        LENDING,
        (Patch("devices/memfd.py", "mode | os.O_CLOEXEC | os.O_NONBLOCK", "mode | os.O_CLOEXEC"),),
    ),
    Mend(
        "rewound-when-read",
        2,
        "a REWIND is tested in one turn of the loop and begun in another",
        MACHINE,
        (
            Patch(
                "scheduling/executor.py",
                """        if execution.rewinding:
            raise ValueError("a job is rewound once at a time")
        stream = execution.stream
        execution.rewinding = True
        if execution is self._opening:  # or it would begin before it is rewound, and be forgotten
            self._opening = None
        if execution.job.words is not None and stream is not None:
            self._cancel(stream)
        return self._rewound(execution, stream, job, start)
""",
                "        return self._rewound(execution, None, job, start)\n",
            ),
            Patch(
                "scheduling/executor.py",
                "        words = job.words\n        try:\n            if words is None:\n"
                "                return not execution.ended\n",
                """        words, stream = job.words, execution.stream
        execution.rewinding = True
        try:
            if words is None:
                return not execution.ended
            if stream is not None:
                self._cancel(stream)
""",
            ),
        ),
    ),
    Mend(
        "rewound-before-it-begins",
        2,
        "a stream that waits to begin does so between its rewind and the answer, and is forgotten",
        REWOUND,
        (
            Patch(
                "scheduling/executor.py",
                "        if execution is self._opening:  # or it would begin before it is rewound, "
                "and be forgotten\n            self._opening = None\n",
            ),
        ),
    ),
    Mend(
        "sealed-for-reading",
        7,
        "root of a pod opens what it was lent for reading again, and writes to it",
        LENDING,
        (
            Patch(
                "devices/memfd.py",
                "_READING_SEALS if sealed else fcntl.F_SEAL_SEAL\n",
                "fcntl.F_SEAL_SEAL\n",
            ),
        ),
    ),
    Mend(
        "lent-as-before",
        7,
        "memory that clients could write is lent to others as resident extents",
        POOL,
        (
            Patch(
                "memory/extents.py",
                "            domain = pooled.domain if usable else _NOBODYS\n",
                "            domain = pooled.domain\n",
            ),
        ),
    ),
    Mend(
        "job-limit",
        3,
        "a job that never ends keeps the device for ever",
        MACHINE,
        (
            Patch(
                "policy/stuck.py",
                "    return max(least_ns * (_TIMES_WARMUP if unknown else 1), "
                "_TIMES_PLANNED * planned_ns)\n",
                "    return 1 << 62\n",
            ),
        ),
    ),
    Mend(
        "adoptable-stays-written",
        4,
        "what a client has not brought back yet is forgotten when another one is lent memory",
        POOL,
        (
            Patch(
                "memory/extents.py",
                "        return {**self._lent.owners, **own}\n",
                "        return own\n",
            ),
        ),
    ),
    Mend(
        "a-failed-write-is-tried-again",
        5,
        "a file that cannot be written fails whatever led to it",
        MACHINE,
        (
            Patch(
                "processes/state.py",
                "        failed_before = self.failed\n        self._waiting = [value]\n",
                "        self.write(value)\n        return\n        failed_before = self.failed\n"
                "        self._waiting = [value]\n",
            ),
        ),
    ),
    Mend(
        "the-way-out-cannot-fail",
        5,
        "what fails on the way out of a session keeps all that comes after it",
        MACHINE,
        (
            Patch(
                "sessions/session.py",
                """            with ExitStack() as leaving:  # from the last one to the first
                leaving.callback(self._cached_lease_jobs.withdraw)
                leaving.callback(self.jobs.close)
                for arena in client.arenas.values():
                    leaving.callback(client.unit.executor.forget, arena.words)
                leaving.callback(self._reattach.close)
                leaving.callback(self.jobs.settle)
        except Exception:
            _log.exception("%s has left, and something failed at it", client)
""",
                """            self.jobs.settle()
            self._reattach.close()
            for arena in client.arenas.values():
                client.unit.executor.forget(arena.words)
            self.jobs.close()
            self._cached_lease_jobs.withdraw()
        except Exception:
            _log.exception("%s has left, and something failed at it", client)
            return
""",
            ),
        ),
    ),
    Mend(
        "taken-before-the-request",
        5,
        "a WORKSPACE has the task's memory after its client has left",
        MACHINE,
        (
            Patch(
                "sessions/client.py",
                "        if self.connection.closed:\n"
                '            raise QuotaExceeded(f"process {self.process.pid} has left")\n',
            ),
            Patch("sessions/client.py", " and not owner.connection.closed:", ":"),
            Patch(
                "sessions/workspace.py",
                "        failure = self._own(message.workspace_bytes)\n        if failure is None:",
                "        failure = None\n        if failure is None:",
            ),
            Patch(
                "sessions/workspace.py",
                "        preserve = bool(message.flags & WorkspaceFlags.PRESERVE)\n"
                "        workspaces = client.unit.workspaces\n",
                "        if failure := self._own(message.workspace_bytes):\n"
                "            raise failure\n"
                "        preserve = bool(message.flags & WorkspaceFlags.PRESERVE)\n"
                "        workspaces = client.unit.workspaces\n",
            ),
            Patch(
                "sessions/session.py", "                leaving.callback(client.disown_arenas)\n"
            ),
            Patch(
                "sessions/session.py",
                "                leaving.callback(self._cached_lease_jobs.withdraw)\n",
                "                leaving.callback(client.disown_arenas)\n"
                "                leaving.callback(self._cached_lease_jobs.withdraw)\n",
            ),
        ),
    ),
    Mend(
        "left-in-a-turn-of-its-own",
        5,
        "a revocation finds out that the connection is gone, and has the program killed",
        MACHINE,
        (
            Patch(
                "transport/connection.py", "        self._loop.call_soon(self._handler.on_closed)\n"
            ),
            Patch(
                "transport/connection.py",
                "        self._close_elsewhere([self._socket.detach(), *self._received])\n"
                "        self._received.clear()\n",
                "        self._close_elsewhere([self._socket.detach(), *self._received])\n"
                "        self._received.clear()\n"
                "        self._handler.on_closed()\n",
            ),
        ),
    ),
    Mend(
        "left-memory-counts",
        5,
        "processes that leave memory mapped have their task lent as much again",
        MACHINE,
        (
            Patch(
                "memory/extents.py",
                "        if gone and self._residents[share.task] + gone + count > share.most:\n",
                "        if False:\n",
            ),
            Patch(
                "memory/extents.py",
                "            if one.importers == {importer} and one.extent.fits(sealed=True)\n",
                "            if False\n",
            ),
        ),
    ),
    Mend(
        "outlived",
        21,
        "a program that is killed and does not die keeps its sessions, and with them the device",
        MACHINE,
        (
            Patch(
                "sessions/server.py",
                "        for session in [*self.sessions()]:\n"
                "            if session.client.process == process:\n"
                "                session.outlived()\n",
            ),
        ),
    ),
    Mend(
        "unread-answers",
        22,
        "answers that a client does not read hold as many descriptors as it likes",
        MACHINE,
        (
            Patch(
                "transport/connection.py",
                "        held = self._unsent > 0\n",
                "        held = False\n",
            ),
        ),
    ),
    Mend(
        "every-kind-of-socket",
        25,
        "a descriptor of a kind that Python's setsockopt does not know ends what closes it",
        WORKERS,
        (
            Patch(
                "transport/closing.py",
                "    _LIBRARY.setsockopt(\n"
                "        descriptor, socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING, "
                "len(_NO_LINGERING)\n    )\n",
                "    with suppress(OSError):\n"
                "        socket.socket(fileno=os.dup(descriptor)).setsockopt(\n"
                "            socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING\n        )\n",
            ),
        ),
    ),
    Mend(
        "workers-go-on",
        25,
        "what one thing raises ends the worker of all",
        WORKERS,
        (
            Patch(
                "concurrency.py",
                "            note_fault(worker)\n            time.sleep(_PAUSE_S)\n",
                "            return\n",
            ),
        ),
    ),
    Mend(
        "fenced",
        28,
        "after a restart all wait for a program that was inside a job and does not come back",
        RECOVERY,
        (
            Patch(
                "scheduling/recovery.py",
                "        for token, holder in self._holders.items():\n"
                "            self._fence(token, holder)\n",
            ),
        ),
    ),
]
