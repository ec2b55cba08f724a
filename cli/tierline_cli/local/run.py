"""One run on this machine, stage by stage: measure, start an agent, admit, execute, count.

Each stage needs the one before it. Whatever happens, `close` ends every process and removes every
file that the run made.
"""

import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.margins import MARGINS
from tierline_api.manifests.files import Manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_api.schema.quantities import format_quantity
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.local.admin_client import AdminClient
from tierline_cli.local.agent import LocalAgent, short_folder
from tierline_cli.local.execution import Execution
from tierline_cli.local.leftovers import Leftovers
from tierline_cli.local.measurements import Measurements, OnJob, OnWord, unheard
from tierline_cli.local.place import Place
from tierline_cli.local.programs import program_of
from tierline_cli.local.steadiness import Steadiness, steadiness
from tierline_cli.local.tiers import check_tiers, tiers_for
from tierline_cli.planning import decide
from tierline_cli.planning.inputs import check_tasks
from tierline_cli.reporting.remeasured import JobTimes, remeasured
from tierline_cli.reporting.report import TaskReport
from tierline_cli.reporting.results import (
    JobRecord,
    TaskPromise,
    TaskResult,
    releases_until,
    result_of,
)
from tierline_cli.reporting.training import Promise, TrainingResult, training_of
from tierline_cli.reporting.verdicts import Outputs, judge
from tierline_operator.planning import from_api
from tierline_operator.planning.answer import Admitted, Infeasible

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunOptions:
    """A person's choices for a run. Sizes in bytes, times in seconds."""

    fast_bytes: int
    tier_paths: Mapping[Tier, Path]
    extent_bytes: int | None
    """None for what is usual on the tasks' kind of device."""
    metrics_port: int | None
    profile_jobs: int
    margin: float | None
    """None for what is usual on the tasks' kind of device, and more where times are not steady."""
    gpu: int = 0
    """Which GPU, for tasks that want one."""


