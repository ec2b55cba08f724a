"""A device in virtual time: the agent's own executor and lease policy, with a link and clients that
take the time they are told.

Clients do what the library does: they pass gates, consume at the end of layers, and yield where
they are asked. Copies run one after another over one link, whoever's they are.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tierline_agent.accounting import FastMemory
from tierline_agent.devices.base import Device, StreamOrder
from tierline_agent.execution import Executor
from tierline_agent.identity import Process
from tierline_agent.leases import LeaseManager
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Scheduling, Terms
from tierline_agent.sources import Source
from tierline_agent.state import LeaseMark
from tierline_agent.work import Execution, Job, Yielding
from tierline_operator.planning.pipeline import LinkRate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals

_FOR_EVER_NS = (1 << 63) - 1
_INSTANT = "what happens at one moment is seen together"


class VirtualWords:
    """Flag words that one thread has."""

    def __init__(self) -> None:
        self.published = self.consumed = 0
        self.asked = False

    def reset(self) -> None:
        self.restart(0, 0)

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


class VirtualStream:
    """The streamed extents of one job; `in_place` are there."""

    def __init__(self, order: StreamOrder, loop: asyncio.AbstractEventLoop) -> None:
        self.order = order
        self.words = cast(VirtualWords, order.words)
        self.in_place = order.published
        self.streamed_bytes = 0
        self.finished = loop.create_future()
        self.copying = self.cancelled = False

    def cancel(self, *, resumable: bool = False) -> None:
        assert not resumable
        self.cancelled = True
        self.finish_if_over()

    @property
    def wants_link(self) -> bool:
        room = self.in_place - self.words.consumed < len(self.order.ring)
        return not self.cancelled and self.in_place < len(self.order.sources) and room

    def arrived(self) -> None:
        self.copying = False
        self.in_place += 1
        if not self.cancelled:
            self.words.published = self.in_place
        self.finish_if_over()

    def finish_if_over(self) -> None:
        over = self.cancelled or self.in_place == len(self.order.sources)
        if over and not self.copying and not self.finished.done():
            self.finished.set_result(None)
            self.order.on_finished(self)


@dataclass
class VirtualClient:
    """One job of a task, from its release to its end."""

    model: TaskModel
    task: int
    arrival_s: float
    execution: Execution
    words: VirtualWords
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
    link: LinkRate
    scheduling: Scheduling
    now_s: float = 0.0
    preemptions: int = 0
    rings_lost: int = 0

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._mark = LeaseMark(self.folder / "mark")
        self._leases = LeaseManager(self._clock_ns)
        self._executor = Executor(
            device=cast(Device, self),
            leases=self._leases,
            mark=self._mark,
            memory=FastMemory(1 << 40),
            clock_ns=self._clock_ns,
        )
        self._streams: list[VirtualStream] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._clients: list[VirtualClient] = []
        self._ended: list[VirtualClient] = []
        self.responses_s: list[list[float]] = [[] for _ in self.models]
        """By task."""
        self._link_busy = False

    def run(self) -> None:
        """Play all jobs to their end."""
        while (now_s := self._next_s()) < math.inf:
            self.now_s = now_s
            self._step()
        assert not self._clients, "a job waits for ever"

    def close(self) -> None:
        self._mark.close()
        self.loop.close()

    def open_stream(self, order: StreamOrder) -> VirtualStream:
        assert all(stream.finished.done() for stream in self._streams), "two streams at once"
        stream = VirtualStream(order, self.loop)
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
        return min(due_s, self.arrivals.next_s())

    def _step(self) -> None:
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        self._leases.block(_INSTANT)
        for task in self.arrivals.take(self.now_s):
            self._release(task)
        ended, self._ended = self._ended, []
        for client in ended:
            self._end(client)
        self._leases.unblock(_INSTANT)
        while any(self._pass_gate(client) for client in list(self._clients)):
            pass
        self._copy()

    def _release(self, task: int) -> None:
        model, words = self.models[task], VirtualWords()
        due = model.deadline_s
        deadline_ns = _FOR_EVER_NS if due is None else round((self.now_s + due) * 1e9)
        yielding = Yielding(words, Terms(self.scheduling, _FOR_EVER_NS, 0, 1), 0)
        (part,) = model.parts
        job = Job(
            token=task + 1,
            process=Process(1, 1),
            domain=model.domain,
            deadline_ns=deadline_ns,
            rank=Rank.BEST_EFFORT if due is None else Rank.GUARANTEED,
            workspace_bytes=0,
            sources=cast("list[Source]", [self._copy_s(model, e) for e in part.extents]),
            ring=[None] * model.ring_extents,  # type: ignore[list-item] # only their number counts
            words=words,
            yielding=yielding if model.preemptible else None,
        )
        execution = self._executor.prepare(job, lambda _failure: None)
        client = VirtualClient(model, task, self.now_s, execution, words)
        self._clients.append(client)

        def granted(_now_ns: int) -> None:
            client.has_device = True

        self._executor.begin(execution, granted)

    def _copy_s(self, model: TaskModel, extent: int) -> float:
        return self.link.copy_s(model.layout.extent_sizes[extent])

    def _pass_gate(self, client: VirtualClient) -> bool:
        """Yield, or begin a layer; False if it does neither now."""
        if not client.has_device or not client.at_gate:
            return False
        if client.words.asked:
            client.has_device = False

            def resumed() -> None:
                client.has_device = True

            self._executor.park(client.execution, client.consumed, resumed)
            return True
        (part,) = client.model.parts
        if client.words.published < part.needs[client.layer]:
            return False
        client.at_gate = False
        self._at(self.now_s + part.compute_s[client.layer], lambda: self._end_layer(client))
        return False

    def _end_layer(self, client: VirtualClient) -> None:
        (part,) = client.model.parts
        client.consumed = client.words.consumed = max(client.consumed, part.frees[client.layer])
        client.layer += 1
        if client.layer == len(part.compute_s):
            self._ended.append(client)
        else:
            client.at_gate = True

    def _end(self, client: VirtualClient) -> None:
        self._clients.remove(client)
        self.responses_s[client.task].append(self.now_s - client.arrival_s)
        execution = client.execution
        self.preemptions += execution.preemptions
        self.rings_lost += execution.rings_lost
        self._executor.end(execution)

    def _copy(self) -> None:
        for stream in self._streams:
            if not self._link_busy and stream.wants_link:
                self._link_busy = stream.copying = True
                spent_s = cast(float, stream.order.sources[stream.in_place])
                self._at(self.now_s + spent_s, lambda stream=stream: self._arrived(stream))  # type: ignore[misc]

    def _arrived(self, stream: VirtualStream) -> None:
        self._link_busy = False
        stream.arrived()
