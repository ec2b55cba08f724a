"""Runs a plan under random times and looks at every byte: the ground truth for the verifier.

Nothing is proved here and nothing ordered: three queues run, each step takes a random time that
varies over many orders of magnitude, one of them longer than all others, and each piece of the
arena carries a tag of what was last written to it. While a step writes, what it writes is in
pieces. A step is wrong that finds another value than it should, or finds its operands or what it
wrote changed when it ends. So a plan that is wrong only now and then is found out only now and
then: what this says is wrong is wrong, and what it does not say is not right.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from random import Random

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Plan, Queue, Step

Tag = tuple[int | None, int]
"""The value, None while it is written; and the number of that write."""


class _WrongError(Exception):
    pass


def shown_wrong(graph: Graph, plan: Plan, rng: Random, runs: int) -> str | None:
    """What some run shows, the first time that one shows anything; None if none does."""
    try:
        _names(graph, plan)
        _places(graph, plan)
        _program(graph, plan)
        for _ in range(runs):
            _Run(graph, plan, rng).run()
    except _WrongError as wrong:
        return str(wrong)
    return None


def _see(is_right: bool, otherwise: str) -> None:
    if not is_right:
        raise _WrongError(otherwise)


def _names(graph: Graph, plan: Plan) -> None:
    """What cannot be run at all."""
    _see(plan.graph == graph.digest, "another graph")
    for instance in plan.instances:
        _see(0 <= instance.value < len(graph.values), "no such value")
    for queue in Queue:
        for step in plan.queues[queue]:
            for instance_index in (*step.reads, *step.writes):
                _see(0 <= instance_index < len(plan.instances), "no such instance")
            for other, index in step.waits:
                _see(0 <= index < len(plan.queues[other]), "no such step")
            if queue == Queue.COMPUTE:
                _see(step.operator is not None, "no operator")
            else:
                _see(step.operator is None and step.workspace is None, "no copy")
                counts = len(step.reads), len(step.writes)
                _see(counts == ((1, 0) if queue == Queue.D2H else (0, 1)), "no copy of one value")


def _places(graph: Graph, plan: Plan) -> None:
    def see_place(offset: int, size: int) -> None:
        _see(offset % ALIGNMENT == 0 and offset >= 0, "not aligned")
        _see(offset + size <= plan.arena_bytes, "outside of the arena")

    _see(plan.arena_bytes + graph.live_in_bytes <= plan.budget_bytes, "above the budget")
    for instance in plan.instances:
        value = graph.values[instance.value]
        _see(value.role.is_live_in == (instance.offset is None), "a place too few or too many")
        if instance.offset is not None:
            see_place(instance.offset, value.size_bytes)
    for step in plan.queues[Queue.COMPUTE]:
        if step.workspace is not None and 0 <= (step.operator or 0) < len(graph.operators):
            see_place(step.workspace, graph.operators[step.operator or 0].workspace_bytes)


def _program(graph: Graph, plan: Plan) -> None:
    """Which operators run, and in which order where that matters: the compute queue alone."""
    ran: list[int] = []
    for step in plan.queues[Queue.COMPUTE]:
        number = step.operator or 0
        _see(0 <= number < len(graph.operators), "no such operator")
        operator = graph.operators[number]
        reads = tuple(plan.instances[instance].value for instance in step.reads)
        writes = tuple(plan.instances[instance].value for instance in step.writes)
        _see((reads, writes) == (operator.reads, operator.writes), "other operands")
        has_workspace = step.workspace is not None
        _see(has_workspace == (operator.workspace_bytes > 0), "a workspace too few or too many")
        ran.append(number)
    _see(set(ran) == set(range(len(graph.operators))), "an operator is missing")
    once = [operator for operator in ran if not graph.operators[operator].repeatable]
    _see(once == sorted(set(once)), "other random numbers")
    backward = [n for n, operator in enumerate(ran) if operator >= graph.backward]
    forward = set(ran[: backward[0]]) if backward else set(ran)
    _see(forward >= set(range(graph.backward)), "the backward before the forward is over")


class _Run:
    """One execution. Cells: the arena's pieces, then live-in values, then copies on the host."""

    def __init__(self, graph: Graph, plan: Plan, rng: Random) -> None:
        self.graph, self.plan, self.rng = graph, plan, rng
        marks = {0}
        for offset, size in self._places():
            marks.update((offset, offset + size))
        self.marks = sorted(marks)
        count = len(graph.values)
        self.live_in, self.host = len(marks), len(marks) + count
        self.tags: list[Tag] = [(None, 0)] * (len(marks) + 2 * count)
        for value, about in enumerate(graph.values):
            if about.role.is_live_in:
                self.tags[self.live_in + value] = (value, 0)
        self.writes = 0
        self.seen: dict[Queue, list[tuple[int, Tag]]] = {}
        self.speed = [10 ** rng.uniform(-3, 3) for _ in Queue]
        queue = rng.choice([*Queue])
        self.stuck = (
            queue,
            rng.randint(0, len(plan.queues[queue])),
        )  # takes longer than all others

    def _places(self) -> list[tuple[int, int]]:
        places = [
            (instance.offset, self.graph.values[instance.value].size_bytes)
            for instance in self.plan.instances
            if instance.offset is not None
        ]
        for step in self.plan.queues[Queue.COMPUTE]:
            if step.workspace is not None and step.operator is not None:
                size = self.graph.operators[step.operator].workspace_bytes
                places.append((step.workspace, size))
        return places

    def run(self) -> None:
        queues = self.plan.queues
        done, busy = [0, 0, 0], [False] * 3
        running: list[tuple[float, Queue]] = []
        now = 0.0
        while True:
            for queue in Queue:
                if busy[queue] or done[queue] == len(queues[queue]):
                    continue
                step = queues[queue][done[queue]]
                if all(done[other] > index for other, index in step.waits):
                    busy[queue] = True
                    self._start(queue, step)
                    takes = self.speed[queue] * 10 ** self.rng.uniform(-2, 2)
                    takes += 1e9 * ((queue, done[queue]) == self.stuck)
                    heapq.heappush(running, (now + takes, queue))
            if not running:
                break
            now, queue = heapq.heappop(running)
            self._finish(queue, queues[queue][done[queue]])
            done[queue] += 1
            busy[queue] = False
        _see(all(done[queue] == len(queues[queue]) for queue in Queue), "it never ends")
        self._end()

    def _start(self, queue: Queue, step: Step) -> None:
        seen = self.seen[queue] = []
        for cells, value in self._sources(queue, step):
            for cell in cells:
                _see(self.tags[cell][0] == value, "another value was read")
                seen.append((cell, self.tags[cell]))
        for cells, _ in self._targets(queue, step):
            self.writes += 1
            for cell in cells:
                self.tags[cell] = (None, self.writes)
                seen.append((cell, (None, self.writes)))

    def _finish(self, queue: Queue, step: Step) -> None:
        for cell, tag in self.seen[queue]:
            _see(self.tags[cell] == tag, "changed while a step had it")
        for cells, value in self._targets(queue, step):
            self.writes += 1
            for cell in cells:
                self.tags[cell] = (value, self.writes)

    def _sources(self, queue: Queue, step: Step) -> list[tuple[range, int]]:
        """Which cells it reads, and what must be there."""
        if queue == Queue.H2D:
            value = self.plan.instances[step.writes[0]].value
            return [(range(self.host + value, self.host + value + 1), value)]
        return [(self._cells(one), self.plan.instances[one].value) for one in step.reads]

    def _targets(self, queue: Queue, step: Step) -> list[tuple[range, int | None]]:
        """Which cells it writes, and what is there afterwards."""
        if queue == Queue.D2H:
            value = self.plan.instances[step.reads[0]].value
            return [(range(self.host + value, self.host + value + 1), value)]
        targets: list[tuple[range, int | None]] = [
            (self._cells(one), self.plan.instances[one].value) for one in step.writes
        ]
        if step.workspace is not None and step.operator is not None:
            size = self.graph.operators[step.operator].workspace_bytes
            targets.append((self._range(step.workspace, size), None))
        return targets

    def _cells(self, instance: int) -> range:
        value, offset = self.plan.instances[instance].value, self.plan.instances[instance].offset
        if offset is None:
            return range(self.live_in + value, self.live_in + value + 1)
        return self._range(offset, self.graph.values[value].size_bytes)

    def _range(self, offset: int, size: int) -> range:
        return range(bisect_left(self.marks, offset), bisect_left(self.marks, offset + size))

    def _end(self) -> None:
        last = {instance.value: n for n, instance in enumerate(self.plan.instances)}
        host_bytes = 0
        for value, about in enumerate(self.graph.values):
            if about.role.is_live_out:
                found = [self.tags[cell][0] for cell in self._cells(last[value])]
                _see(set(found) <= {value}, "a gradient or result is lost")
            if about.role.is_live_in:
                _see(self.tags[self.live_in + value] == (value, 0), "a live-in value was written")
            if self.tags[self.host + value] != (None, 0):
                host_bytes += about.size_bytes
        _see(host_bytes <= self.plan.host_bytes, "more on the host than it says")
