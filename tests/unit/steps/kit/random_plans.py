"""Random plans that are right because of how they come about; nothing here knows the verifier.

One runs the operators one after another in a random order that the graph allows, and before each
lets values go (what can be made again, or is on the host), moves some to the host, and gets back
what the operator reads, by a copy or by running its writer again. That one order decides places: a
value is put where nothing lies at that moment. Afterwards each step is told to wait for what it
needs of the other queues, and for no more: that the plan is right then follows from the order in
which it came about. Last, some waits are made longer, and some that others imply are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Instance, Plan, Queue, Step

Place = tuple[int, int]
Name = tuple[Queue, int]


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class Habits:
    """How likely the author of a plan does what, each time that it could."""

    forgets: float
    copies: float
    reuses: float


def random_habits(rng: Random) -> Habits:
    """Some keep everything, some copy everything, some do all."""
    return Habits(*(rng.choice((0.0, 0.3, 0.7, 1.0)) for _ in range(3)))


def random_plan(graph: Graph, rng: Random, habits: Habits | None = None) -> Plan:
    """A plan that is right."""
    author = _Author(graph, rng, habits or random_habits(rng))
    author.write()
    return author.plan()


class _Author:
    def __init__(self, graph: Graph, rng: Random, habits: Habits) -> None:
        self.graph, self.rng, self.habits = graph, rng, habits
        self.instances = [
            Instance(value, None)
            for value, about in enumerate(graph.values)
            if about.role.is_live_in
        ]
        self.fixed = {instance.value: index for index, instance in enumerate(self.instances)}
        self.held: dict[int, int] = {}  # the instance of each value that is there
        self.surplus: list[int] = []  # more instances of such values
        self.host: dict[int, Name] = {}
        self.steps: dict[Queue, list[Step]] = {queue: [] for queue in Queue}
        self.order: list[Name] = []
        self.needs: dict[Name, set[Name]] = {}
        self.writer: dict[int, Name] = {}
        self.users: list[tuple[Place, Name]] = []  # who had which bytes, ever
        self.taken: dict[int | str, Place] = {}
        self.arena = 0

    def write(self) -> None:
        for operator in self._sequence():
            self._get(self.graph.operators[operator].reads)
            self._run(operator)
        self._get([v for v, about in enumerate(self.graph.values) if about.role.is_live_out])

    def plan(self) -> Plan:
        self._final_instances()
        for queue, steps in self.steps.items():
            for index, step in enumerate(steps):
                steps[index] = replace(step, waits=self._waits((queue, index)))
        self._vary_waits()
        compute, d2h, h2d = (tuple(self.steps[queue]) for queue in Queue)
        return Plan(
            self.graph.digest,
            self.arena + self.graph.live_in_bytes + self.rng.choice((0, 0, 1000)),
            self.arena,
            sum(self.graph.values[value].size_bytes for value in self.host),
            tuple(self.instances),
            (compute, d2h, h2d),
        )

    def _sequence(self) -> list[int]:
        """An order of the operators that the graph allows."""
        todo, done = list(range(len(self.graph.operators))), []
        made = set(self.fixed)
        while todo:
            ready = [operator for operator in todo if self._may_run(operator, todo, made)]
            done.append(self.rng.choice(ready) if self.rng.random() < 0.5 else ready[0])
            todo.remove(done[-1])
            made.update(self.graph.operators[done[-1]].writes)
        return done

    def _may_run(self, operator: int, todo: list[int], made: set[int]) -> bool:
        about = self.graph.operators[operator]
        if operator >= self.graph.backward and todo[0] < self.graph.backward:
            return False
        first_once = next((o for o in todo if not self.graph.operators[o].repeatable), operator)
        return made.issuperset(about.reads) and (about.repeatable or operator == first_once)

    def _get(self, values: Iterable[int], pinned: frozenset[int] = frozenset()) -> None:
        """See that all these values are there."""
        values = tuple(values)
        pinned |= set(values)
        self._let_go(pinned)
        for value in values:
            if value in self.held or value in self.fixed:
                continue
            writer = self.graph.operators[self.graph.writer[value]]
            if value in self.host and (not writer.repeatable or self.rng.random() < 0.7):
                self._copy_back(value)
            else:
                self._get(writer.reads, pinned)
                self._run(self.graph.writer[value])
                for made in writer.writes:
                    if made not in pinned and self.rng.random() < self.habits.forgets:
                        self._forget(made)

    def _let_go(self, pinned: frozenset[int]) -> None:
        for value in sorted(self.held):
            if value not in self.host and self.rng.random() < self.habits.copies / 3:
                self._copy_away(value)
            writer = self.graph.operators[self.graph.writer[value]]
            if value in pinned or not (value in self.host or writer.repeatable):
                continue
            if self.rng.random() < self.habits.forgets:
                self._forget(value)

    def _forget(self, value: int) -> None:
        if not (value in self.host or self.graph.operators[self.graph.writer[value]].repeatable):
            return
        instance = self.held.pop(value)
        self.taken.pop(instance, None)

    def _run(self, operator: int) -> None:
        about = self.graph.operators[operator]
        reads = tuple(self.fixed.get(v, self.held.get(v, -1)) for v in about.reads)
        while self.surplus:
            self.taken.pop(self.surplus.pop(), None)
        writes = tuple(self._new(value) for value in about.writes)
        workspace = None
        if about.workspace_bytes:
            workspace = self._place("workspace", about.workspace_bytes)
        step = Step(reads, writes, (), operator, workspace)
        name = self._append(Queue.COMPUTE, step)
        if workspace is not None:
            self._use((workspace, workspace + about.workspace_bytes), name)
            del self.taken["workspace"]
        self._keep(about.writes, writes)

    def _keep(self, values: tuple[int, ...], instances: tuple[int, ...]) -> None:
        for value, instance in zip(values, instances, strict=True):
            if value in self.held:
                self.surplus.append(self.held[value])
            self.held[value] = instance

    def _copy_away(self, value: int) -> None:
        self.host[value] = self._append(Queue.D2H, Step((self.held[value],), (), ()))

    def _copy_back(self, value: int) -> None:
        instance = self._new(value)
        name = self._append(Queue.H2D, Step((), (instance,), ()))
        self.needs[name].add(self.host[value])
        self._keep((value,), (instance,))

    def _new(self, value: int) -> int:
        index = len(self.instances)
        offset = self._place(index, self.graph.values[value].size_bytes)
        self.instances.append(Instance(value, offset))
        return index

    def _place(self, who: int | str, size: int) -> int:
        """A place where nothing lies now; a fresh one, or one that something had before."""
        taken = sorted(self.taken.values())
        free, start = [], 0
        for begin, end in [*taken, (1 << 40, 1 << 40)]:
            if begin - start >= size:
                free.append((start, begin - size))
            start = max(start, aligned(end))
        if self.rng.random() >= self.habits.reuses:
            offset = aligned(self.arena)
        else:
            least, most = self.rng.choice(free)
            room = (min(most, least + 4 * ALIGNMENT) - least) // ALIGNMENT
            offset = least + self.rng.choice((0, 0, self.rng.randint(0, room))) * ALIGNMENT
        if size:
            self.taken[who] = (offset, offset + size)
        self.arena = max(self.arena, offset + size)
        return offset

    def _append(self, queue: Queue, step: Step) -> Name:
        name = (queue, len(self.steps[queue]))
        self.steps[queue].append(step)
        self.order.append(name)
        self.needs[name] = set()
        for instance in step.reads:
            if self.instances[instance].offset is not None:
                self.needs[name].add(self.writer[instance])
        for instance in (*step.writes, *step.reads):
            offset = self.instances[instance].offset
            if offset is None:
                continue
            size = self.graph.values[self.instances[instance].value].size_bytes
            if instance in step.writes:
                self.writer[instance] = name
                self._use((offset, offset + size), name)
            else:
                self.users.append(((offset, offset + size), name))
        return name

    def _use(self, place: Place, name: Name) -> None:
        """Whoever had any of these bytes must be over."""
        for other, user in self.users:
            if other[0] < place[1] and place[0] < other[1] and user != name:
                self.needs[name].add(user)
        self.users.append((place, name))

    def _waits(self, name: Name) -> tuple[tuple[Queue, int], ...]:
        latest: dict[Queue, int] = {}
        for queue, index in self.needs[name]:
            if queue != name[0]:
                latest[queue] = max(latest.get(queue, -1), index)
        return tuple(sorted(latest.items()))

    def _vary_waits(self) -> None:
        """Longer ones, always of what came before; and without those that others imply."""
        longer, shorter = self.rng.choice((0.0, 0.2)), self.rng.choice((0.0, 0.5, 1.0))
        over = dict.fromkeys(Queue, -1)
        before: dict[Name, dict[Queue, int]] = {}
        for name in self.order:
            queue, index = name
            step = self.steps[queue][index]
            waits = dict(step.waits)
            for other in Queue:
                if other != queue and over[other] >= 0 and self.rng.random() < longer:
                    waits[other] = self.rng.randint(waits.get(other, 0), over[other])
            for other in [*waits]:
                rest = {q: i for q, i in waits.items() if q != other}
                implied = self._implied(name, rest, before)[other] >= waits[other]
                if implied and self.rng.random() < shorter:
                    waits = rest
            self.steps[queue][index] = replace(step, waits=tuple(waits.items()))
            before[name] = self._implied(name, waits, before)
            over[queue] = index

    def _implied(
        self, name: Name, waits: dict[Queue, int], before: dict[Name, dict[Queue, int]]
    ) -> dict[Queue, int]:
        """The last step of each queue that is over before this one starts."""
        queue, index = name
        found = dict.fromkeys(Queue, -1)
        for done in [(queue, index - 1)] * (index > 0) + [*waits.items()]:
            for other, last in before[done].items():
                found[other] = max(found[other], last)
            found[done[0]] = max(found[done[0]], done[1])
        return found

    def _final_instances(self) -> None:
        """The last instance of each live-out value is the one that is there at the end."""
        last = [self.held[v] for v, a in enumerate(self.graph.values) if a.role.is_live_out]
        rest = [index for index in range(len(self.instances)) if index not in set(last)]
        self.rng.shuffle(rest)
        order = rest + last
        where = {old: new for new, old in enumerate(order)}
        self.instances = [self.instances[old] for old in order]
        for steps in self.steps.values():
            for index, step in enumerate(steps):
                reads = tuple(where[one] for one in step.reads)
                writes = tuple(where[one] for one in step.writes)
                steps[index] = replace(step, reads=reads, writes=writes)
