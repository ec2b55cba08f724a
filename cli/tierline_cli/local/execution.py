"""The running part of a local run: programs started, released, watched; jobs collected.

Invariant: `close` ends every program that was started.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Plan
from tierline_cli.errors import CommandError
from tierline_cli.local.admin_client import AdminClient
from tierline_cli.local.agent import LocalAgent
from tierline_cli.local.profiling import learned_environment
from tierline_cli.local.programs import Program, describe_end, program_of
from tierline_cli.local.waiting import MOST_ENDS, Ends, Patience
from tierline_cli.reporting.results import JobLog, JobRecord

_PATIENCE = Patience()
_POLL_S = 0.1
_LEAD_S = 0.2  # between the order to start and the first release
_END_TIMEOUT_S = 30.0
_LAST_WORDS_S = 5.0


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
        self._again: set[str] = set()
        """Tasks whose programs were started once more."""
        self._cursor = 0
        self._epoch_ns: int | None = None
        self._ended_ns: int | None = None
        """When programs were ended, or releases were over."""
        self._end_ns: int | None = None
        self._trained = {task.name: False for task in tasks if task.spec.training is not None}
        """Whether a task that trains has made a step."""
        self._released: set[str] = set()
        """Tasks whose programs wait for their releases, and so hear of the end."""
        self.log = JobLog()
        self.cut_short: frozenset[str] = frozenset()
        """Tasks whose programs had not ended by themselves when the run did."""

    def start(
        self, on_state: Callable[[Mapping[str, Any]], None], on_word: Callable[[str], None]
    ) -> None:
        """Start every program and wait until each has loaded and checked its model.

        `on_word` hears of programs that are not heard of.

        Raises:
            CommandError: a program ended, once or each time it was started; or one was not ready
                in time.
        """
        for task, plan in zip(self._tasks, self._plans, strict=True):
            self._programs.append(self._begin(task, plan))
        began_s, told = time.monotonic(), False
        ends = Ends()
        while True:
            snapshot = self.snapshot()
            on_state(snapshot)
            # a program with a loop of its own never asks to be released: it just runs jobs
            waiting = [task for task in snapshot["tasks"] if not (task["ready"] or task["jobs"])]
            if not waiting:
                return
            self._check_programs(ended_is_failed=True)
            waited_s = time.monotonic() - began_s
            for task in waiting:
                if ends.look(task["name"], task["clients"]) >= MOST_ENDS:
                    raise CommandError(
                        f"MemTask/{task['name']}: its program ended {MOST_ENDS} times before it "
                        f"was ready, and was started again; {self._words(task['name'])}"
                    )
            if waited_s > _PATIENCE.word_s and not told:
                told = True
                for task in waiting:
                    if not task["clients"]:
                        on_word(_PATIENCE.word(task["name"]))
            if waited_s > _PATIENCE.first_s:
                late = ", ".join(f"MemTask/{task['name']}" for task in waiting)
                raise CommandError(
                    f"{late}: not ready in {waited_s:.0f} s; {self._words(waiting[0]['name'])}"
                )
            time.sleep(_POLL_S)

    def _begin(self, task: MemTask, plan: Plan) -> Program:
        return Program(
            program_of(task),
            self._work_dir / "logs" / f"{task.name}.log",
            {
                "TIERLINE_SOCKET": str(self._agent.task_socket(task.name)),
                "TIERLINE_REQUIRED": "1",
                **learned_environment(self._work_dir, task.name),
                **self._agent.place.environment(task),
                **self._agent.place.memory_environment(task, plan),
            },
        )

    def _words(self, task: str) -> str:
        return f"the last words of its program: {self.last_words(task)}"

    def release(self, span_s: float | None) -> None:
        """Let the releases begin, for `span_s` seconds or until the run is ended."""
        epoch_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        self._epoch_ns = epoch_ns
        self._end_ns = None if span_s is None else epoch_ns + round(span_s * 1e9)
        self._admin.call("start", epoch_ns=epoch_ns, until_ns=self._end_ns or 0)

    def span(self, now_ns: int) -> tuple[int, int] | None:
        """The time of the releases so far, CLOCK_MONOTONIC nanoseconds; None before that."""
        if self._epoch_ns is None or now_ns <= self._epoch_ns:
            return None
        return self._epoch_ns, min(now_ns, self._ended_ns or now_ns)

    def watch(self, interval_s: float) -> Iterator[Mapping[str, Any]]:
        """Yield a snapshot every `interval_s` seconds until the releases are over.

        Raises:
            CommandError: a program failed, or the agent is gone.
        """
        while True:
            running = any(program.poll() is None for program in self._programs)
            yield self.snapshot()
            again = self._check_programs(ended_is_failed=False)
            if not (running or again) or self._overdue():
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
        self._released.update(task["name"] for task in snapshot["tasks"] if task["ready"])
        for task in snapshot["tasks"]:
            if task["name"] in self._trained and task["jobs"]:
                self._trained[task["name"]] = True
        return snapshot

    def finish(self) -> Mapping[str, Any]:
        """End every program; returns the agent's state once it has heard all that they said.

        Their last jobs are in the log then: the agent learns of them, and of their outputs, when it
        reads the connections to their ends, a moment after the programs are gone.
        """
        self._ended_ns = min(time.monotonic_ns(), self._end_ns or 1 << 62)
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
        """The last words of a task's program, or of Tierline in it, and the file of all."""
        program = next(one for one in self._programs if one.spec.task == task)
        return f"{program.last_words()}; {program.keep_log()}"

    def failures(self, task: str) -> tuple[int, str]:
        """How many jobs of a task failed in Tierline's code at least, and why."""
        return next(one.failures() for one in self._programs if one.spec.task == task)

    def close(self) -> None:
        """End every program."""
        for program in self._programs:
            with suppress(OSError):
                program.stop()

    def _check_programs(self, *, ended_is_failed: bool) -> bool:
        """Start programs again that may be right then; whether there was one.

        One that read weights where nobody could see it streams nothing from its next start on: the
        agent remembers it.
        """
        began = False
        for at, program in enumerate(self._programs):
            status, name = program.poll(), program.spec.task
            complete = self._trained.get(name, False)
            if status is None or (status == 0 and (complete or not ended_is_failed)):
                continue
            if name in self._again or not self._reads_unseen(name):
                raise CommandError(describe_end(program))
            self._again.add(name)
            self._programs[at] = self._begin(self._tasks[at], self._plans[at])
            began = True
        return began

    def _reads_unseen(self, task: str) -> bool:
        """Whether the program of a task that has ended said so.

        The agent hears its last words a moment after its end.
        """
        deadline = time.monotonic() + _LAST_WORDS_S
        while True:
            told = next(one for one in self.snapshot()["tasks"] if one["name"] == task)
            if told["reads_unseen"] or not told["clients"] or time.monotonic() > deadline:
                return bool(told["reads_unseen"])
            time.sleep(_POLL_S)

    def _overdue(self) -> bool:
        """Whether the end is past: at once where all that run have loops of their own."""
        if self._end_ns is None:
            return False
        ending = any(
            program.spec.task in self._released and program.poll() is None
            for program in self._programs
        )
        patience_s = _END_TIMEOUT_S if ending else 0.0
        return time.monotonic_ns() > self._end_ns + round(patience_s * 1e9)
