"""A device in virtual time: the agent's own executor and lease policy, with links and clients that
take the time they are told.

Clients do what the library does: they pass gates, consume at the end of layers, and yield where
they are asked. A link serves as many copies at a time as its rate says, of any streams, in the
order in which they were asked for, and each gets an equal part of it.

What the device copies ahead of jobs is left out where the simulator is to be met to the moment,
which knows nothing of it: then such a stream copies nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from tierline_agent.devices.base import Ahead, Device, StreamOrder
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Allowance, Scheduling, Terms
from tierline_agent.policy.prefetch import freed_by, reach
from tierline_agent.policy.releases import Due, Releases
from tierline_agent.policy.transfers import IN_FLIGHT
from tierline_agent.processes.identity import Process
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.execution import DeviceJob, Execution, Yielding
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry.accounting import FastMemory
from tierline_agent.tiers.sources import Source
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals

_FOR_EVER_NS = (1 << 63) - 1
_INSTANT = "what happens at one moment is seen together"
_TOLERANCE_S = 1e-12
_HEARD_NS = 1000
"""How long an agent waits in addition for a client's next message."""
_ROUNDED_NS = 3
"""Events of a moment come in any order, and moments are floating numbers."""


class VirtualWords:
    """Flag words that one thread has."""

    def __init__(self) -> None:
        self.published = self.consumed = 0
        self.asked = False

    def reset(self, published: int = 0) -> None:
        self.restart(published, 0)

    def restart(self, published: int, consumed: int) -> None:
        self.published, self.consumed, self.asked = published, consumed, False

    def ask(self) -> None:
        self.asked = True

    def ask_no_more(self) -> None:
        self.asked = False

    def interrupt(self) -> None: ...

    def export(self) -> int:
        raise NotImplementedError

    def close(self) -> None: ...


@dataclass
class _Timer:
    then: Callable[[], None] | None

    def cancel(self) -> None:
        self.then = None

    def fire(self) -> None:
        if self.then is not None:
            self.then()


@dataclass(eq=False)
class Copy:
    """One extent on its way: `left_s` of a link that it has alone."""

    stream: VirtualStream
    position: int
    left_s: float


@dataclass
class VirtualLink:
    """Copies that wait and copies that run."""

    in_flight: int
    waiting: list[Copy] = field(default_factory=list)
    running: list[Copy] = field(default_factory=list)
    since_s: float = 0.0

    def next_s(self) -> float:
        """When the next copy ends if none begins."""
        least_s = min((copy.left_s for copy in self.running), default=math.inf)
        return self.since_s + least_s * max(1, len(self.running))

    def move_to(self, now_s: float) -> list[Copy]:
        """What has ended by then."""
        for copy in self.running:
            copy.left_s -= (now_s - self.since_s) / len(self.running)
        self.since_s = now_s
        ended = [copy for copy in self.running if copy.left_s <= _TOLERANCE_S]
        self.running = [copy for copy in self.running if copy not in ended]
        return ended

    def begin(self) -> None:
        """Serve as many as it does at a time."""
        while self.waiting and len(self.running) < self.in_flight:
            self.running.append(self.waiting.pop(0))


class VirtualStream:
    """The streamed extents of one job; `in_place` are there."""

    def __init__(
        self,
        order: StreamOrder,
        links: Sequence[VirtualLink],
        loop: asyncio.AbstractEventLoop,
        *,
        goes_ahead: bool,
    ) -> None:
        self.goes_ahead = goes_ahead
        self.order = order
        self.links = links
        self.words = cast(VirtualWords, order.words)
        self.in_place = order.published
        self.streamed_bytes = 0
        self.finished = loop.create_future()
        self.cancelled = False
        self.follower: VirtualStream | None = None
        self.ahead = order.ahead
        self._stays = False
        self._asked = order.published
        self._early: set[int] = set()
        self._open = 0

    def cancel(self, *, resumable: bool = False) -> None:
        assert not resumable
        self.cancelled = True
        for link in self.links:
            withdrawn = [copy for copy in link.waiting if copy.stream is self]
            link.waiting = [copy for copy in link.waiting if copy.stream is not self]
            self._open -= len(withdrawn)

    def hold(self) -> None:
        pass

    def ring_is_free(self) -> None:
        if self.ahead is not None:
            self.ahead = Ahead.BETWEEN_JOBS

    def stay(self) -> None:
        self._stays = True

    def go(self, order: StreamOrder) -> bool:
        if self.ahead is None or self.cancelled:
            return False
        self.ahead, self.order = None, order
        self.words.published = self.in_place
        return True

    def ask(self) -> None:
        """Ask the links for what there is room for."""
        while not self.cancelled and self._asked < len(self.order.sources):
            if not self._has_room():
                return
            link, spent_s = cast("tuple[int, float]", self.order.sources[self._asked])
            self.links[link].waiting.append(Copy(self, self._asked, spent_s))
            self._asked += 1
            self._open += 1

    def _has_room(self) -> bool:
        extents, slots = len(self.order.sources), len(self.order.ring)
        if self.ahead is None:
            return self._asked - self.words.consumed < slots
        free = self.ahead is Ahead.BETWEEN_JOBS
        if not self.goes_ahead or self._open >= IN_FLIGHT or self._asked >= reach(extents, slots):
            return False
        return free or self.words.consumed >= freed_by(self._asked, extents, slots)

    def arrived(self, position: int) -> None:
        self._open -= 1
        self.streamed_bytes += 1
        self._early.add(position)
        while self.in_place in self._early:
            self._early.remove(self.in_place)
            self.in_place += 1
        if not self.cancelled and self.ahead is None:
            self.words.published = self.in_place
        following = self.order.following
        if self._complete and following is not None and not (self.cancelled or self._stays):
            self.follower = VirtualStream(
                following, self.links, self.finished.get_loop(), goes_ahead=self.goes_ahead
            )

    @property
    def _complete(self) -> bool:
        return self.ahead is None and self.in_place == len(self.order.sources)

    def tell_if_over(self) -> bool:
        """Tell what the event loop of an agent would be told; True if that was done now."""
        if self._open or self.finished.done() or not (self.cancelled or self._complete):
            return False
        self.finished.set_result(None)
        self.order.on_finished(self)
        return True


