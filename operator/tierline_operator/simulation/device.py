"""A device over time: two engines, extents, rings, preemption at gates, drops and restarts.

It does what the analysis assumes and what the agent will do, event by event: jobs get the device by
the agent's own lease policy (given as `Policy`); a job may yield where a layer ends, while it waits
for data and when its dispatch ends. On a GPU (`yields_while_waiting` is False) it stands at a
layer's gate once what the layer reads is in place, and not again after it went on from there. A job
that streams takes the ring of its domain, and begins its copies when those of other streams have
ended on every link; with `ring-keeping` a fully resident job leaves the ring alone and the copies
for the interrupted job go on. A copy that is under way when its job loses the ring ends all the
same, and arrives nowhere. A job with a budget loses its rank when it has had the device for so
long. A release of several parts gives the device back after each; until it asks again, only a job
that is due earlier gets the device. First jobs of programs have no rank: none begins while anybody
else waits. A workspace that is preserved is saved before another job of its domain begins, and
restored before its own task's next one.

An adversary sets the rest: releases (releases.py), durations (`Noise`), and, on each idle link, as
many extents of something else as it serves at a time when a streaming job starts, or starts again,
with an empty ring. A job that starts waits for all of them, whatever links it streams over: they
are what it displaces, or copies ahead of another task's next job.

Pure: no clock and no randomness of its own. Not simulated: prefetch of the next job, spills.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.simulation.job import Job, TaskModel

TOLERANCE_S = 2e-9
"""Float noise; costs were rounded up to whole nanoseconds, so it hides no miss."""


@dataclass(frozen=True)
class Waiting:
    """A job as the lease policy sees it."""

    key: int
    deadline_ns: int
    arrival: int
    guaranteed: bool
    starts: bool = False
    """Whether it is a first job of a program, which has no rank."""


class Policy(Protocol):
    """Which job gets the device, and when its holder gives it away: the agent's code, adapted."""

    def first(self, waiting: Iterable[Waiting]) -> int:
        """The key of the job that gets the free device."""

    def yields(self, holder: Waiting, waiting: Iterable[Waiting]) -> bool:
        """Whether a preemptible holder that stands at a gate gives the device away."""


def always() -> bool:
    """Worst case: it happens each time."""
    return True


def in_full() -> float:
    """Worst case: durations as planned."""
    return 1.0


@dataclass(frozen=True)
class Noise:
    """Differences from the plan, each drawn when it happens."""

    layer: Callable[[], float] = in_full
    """Share of a layer's planned time that it takes."""
    copy: Callable[[], float] = in_full
    """Share of a copy's planned time."""
    busy: Callable[[], bool] = always
    """Whether an idle link turns out busy with an extent of something else at a dispatch."""


@dataclass(frozen=True)
class Machine:
    """The device itself, times in seconds."""

    links: Sequence[LinkRate]
    extent_bytes: int
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE
    dispatch_s: float = 0.0
    blocked_extents: int = 1
    yields_while_waiting: bool = True
    """Whether a job that waits for data gives the device away there and then. A GPU's stream gets
    them first, and does not stand again at a gate from which it went on, whatever was lost."""
    in_turn: bool = False
    """Whether one engine copies from all links, in the order of the stream."""


class Releases(Protocol):
    """When jobs arrive."""

    def next_s(self) -> float:
        """The next arrival, or infinity."""

    def take(self, now_s: float) -> Iterable[int]:
        """The tasks of which a job arrives by `now_s`, in order; each has its next one set."""

    def provoked(self, now_s: float, by: int) -> None:
        """A job of task `by` has begun its last or its longest layer: the worst moment for more."""


Activity = Literal["compute", "copy", "foreign", "save", "restore"]


@dataclass(frozen=True)
class Span:
    """An engine did something from `start_s` to `end_s`; `link` is -1 for the device."""

    what: Activity
    link: int
    task: int
    job: int
    start_s: float
    end_s: float