class LocalRun:
    """The state of one run; use it in a `with` statement."""

    def __init__(self, manifests: Manifests, options: RunOptions) -> None:
        """Check that the tasks can be run here at all.

        Raises:
            CommandError: no task, two of one name, or one without a program; fast memory of less
                than an extent; a tier without a place.
        """
        self.tasks: tuple[MemTask, ...] = manifests.tasks
        self.options = options
        _check(self.tasks)
        self.place = Place(decide.one_kind(self.tasks), options.gpu)
        self._extent_bytes = options.extent_bytes or self.place.extent_bytes
        if options.fast_bytes < self._extent_bytes:
            raise CommandError(
                f"--fast-memory {format_quantity(options.fast_bytes)} holds not one extent of "
                f"{format_quantity(self._extent_bytes)}; give more, or a smaller --extent-size",
                EXIT_BAD_INPUT,
            )
        check_tiers(self.tasks, options.tier_paths)
        _check_port(options.metrics_port)
        self._leftovers = Leftovers()
        self.work_dir = Path(tempfile.mkdtemp(prefix="tierline-run-"))
        self._leftovers.remove_afterwards(self.work_dir)
        self.measured = Measurements(manifests, self.place, self.work_dir)
        self._node: MemNode | None = None
        self._admitted: Admitted | None = None
        self._agent: LocalAgent | None = None
        self._admin: AdminClient | None = None
        self._execution: Execution | None = None
        self._span_s: float | None = None

    def __enter__(self) -> "LocalRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_dir(self) -> Path:
        """Where the agent's sockets are."""
        return _begun(self._agent).run_dir

    @property
    def steadiness(self) -> Steadiness:
        """How steady times were while the tasks were measured."""
        on_processors = self.place.kind == DeviceKind.CPU.value
        return steadiness(self.measured.here, self.measured.loads if on_processors else ())

    @property
    def margin(self) -> float:
        """The margin of the plans: as chosen, or by how steady times are."""
        usual = MARGINS[DeviceKind(self.place.kind)]
        return self.options.margin or self.steadiness.margin(usual)

    def start_agent(self) -> MemNode:
        """Start an agent whose tiers have room for the weights; returns what it measured."""
        tiers = tiers_for(
            self.tasks,
            self.measured.profiles,
            self._extent_bytes,
            self.work_dir,
            self.options.tier_paths,
        )
        work_dir = short_folder(max(len(task.name) for task in self.tasks))
        for path in (work_dir, *(tier.path for tier in tiers if tier.temporary)):
            self._leftovers.remove_afterwards(path)
        self._agent = LocalAgent(
            fast_bytes=self.options.fast_bytes,
            extent_bytes=self._extent_bytes,
            tiers=tiers,
            work_dir=work_dir,
            place=self.place,
            metrics_port=self.options.metrics_port,
            margin=self.margin,
        )
        self._admin = self._agent.start()
        self._node = MemNode.from_api(self._admin.call("node")["node"])
        return self._node

    def admit(self, node: MemNode) -> Admitted | Infeasible:
        """Ask for a proof that all tasks hold their deadlines; if there is one, register them."""
        admin = _begun(self._admin)
        answer = decide.decide(self.tasks, self.measured.profiles, node, self.margin)
        admin.call("verdict", admitted=isinstance(answer, Admitted))
        if isinstance(answer, Infeasible):
            return answer
        for task, plan in zip(self.tasks, answer.plans, strict=True):
            realtime = task.spec.realtime
            admin.call(
                "register",
                name=task.name,
                domain=task.domain,
                period_ns=round(realtime.period_s * 1e9),
                deadline_ns=round(realtime.deadline_s * 1e9),
                criticality=realtime.criticality.value,
                record_outputs=True,
                training=task.spec.training is not None,
                preemption=from_api.preemption_of(plan, answer.scheduling),
                plan=from_api.plan_of(plan, answer.scheduling).to_api(),
            )
        self._admitted = answer
        return answer

    def load(
        self, on_state: Callable[[Mapping[str, Any]], None], on_word: OnWord = unheard
    ) -> None:
        """Start the programs and wait until all are ready; `on_state` hears of progress."""
        admitted = _begun(self._admitted)
        plans = [from_api.plan_of(plan, admitted.scheduling) for plan in admitted.plans]
        self._execution = Execution(
            self.tasks, plans, _begun(self._agent), _begun(self._admin), self.work_dir
        )
        self._execution.start(on_state, on_word)

    def release(self, span_s: float | None) -> Execution:
        """Let the releases begin, for `span_s` seconds or until the run is ended."""
        execution = _begun(self._execution)
        self._span_s = span_s
        execution.release(span_s)
        return execution

    def interrupt(self) -> None:
        """Somebody ended the run: releases that no job has answered are no misses."""
        self._span_s = None

    def finish(self) -> Mapping[str, Any]:
        """End the programs and take the last jobs."""
        return _begun(self._execution).finish()

    def compare(self, on_job: OnJob, on_word: OnWord = unheard) -> None:
        """See that outputs can be compared: programs may run again without Tierline for that."""
        self.measured.complete_references(_begun(self._execution).log, on_job, on_word)

    def reports(self, snapshot: Mapping[str, Any]) -> list[TaskReport]:
        """Reports of each task once the programs have ended and were compared."""
        execution, outputs = _begun(self._execution), self.outputs()
        times = dict(zip(self._names(), self.job_times(snapshot), strict=True))
        rows = ((task, result, times[task.name]) for task, result in self._periodic(final=True))
        return [
            TaskReport(
                task,
                result,
                outputs[task.name],
                seen,
                "" if result.jobs else execution.last_words(task.name),
                *execution.failures(task.name),
            )
            for task, result, seen in rows
        ]

    def results(self, *, final: bool) -> list[TaskResult]:
        """The numbers so far; with `final`, unanswered releases are counted, too."""
        return [result for _, result in self._periodic(final=final)]

    def trainings(self, snapshot: Mapping[str, Any]) -> list[TrainingResult]:
        """The numbers so far of tasks that train."""
        execution, admitted = _begun(self._execution), _begun(self._admitted)
        counted = {task["name"]: task for task in snapshot["tasks"]}
        return [
            training_of(
                Promise(plan, self.measured.compute_only_s[task.name]),
                *(execution.log.all, counted[task.name], execution.span(snapshot["now_ns"])),
            )
            for task, plan in zip(self.tasks, admitted.plans, strict=True)
            if task.spec.training is not None
        ]

    def last_words(self, task: str) -> str:
        """The last words of its program, or of Tierline in it."""
        return _begun(self._execution).last_words(task)

    def _names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def _periodic(self, *, final: bool) -> list[tuple[MemTask, TaskResult]]:
        """Those with deadlines or without, but for those that train."""
        execution, admitted = _begun(self._execution), _begun(self._admitted)
        results = []
        for task, plan in zip(self.tasks, admitted.plans, strict=True):
            if task.spec.training is not None:
                continue
            jobs, period_s = execution.log.of(task.name), task.spec.realtime.period_s
            promise = TaskPromise(
                name=task.name,
                period_s=period_s,
                predicted_worst_s=plan.response_s,
                compute_only_s=self.measured.compute_only_s[task.name],
                planned_bytes_per_job=plan.streamed_bytes,
                preemptible=plan.preemptible,
                criticality=task.spec.realtime.criticality,
            )
            span_s = self._span_s if final else None
            releases = None if span_s is None else releases_until(span_s, period_s)
            results.append((task, result_of(promise, jobs, releases)))
        return results

    def outputs(self) -> dict[str, Outputs]:
        """Whether each task's outputs are those without Tierline, once it is finished."""
        execution = _begun(self._execution)

        def comparable(task: MemTask) -> Sequence[JobRecord]:
            jobs = execution.log.of(task.name)
            if task.spec.training is None:
                return jobs
            return [job for job in jobs if job.output_digest]  # of large weights after some steps

        return {
            task.name: judge(
                *(comparable(task), self.measured.references[task.name]),
                cut_short=task.name in execution.cut_short,
            )
            for task in self.tasks
        }

    def job_times(self, snapshot: Mapping[str, Any]) -> list[JobTimes]:
        """How long the jobs of each task had the device, as the agent's snapshot has it."""
        counted = {task["name"]: task for task in snapshot["tasks"]}
        plans = _begun(self._admitted).plans
        return [JobTimes.of(plan, counted[plan.name]) for plan in plans]

    def profiles(self, times: Sequence[JobTimes]) -> list[MemProfile]:
        """The profiles that the tasks were planned by; where jobs over-ran, with their worst."""
        node, profiles = _begun(self._node), self.measured.profiles
        return [
            remeasured(task, profiles[task.name], node, plan, seen)
            for task, plan, seen in zip(
                self.tasks, _begun(self._admitted).plans, times, strict=True
            )
        ]

    def admitted_again(self, times: Sequence[JobTimes]) -> Admitted | Infeasible:
        """Ask for the proof once more, by what jobs took where that was more than planned."""
        by_task = dict(zip((task.name for task in self.tasks), self.profiles(times), strict=True))
        return decide.decide(self.tasks, by_task, _begun(self._node), self.margin)

    def close(self) -> None:
        """End every process and remove what the run made."""
        if self._execution is not None:
            self._execution.close()
        if self._admin is not None:
            self._admin.close()
        if self._agent is not None:
            self._agent.stop()
        self._leftovers.close()


def _begun(stage: _T | None) -> _T:
    if stage is None:
        raise RuntimeError("a stage of the run was left out")
    return stage


def _check_port(port: int | None) -> None:
    """That the agent will be able to serve metrics there; it would find out after the profiles."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise CommandError(
                f"--metrics-port {port} cannot be used: {os.strerror(error.errno or 0).lower()}; "
                "name another one, or 0 for any that is free",
                EXIT_BAD_INPUT,
            ) from error


def _check(tasks: tuple[MemTask, ...]) -> None:
    if not tasks:
        raise CommandError("the files hold no MemTask; there is nothing to run", EXIT_BAD_INPUT)
    check_tasks(tasks)
    for task in tasks:
        program_of(task)