@dataclass
class VirtualClient:
    """One job of a task, from its release to its end."""

    model: TaskModel
    task: int
    arrival_s: float
    execution: Execution
    words: VirtualWords
    part: int = 0
    """Which job of its release."""
    has_device: bool = False
    at_gate: bool = True
    layer: int = 0
    consumed: int = 0


@dataclass
class VirtualNode:
    """All of it."""

    folder: Path
    models: list[TaskModel]
    arrivals: Arrivals
    links: Sequence[LinkRate]
    scheduling: Scheduling
    goes_ahead: bool = True
    makes_at_once: bool = True
    copies_itself: bool = False
    dispatch_s: float = 0.0
    """From a grant to where the client first stands at a gate."""
    names: Mapping[int, Callable[[float], tuple[float, float]]] = field(default_factory=dict)
    """Of tasks with untruthful programs: what release and deadline they name for a job that came at
    a moment, seconds."""
    jitter_s: Sequence[float] = ()
    """By task: how long after a release it asks for the device, at most, by its plan."""
    later_s: Callable[[int], float] = lambda _task: 0.0
    """How long after it does."""
    in_turn: bool = False
    """A program has one job at a time; else those that come meanwhile are those of others."""
    first_s: Sequence[float] = ()
    """By task: how long a first job of its program has the device at once, dispatch included; 0
    where none starts. Each program ends there, and starts again."""
    starts_until_s: float = 0.0
    again_s: Callable[[], float] = lambda: 0.0
    """How long one takes until it asks for the device again."""
    now_s: float = 0.0
    first_jobs: int = 0
    preemptions: int = 0
    rings_lost: int = 0

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._mark = LeaseMark(self.folder / "mark")
        self._leases = LeaseManager(self._clock_ns, later=self._later)
        self._executor = Executor(
            device=cast(Device, self),
            leases=self._leases,
            mark=self._mark,
            memory=FastMemory(1 << 40),
            clock_ns=self._clock_ns,
            later=self._later,
        )
        self._links = [VirtualLink(link.in_flight) for link in self.links]
        self._streams: list[VirtualStream] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._clients: list[VirtualClient] = []
        self._ended: list[VirtualClient] = []
        self.responses_s: list[list[float]] = [[] for _ in self.models]
        """By task."""
        self.held_s: list[list[tuple[float, float]]] = [[] for _ in self.models]
        """By task: how long each job had the device, and how long it might."""
        self.contained = [0] * len(self.models)
        """Jobs that lost their rank, by task."""
        self.ahead_extents = 0
        """How many were in place when their jobs were granted."""
        self.followed_s: list[float] = []
        """When a stream began the one ahead that follows it."""
        self._words = [VirtualWords() for _ in self.models]
        self._releases = [Releases() for _ in self.models]
        self._late: list[list[float]] = [[] for _ in self.models]
        """By task: releases that came while one ran."""
        self._busy = [False] * len(self.models)
        """Tasks with a release that is not over."""
        self._kept: dict[int, int] = {}
        """By task: the key of the claim that keeps the device for the next job."""
        self.put_off = [0] * len(self.models)
        """By task: jobs that were served later than named."""

    def run(self) -> None:
        """Play all jobs to their end."""
        for task, first_s in enumerate(self.first_s):
            if first_s:
                self._start_again(task)
        while (now_s := self._next_s()) < math.inf:
            self.now_s = now_s
            self._step()
        assert not self._clients, "a job waits for ever"

    def close(self) -> None:
        self._mark.close()
        self.loop.close()

    def open_stream(self, order: StreamOrder) -> VirtualStream:
        assert all(stream.finished.done() for stream in self._streams), "two streams at once"
        stream = VirtualStream(order, self._links, self.loop, goes_ahead=self.goes_ahead)
        self._streams = [stream]
        return stream

    # -- inside

    def _clock_ns(self) -> int:
        return round(self.now_s * 1e9)

    def _at(self, when_s: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, then))

    def _next_s(self) -> float:
        due_s = self._events[0][0] if self._events else math.inf
        copied_s = min(link.next_s() for link in self._links)
        return min(due_s, copied_s, self.arrivals.next_s())

    def _step(self) -> None:
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        for copy in [copy for link in self._links for copy in link.move_to(self.now_s)]:
            copy.stream.arrived(copy.position)
            if copy.stream.follower is not None:  # the executor hears of it later
                self._streams = [copy.stream, copy.stream.follower]
                self.followed_s.append(self.now_s)
        self._leases.block(_INSTANT)
        for task in self.arrivals.take(self.now_s):
            if self.in_turn and self._busy[task]:
                self._late[task].append(self.now_s)
            else:
                self._prepare(task, self.now_s)
        ended, self._ended = self._ended, []
        for client in ended:
            self._end(client)
        self._leases.unblock(_INSTANT)
        self._nothing_goes_ahead_of_others()
        while self._pass_gates() or self._tell():
            pass
        self._nothing_goes_ahead_of_others()
        self._copy()

    def _nothing_goes_ahead_of_others(self) -> None:
        """A client that wants the device does not wait for copies that are not begun yet."""
        waiting = [client.words for client in self._clients if not client.has_device]
        for stream in self._streams:
            if stream.ahead is not None and not stream.cancelled:
                assert all(words is stream.words for words in waiting), "something goes ahead"

    def _pass_gates(self) -> bool:
        return any(self._pass_gate(client) for client in list(self._clients))

    def _tell(self) -> bool:
        return any(stream.tell_if_over() for stream in self._streams)

    def _prepare(self, task: int, arrival_s: float) -> None:
        """A release: it asks for the device once it has its input."""
        self._busy[task] = True
        later_s = self.later_s(task)
        if later_s:
            self._at(self.now_s + later_s, partial(self._release, task, arrival_s))
        else:
            self._release(task, arrival_s)

    def _release(self, task: int, arrival_s: float, number: int = 0) -> None:
        model, words = self.models[task], self._words[task]
        if any(client.words is words for client in self._clients):
            words = VirtualWords()  # the arena of another process: the task runs late
        relative_s = model.deadline_s
        due = Due(_FOR_EVER_NS, 0)
        if relative_s is not None:
            due = self._due(task, arrival_s, relative_s)
        planned_ns = 0 if model.budget_s is None else round(model.budget_s * 1e9) + _ROUNDED_NS
        dispatch_ns, penalty_ns = round(self.dispatch_s * 1e9), round(model.penalty_s * 1e9)
        yielding = Yielding(
            words,
            Terms(self.scheduling, _FOR_EVER_NS, 1),
            Allowance(planned_ns, dispatch_ns, penalty_ns),
        )
        part = model.parts[number]
        job = DeviceJob(
            token=task + 1,
            process=Process(1, 1),
            domain=model.domain,
            deadline_ns=due.deadline_ns,
            rank=Rank.BEST_EFFORT if relative_s is None else Rank.GUARANTEED,
            eligible_ns=due.eligible_ns,
            workspace_bytes=0,
            sources=cast("list[Source]", [self._copy_s(model, e) for e in part.extents]),
            ring=[None] * model.ring_extents,  # type: ignore[list-item] # only their number counts
            words=words,
            yielding=yielding if model.preemptible else None,
        )
        execution = self._executor.prepare(job, lambda _failure: None)
        client = VirtualClient(model, task, arrival_s, execution, words, number)
        self._clients.append(client)

        def granted(_now_ns: int) -> None:
            self.ahead_extents += words.published
            self._dispatch(client)

        self._executor.begin(execution, granted)
        kept = self._kept.pop(task, None)
        if kept is not None:
            self._leases.let_go(kept)

    def _start_again(self, task: int) -> None:
        if self.now_s < self.starts_until_s:
            self._at(self.now_s + self.again_s(), partial(self._start_program, task))

    def _start_program(self, task: int) -> None:
        """A first job: it has no arena, no rank, and the device for as long as it may at once."""
        job = DeviceJob(
            token=len(self.models) + task + 1,
            process=Process(1, 1),
            domain=self.models[task].domain,
            deadline_ns=0,  # whatever it names
            rank=Rank.WARMUP,
            eligible_ns=0,
            workspace_bytes=0,
            sources=[],
            ring=[],
            words=None,
        )
        execution = self._executor.prepare(job, lambda _failure: None)

        def over() -> None:
            self.first_jobs += 1
            self._executor.end(execution)
            self._executor.is_over(execution)
            self._start_again(task)

        def granted(_now_ns: int) -> None:
            self._at(self.now_s + self.first_s[task], over)

        self._executor.begin(execution, granted)

    def _due(self, task: int, arrival_s: float, relative_s: float) -> Due:
        relative_ns = round(relative_s * 1e9)
        named_ns = round(arrival_s * 1e9)
        named_due_ns = named_ns + relative_ns
        if task in self.names:
            named_ns, named_due_ns = (round(at_s * 1e9) for at_s in self.names[task](arrival_s))
        due = self._releases[task].begins(
            now_ns=self._clock_ns(),
            release_ns=named_ns,
            deadline_ns=named_due_ns,
            part=0,
            calls=len(self.models[task].parts),
            jitter_ns=round(self.jitter_s[task] * 1e9) if self.jitter_s else 0,
            period_ns=int(self.models[task].period_s * 1e9),  # moments are rounded, too
            relative_ns=relative_ns,
            idle_ns=self._leases.idle_ns,
        )
        self.put_off[task] += due.too_soon
        return due

    def _dispatch(self, client: VirtualClient) -> None:
        client.has_device = True
        if self.dispatch_s:
            client.at_gate = False
            self._at(self.now_s + self.dispatch_s, partial(setattr, client, "at_gate", True))

    def _later(self, delay_s: float, then: Callable[[], None]) -> _Timer:
        timer = _Timer(then)
        self._at(self.now_s + delay_s, timer.fire)
        return timer

    def _copy_s(self, model: TaskModel, extent: int) -> tuple[int, float]:
        link = model.link_of_extent[extent]
        return link, self.links[link].copy_s(model.layout.extent_sizes[extent])

    def _pass_gate(self, client: VirtualClient) -> bool:
        """Yield, or begin a layer; False if it does neither now."""
        if not client.has_device or not client.at_gate:
            return False
        if client.words.asked:
            client.has_device = False

            self._executor.park(client.execution, client.consumed, partial(self._dispatch, client))
            return True
        part = client.model.parts[client.part]
        if client.words.published < part.needs[client.layer]:
            return False
        client.at_gate = False
        self._at(self.now_s + part.compute_s[client.layer], lambda: self._end_layer(client))
        return False

    def _end_layer(self, client: VirtualClient) -> None:
        part = client.model.parts[client.part]
        client.consumed = client.words.consumed = max(client.consumed, part.frees[client.layer])
        client.layer += 1
        if client.layer == len(part.compute_s):
            self._ended.append(client)
        else:
            client.at_gate = True

    def _end(self, client: VirtualClient) -> None:
        self._clients.remove(client)
        over = client.part == len(client.model.parts) - 1
        if over:
            self.responses_s[client.task].append(self.now_s - client.arrival_s)
        else:
            self._keep(client)
        execution = client.execution
        self.preemptions += execution.preemptions
        self.rings_lost += execution.rings_lost
        self._executor.end(execution)
        self._executor.is_over(execution)
        self.held_s[client.task].append((execution.held_ns / 1e9, execution.budget_ns / 1e9))
        self.contained[client.task] += execution.contained
        self._releases[client.task].ends(self._clock_ns())
        self._busy[client.task] = not over
        if over and self._late[client.task]:
            self._prepare(client.task, self._late[client.task].pop(0))

    def _keep(self, client: VirtualClient) -> None:
        """The device is kept for the release's next job, which asks when its time has come."""
        task, model = client.task, client.model
        between_s = model.between_s / (len(model.parts) - 1)
        self._releases[task].ends(self._clock_ns())
        kept_ns = self._releases[task].kept_ns(len(model.parts), round(model.between_s * 1e9))
        assert kept_ns is not None
        claim = client.execution.ticket.claim
        self._kept[task] = claim.key
        self._leases.keep(claim, self._clock_ns() + kept_ns + _HEARD_NS)
        again = partial(self._release, task, client.arrival_s, client.part + 1)
        self._at(self.now_s + between_s, again)

    def _copy(self) -> None:
        for stream in self._streams:
            stream.ask()
        for link in self._links:
            link.begin()