@dataclass
class Seen:
    """The events of a simulation, and its figures."""

    responses_s: list[list[float]]
    """By task."""
    misses: list[int]
    contained: list[int]
    """Jobs that lost their rank, by task."""
    busy_s: list[float]
    """Time in which layers ran, by task."""
    jobs: int = 0
    latest_s: float = -math.inf
    """Largest lateness (negative: the least slack)."""
    preemptions: int = 0
    rings_lost: int = 0
    end_s: float = 0.0
    spans: list[Span] = field(default_factory=list)


class DeadlockError(RuntimeError):
    """Nothing can happen any more and a job is not done."""


def simulate(
    tasks: Sequence[TaskModel],
    machine: Machine,
    releases: Releases,
    policy: Policy,
    noise: Noise | None = None,
    *,
    record: bool = False,
) -> Seen:
    """Run every job that is released to its end. Raises DeadlockError."""
    run = _Run(tasks, machine, releases, policy, noise or Noise(), record=record)
    while run.step():
        pass
    return run.seen


class _Run:
    def __init__(
        self,
        tasks: Sequence[TaskModel],
        machine: Machine,
        releases: Releases,
        policy: Policy,
        noise: Noise,
        *,
        record: bool,
    ) -> None:
        self.tasks, self.machine, self.releases = tasks, machine, releases
        self.policy, self.noise, self.record = policy, noise, record
        self.seen = Seen(
            [[] for _ in tasks], [0] * len(tasks), [0] * len(tasks), [0.0] * len(tasks)
        )
        self.now = 0.0
        self.holder: Job | None = None
        self.limit_s = math.inf
        """When the holder has had its budget."""
        self.phase: Literal["dispatch", "gate", "layer"] = "gate"
        self.waiting: dict[int, Job] = {}
        self.between: dict[int, Job] = {}
        """Releases between two of their jobs."""
        self.rings: dict[str, Job] = {}
        """The job whose extents lie in each domain's ring."""
        self.workspaces: dict[str, int] = {}
        """The task whose content lies in each domain's workspace."""
        self.saved: set[int] = set()
        """Tasks whose content lies in their backups."""
        self.copying = [False] * len(machine.links)
        self.streaming_s = [0.0] * len(machine.links)
        """When the last copy of a stream on each link ends."""
        self.used = sorted({link for task in tasks for link in task.link_of_extent})
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.longest = [[max(part.compute_s) for part in task.parts] for task in tasks]

    def step(self) -> bool:
        """Go to the next moment at which something happens; False when nothing will."""
        now = min(self.releases.next_s(), self.limit_s)
        if self.events and self.events[0][0] <= now:
            now = self.events[0][0]
        if now == math.inf:
            if self.holder is not None:
                raise DeadlockError(f"{self.holder.model.name} waits for ever")
            return False
        self.now = self.seen.end_s = now
        while self.events and self.events[0][0] <= now:
            heapq.heappop(self.events)[2]()
        if self.limit_s <= now:
            self._contain()
        for task in self.releases.take(now):
            self.count += 1
            self.waiting[self.count] = Job(task, self.tasks[task], self.count, now)
        self._settle()
        return True

    def _at(self, when: float, then: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, then))

    def _settle(self) -> None:
        while True:
            if self.holder is None and self.waiting and not self._dispatch():
                break
            job = self.holder
            if job is None or self.phase != "gate":
                break
            if self._yields(job):
                self.seen.preemptions += 1
                job.preemptions += 1
                self.waiting[job.key] = job
                self._let_go()
                job.stood = True
                job.held_s += self.now - job.since_s
                if self.machine.scheduling is Scheduling.LAYER_PREEMPTIVE:
                    self._lose_ring(job)
                continue
            if not job.waits:
                self._start_layer(job)
            break
        self._start_copies()

    def _yields(self, job: Job) -> bool:
        if self.machine.scheduling is Scheduling.NON_PREEMPTIVE or not job.model.preemptible:
            return False
        if not self.machine.yields_while_waiting and (job.stood or job.waits):
            return False
        waiting = [_claim(other) for other in self.waiting.values()]
        return bool(waiting) and self.policy.yields(_claim(job), waiting)

    def _dispatch(self) -> bool:
        """Give the device to the first job, if it is not kept for a release between two jobs."""
        key = self.policy.first(
            [_claim(job) for job in (*self.waiting.values(), *self.between.values())]
        )
        if key in self.between:
            return False
        self.holder = job = self.waiting.pop(key)
        self._limit(job)
        spent = self.machine.dispatch_s + self._turn(job)
        if spent:
            self.phase = "dispatch"
            self._at(self.now + spent, lambda: self._begin(job))
        else:
            self._begin(job)
        return True

    def _turn(self, job: Job) -> float:
        """Seconds in which another task's workspace is saved and the job's own restored."""
        domain = job.model.domain
        before = self.workspaces.get(domain)
        if before == job.task:
            return 0.0
        self.workspaces[domain] = job.task
        end = self.now
        if before is not None and self.tasks[before].save_s:
            self.saved.add(before)
            end = self._move("save", before, job, end, self.tasks[before].save_s)
        if job.task in self.saved:
            self.saved.remove(job.task)
            end = self._move("restore", job.task, job, end, job.model.restore_s)
        return end - self.now

    def _move(self, what: Activity, task: int, job: Job, start: float, planned: float) -> float:
        """Returns when the move ends; the device is held meanwhile."""
        end = start + planned * self.noise.copy()
        if self.record:
            self.seen.spans.append(Span(what, -1, task, job.key, start, end))
        return end

    def _limit(self, job: Job) -> None:
        """A job takes its rank no further than its budget."""
        job.since_s, model = self.now, job.model
        if model.budget_s is None or job.contained:
            return
        others_s = job.preemptions * self.machine.dispatch_s + job.restarts * model.penalty_s
        left_s = model.budget_s + others_s - job.held_s
        self.limit_s = self.now + max(0.0, left_s) + TOLERANCE_S

    def _contain(self) -> None:
        self.limit_s = math.inf
        if self.holder is not None:
            self.holder.contained = True
            self.seen.contained[self.holder.task] += 1

    def _let_go(self) -> None:
        self.holder, self.limit_s = None, math.inf

    def _begin(self, job: Job) -> None:
        self.phase = "gate"
        if not job.model.streams:
            return
        before = self.rings.get(job.model.domain)
        if before is job:
            return
        if before is not None:
            self._lose_ring(before)
        self.rings[job.model.domain] = job
        job.opens_s = max(self.streaming_s, default=0.0)
        self._occupy_links(job, displaces=not job.begun)
        job.begun = True

    def _occupy_links(self, job: Job, *, displaces: bool = False) -> None:
        idle = [link for link in self.used if not self.copying[link]]
        spent_s: dict[int, float] = {}
        for link in idle:
            if self.machine.blocked_extents and self.noise.busy():
                flight_s = self.machine.links[link].flight_s(self.machine.extent_bytes)
                spent_s[link] = flight_s * self.machine.blocked_extents
        if displaces and spent_s:
            spent_s = dict.fromkeys(idle, max(spent_s.values()))
        for link, seconds in spent_s.items():
            self._copy(link, seconds, lambda: None, "foreign", job)

    def _lose_ring(self, job: Job) -> None:
        if self.rings.get(job.model.domain) is job:
            del self.rings[job.model.domain]
        if not job.done and job.published > job.consumed:
            self.seen.rings_lost += 1
        if not job.done:
            job.restarts += 1
            job.lose_ring()

    def _start_layer(self, job: Job) -> None:
        self.phase = "layer"
        planned = job.compute_s()
        spent = planned * self.noise.layer()
        self.seen.busy_s[job.task] += spent
        last = job.layer == len(job.model.parts[job.part].compute_s) - 1
        if last or planned >= self.longest[job.task][job.part]:
            self.releases.provoked(self.now, job.task)
        if self.record:
            span = Span("compute", -1, job.task, job.key, self.now, self.now + spent)
            self.seen.spans.append(span)
        self._at(self.now + spent, lambda: self._end_layer(job))

    def _end_layer(self, job: Job) -> None:
        self.phase = "gate"
        part = job.part
        job.end_layer()
        if job.done:
            self._end_job(job)
        elif job.part != part:
            self._end_call(job)

    def _end_call(self, job: Job) -> None:
        """The device is kept for the release: only a job that is due earlier gets it."""
        self._let_go()
        if self.rings.get(job.model.domain) is job:
            del self.rings[job.model.domain]
        job.begin_call()
        spent = job.model.between_s / (len(job.model.parts) - 1)
        if spent:
            self.between[job.key] = job
            self._at(self.now + spent, lambda: self._ask_again(job))
        else:
            self.waiting[job.key] = job

    def _ask_again(self, job: Job) -> None:
        self.waiting[job.key] = self.between.pop(job.key)

    def _end_job(self, job: Job) -> None:
        self._let_go()
        if self.rings.get(job.model.domain) is job:
            del self.rings[job.model.domain]
        self.seen.jobs += 1
        self.seen.responses_s[job.task].append(self.now - job.arrival_s)
        if job.deadline_s < math.inf:
            late = self.now - job.deadline_s
            self.seen.latest_s = max(self.seen.latest_s, late)
            self.seen.misses[job.task] += late > TOLERANCE_S

    def _start_copies(self) -> None:
        job = self._copies_for()
        if job is None or self.now < job.opens_s:
            return
        for link in self._links_free(job):
            position = job.next_copy(link)
            if position is None:
                continue
            job.begin_copy(link)
            size = job.size_of(position)
            spent = self.machine.links[link].copy_s(size) * self.noise.copy()
            self.streaming_s[link] = self.now + spent
            self._copy(link, spent, _arrival(job, position), "copy", job)

    def _links_free(self, job: Job) -> list[int]:
        if not self.machine.in_turn:
            return [link for link, copying in enumerate(self.copying) if not copying]
        next_on = {link: job.next_copy(link) for link in self.used}
        waiting = [(at, link) for link, at in next_on.items() if at is not None]
        return [] if any(self.copying) or not waiting else [min(waiting)[1]]

    def _copies_for(self) -> Job | None:
        """The job whose stream goes on: the holder, or while that is resident the ring's owner."""
        job = self.holder
        if job is not None and job.model.streams:
            return None if self.phase == "dispatch" else job
        if self.machine.scheduling is not Scheduling.RING_KEEPING:
            return None
        owners = [owner for owner in self.rings.values() if not owner.done]
        return min(owners, key=lambda owner: (owner.deadline_s, owner.key), default=None)

    def _copy(
        self, link: int, spent: float, then: Callable[[], None], what: Activity, job: Job
    ) -> None:
        self.copying[link] = True
        if self.record:
            span = Span(what, link, job.task, job.key, self.now, self.now + spent)
            self.seen.spans.append(span)

        def ended() -> None:
            self.copying[link] = False
            then()

        self._at(self.now + spent, ended)


def _arrival(job: Job, position: int) -> Callable[[], None]:
    epoch = job.epoch

    def arrive() -> None:
        if job.epoch == epoch:
            job.arrive(position)

    return arrive


def _claim(job: Job) -> Waiting:
    guaranteed = job.deadline_s < math.inf and not job.contained
    deadline_ns = round(job.deadline_s * 1e9) if guaranteed else (1 << 63) - 1
    return Waiting(job.key, deadline_ns, job.key, guaranteed, job.model.starts)
