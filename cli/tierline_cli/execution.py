"""The running part of a local run: programs started, released, watched; jobs collected.

Invariant: `close` ends every program that was started.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tierline_api.memtask import MemTask
from tierline_api.plan import Plan
from tierline_cli.admin_client import AdminClient
from tierline_cli.errors import CommandError
from tierline_cli.local_agent import LocalAgent
from tierline_cli.profiling import learned_environment
from tierline_cli.programs import Program, describe_end, program_of
from tierline_cli.results import JobLog, JobRecord

_READY_TIMEOUT_S = 600.0
_POLL_S = 0.1
_LEAD_S = 0.2  # between the order to start and the first release
_END_TIMEOUT_S = 30.0


class Execution:
    """The programs of admitted tasks under one agent."""

    def __init__(
        self,
        tasks: Sequence[MemTask],
        plans: Sequence[Plan],
        agent: LocalAgent,
        admin: AdminClient,
        work_dir: Path,
    ) -> None:
        """`plans` are those of the tasks, in their order."""
        self._tasks = tasks
        self._plans = plans
        self._agent = agent
        self._admin = admin
        self._work_dir = work_dir
        self._programs: list[Program] = []
        self._cursor = 0
        self._end_ns: int | None = None
        self.log = JobLog()
        self.cut_short: frozenset[str] = frozenset()
        """Tasks whose programs had not ended by themselves when the run did."""

    def start(self, on_state: Callable[[Mapping[str, Any]], None]) -> None:
        """Start every program and wait until each has loaded and checked its model.

        Raises:
            CommandError: a program ended, or one was not ready in time.
        """
        for task, plan in zip(self._tasks, self._plans, strict=True):
            socket = str(self._agent.task_socket(task.name))
            self._programs.append(
                Program(
                    program_of(task),
                    self._work_dir / "logs" / f"{task.name}.log",
                    {
                        "TIERLINE_SOCKET": socket,
                        "TIERLINE_REQUIRED": "1",
                        **learned_environment(self._work_dir, task.name),
                        **self._agent.place.environment(task),
                        **self._agent.place.memory_environment(task, plan),
                    },
                )
            )
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            snapshot = self.snapshot()
            on_state(snapshot)
            # a program with a loop of its own never asks to be released: it just runs jobs
            waiting = [t["name"] for t in snapshot["tasks"] if not (t["ready"] or t["jobs"])]
            if not waiting:
                return
            self._check_programs(ended_is_failed=True)
            if time.monotonic() > deadline:
                raise CommandError(f"{', '.join(waiting)}: not ready in {_READY_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def release(self, span_s: float | None) -> None:
        """Let the releases begin, for `span_s` seconds or until the run is ended."""
        epoch_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        self._end_ns = None if span_s is None else epoch_ns + round(span_s * 1e9)
        self._admin.call("start", epoch_ns=epoch_ns, until_ns=self._end_ns or 0)

    def watch(self, interval_s: float) -> Iterator[Mapping[str, Any]]:
        """Yield a snapshot every `interval_s` seconds until the releases are over.

        Raises:
            CommandError: a program failed, or the agent is gone.
        """
        while True:
            running = any(program.poll() is None for program in self._programs)
            yield self.snapshot()
            self._check_programs(ended_is_failed=False)
            if not running or self._overdue():
                return
            time.sleep(interval_s)

    def snapshot(self) -> Mapping[str, Any]:
        """The agent's state now; finished jobs are taken into the log."""
        more = True
        while more:
            answer = self._admin.call("jobs", since=self._cursor)
            self._cursor, more = answer["cursor"], answer["more"]
            self.log.add(JobRecord.from_admin(record) for record in answer["jobs"])
        snapshot: Mapping[str, Any] = self._admin.call("snapshot")["snapshot"]
        return snapshot

    def finish(self) -> Mapping[str, Any]:
        """End every program; returns the agent's state once it has heard all that they said.

        Their last jobs are in the log then: the agent learns of them, and of their outputs, when it
        reads the connections to their ends, a moment after the programs are gone.
        """
        self.cut_short = frozenset(
            program.spec.task for program in self._programs if program.poll() is None
        )
        self.close()
        deadline = time.monotonic() + _END_TIMEOUT_S
        while any(task["clients"] for task in self.snapshot()["tasks"]):
            if time.monotonic() > deadline:  # something they started lives on
                break
            time.sleep(_POLL_S)
        return self.snapshot()

    def last_words(self, task: str) -> str:
        """What the program of a task, or Tierline in it, said last."""
        return next(one.last_words() for one in self._programs if one.spec.task == task)

    def close(self) -> None:
        """End every program."""
        for program in self._programs:
            with suppress(OSError):
                program.stop()

    def _check_programs(self, *, ended_is_failed: bool) -> None:
        for program in self._programs:
            status = program.poll()
            if status is not None and (status != 0 or ended_is_failed):
                raise CommandError(describe_end(program))

    def _overdue(self) -> bool:
        if self._end_ns is None:
            return False
        return time.monotonic_ns() > self._end_ns + round(_END_TIMEOUT_S * 1e9)
