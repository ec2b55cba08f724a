"""Faults of plans: what the verifier says of them, and what random runs show.

    python -m tests.unit.steps.kit.faults [--runs 100000] [--seed 1] [--timings 20]

Prints a table, by kind of fault: how many the verifier rejected and accepted; of the accepted ones
how many random runs show to be wrong, which must be none (exit status 1); and of the rejected ones
how many no run shows to be wrong. These are faults that do no harm, races that no run happened to
lose, or a verifier that is too strict.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from tests.unit.steps.kit.random_graphs import random_graph
from tests.unit.steps.kit.random_plans import aligned, random_plan
from tests.unit.steps.kit.truth import shown_wrong

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Instance, Plan, Queue, Step
from tierline_steps.verify import PlanRejectedError, verify

T = TypeVar("T")
EACH = 20
"""Faults of one plan."""


class DoesNotApplyError(Exception):
    """The plan has nothing that this fault could change."""


@dataclass
class Draft:
    """A plan that can be changed."""

    rng: Random
    graph: Graph
    plan: Plan

    def __post_init__(self) -> None:
        self.instances = list(self.plan.instances)
        self.steps = {queue: list(self.plan.queues[queue]) for queue in Queue}

    def as_plan(self) -> Plan:
        """The plan with the changes; raises DoesNotApplyError if it has none."""
        compute, d2h, h2d = (tuple(self.steps[queue]) for queue in Queue)
        instances, queues = tuple(self.instances), (compute, d2h, h2d)
        changed = replace(self.plan, instances=instances, queues=queues)
        if (self.plan.instances, self.plan.queues) == (instances, queues):
            raise DoesNotApplyError
        return changed

    def step(self, accept: Callable[[Queue, Step], bool]) -> tuple[Queue, int, Step]:
        """A step of that kind."""
        return self.one(
            [
                (queue, index, step)
                for queue, steps in self.steps.items()
                for index, step in enumerate(steps)
                if accept(queue, step)
            ]
        )

    def one(self, found: list[T]) -> T:
        """One of them; raises DoesNotApplyError if there is none."""
        if not found:
            raise DoesNotApplyError
        return self.rng.choice(found)

    def remove(self, queue: Queue, index: int) -> None:
        """Take a step out; waits for those after it are for the same steps still."""
        del self.steps[queue][index]
        self._renumber(queue, lambda last: last - (last >= index))

    def insert(self, queue: Queue, index: int, step: Step) -> None:
        """Put a step in, likewise."""
        self._renumber(queue, lambda last: last + (last >= index))
        self.steps[queue].insert(index, step)

    def _renumber(self, queue: Queue, number: Callable[[int], int]) -> None:
        for steps in self.steps.values():
            for index, step in enumerate(steps):
                waits = tuple(
                    (other, number(last) if other == queue else last) for other, last in step.waits
                )
                kept = tuple((other, last) for other, last in waits if last >= 0)
                steps[index] = replace(step, waits=kept)

    def elsewhere(self, instance: int) -> int:
        """The same value in bytes that nothing has; as a new instance before the final ones."""
        offset = aligned(self.plan.arena_bytes)
        size = self.graph.values[self.instances[instance].value].size_bytes
        arena = offset + size
        self.plan = replace(
            self.plan,
            arena_bytes=arena,
            budget_bytes=max(self.plan.budget_bytes, arena + self.graph.live_in_bytes),
        )
        self.instances.insert(0, Instance(self.instances[instance].value, offset))
        for steps in self.steps.values():
            for index, step in enumerate(steps):
                reads = tuple(one + 1 for one in step.reads)
                steps[index] = replace(
                    step, reads=reads, writes=tuple(one + 1 for one in step.writes)
                )
        return 0


def _changed_waits(step: Step, other: Queue, last: int | None) -> Step:
    waits = dict(step.waits)
    waits.pop(other, None)
    if last is not None:
        waits[other] = last
    return replace(step, waits=tuple(waits.items()))


def _drop_wait(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: bool(step.waits))
    other, _ = draft.one([*step.waits])
    draft.steps[queue][index] = _changed_waits(step, other, None)
    return draft.as_plan()


def _weaken_wait(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: any(last for _, last in step.waits))
    other, last = draft.one([wait for wait in step.waits if wait[1]])
    weaker = max(0, last - draft.rng.randint(1, 3))
    draft.steps[queue][index] = _changed_waits(step, other, weaker)
    return draft.as_plan()


def _strengthen_wait(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda *_: True)
    other = draft.one([q for q in Queue if q != queue and draft.steps[q]])
    last = draft.rng.randrange(len(draft.steps[other]))
    draft.steps[queue][index] = _changed_waits(step, other, last)
    return draft.as_plan()


def _redirect_wait(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: len(step.waits) == 1)
    ((other, last),) = step.waits
    (third,) = set(Queue) - {queue, other}
    draft.steps[queue][index] = replace(step, waits=((third, last),))
    return draft.as_plan()


def _malformed_wait(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda *_: True)
    other = draft.rng.choice([*Queue])
    last = draft.rng.choice((-1, len(draft.steps[other]), 1 << 70, 0))
    draft.steps[queue][index] = replace(step, waits=(*step.waits, (other, last)))
    return draft.as_plan()


def _move_instance(draft: Draft) -> Plan:
    index = draft.one([n for n, one in enumerate(draft.instances) if one.offset is not None])
    instance = draft.instances[index]
    places = draft.plan.arena_bytes // ALIGNMENT
    offset = draft.rng.choice(
        (
            draft.rng.randint(0, places) * ALIGNMENT,
            (instance.offset or 0) + draft.rng.choice((-1, 1)) * ALIGNMENT,
            draft.one([one.offset for one in draft.instances if one.offset is not None]),
        )
    )
    draft.instances[index] = replace(instance, offset=offset)
    return draft.as_plan()


def _misalign(draft: Draft) -> Plan:
    index = draft.one([n for n, one in enumerate(draft.instances) if one.offset])
    instance = draft.instances[index]
    offset = (instance.offset or 0) - draft.rng.choice((1, 4, ALIGNMENT // 2))
    draft.instances[index] = replace(instance, offset=offset)
    return draft.as_plan()


def _live_in_place(draft: Draft) -> Plan:
    index = draft.one([*range(len(draft.instances))])
    instance = draft.instances[index]
    offset = 0 if instance.offset is None else None
    draft.instances[index] = replace(instance, offset=offset)
    return draft.as_plan()


def _shift_workspace(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: step.workspace is not None)
    places = draft.plan.arena_bytes // ALIGNMENT
    shifted = draft.rng.choice(
        (
            draft.rng.randint(0, places) * ALIGNMENT,
            (step.workspace or 0) + draft.rng.choice((-1, 1)) * ALIGNMENT,
            (step.workspace or 0) + 4,
            None,
        )
    )
    draft.steps[queue][index] = replace(step, workspace=shifted)
    return draft.as_plan()


def _needless_workspace(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: step.workspace is None)
    draft.steps[queue][index] = replace(step, workspace=0)
    return draft.as_plan()


def _exchange(draft: Draft, queue: Queue) -> Plan:
    steps = draft.steps[queue]
    first = draft.one([*range(len(steps) - 1)])
    second = draft.rng.choice((first + 1, draft.rng.randrange(len(steps))))
    one, other = steps[first], steps[second]
    if draft.rng.random() < 0.5:  # only what they do, or with what they wait for
        one, other = replace(one, waits=other.waits), replace(other, waits=one.waits)
    steps[first], steps[second] = other, one
    return draft.as_plan()


def _exchange_operators(draft: Draft) -> Plan:
    return _exchange(draft, Queue.COMPUTE)


def _exchange_copies(draft: Draft) -> Plan:
    return _exchange(draft, draft.rng.choice((Queue.D2H, Queue.H2D)))


def _move_step(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda *_: True)
    draft.remove(queue, index)
    draft.insert(queue, draft.rng.randint(0, len(draft.steps[queue])), step)
    return draft.as_plan()


def _replaced(draft: Draft, operands: tuple[int, ...], same_value: bool) -> tuple[int, ...]:
    at = draft.one([*range(len(operands))])
    value = draft.instances[operands[at]].value
    choices = [
        index
        for index, other in enumerate(draft.instances)
        if index != operands[at] and (other.value == value or not same_value)
    ]
    return (*operands[:at], draft.one(choices), *operands[at + 1 :])


def _other_instance_read(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: bool(step.reads))
    same = draft.rng.random() < 0.8
    draft.steps[queue][index] = replace(step, reads=_replaced(draft, step.reads, same))
    return draft.as_plan()


def _other_instance_written(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: bool(step.writes))
    same = draft.rng.random() < 0.8
    draft.steps[queue][index] = replace(step, writes=_replaced(draft, step.writes, same))
    return draft.as_plan()


def _operand_count(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda _, step: bool(step.reads + step.writes))
    instance = draft.rng.choice((0, -1, len(draft.instances)))
    changed = draft.rng.choice(
        (
            replace(step, reads=step.reads[:-1]),
            replace(step, writes=step.writes[1:]),
            replace(step, reads=(*step.reads, instance)),
            replace(step, writes=(*step.writes[:-1], instance)),
            replace(step, reads=step.reads[::-1], writes=step.writes[::-1]),
        )
    )
    draft.steps[queue][index] = changed
    return draft.as_plan()


def _other_host_copy(draft: Draft) -> Plan:
    """A copy of another value comes back, also one that never went."""
    *_, step = draft.step(lambda queue, _: queue == Queue.H2D)
    value = draft.rng.randrange(len(draft.graph.values))
    (instance,) = step.writes
    draft.instances[instance] = replace(draft.instances[instance], value=value)
    return draft.as_plan()


def _copy_missing(draft: Draft) -> Plan:
    queue, index, _ = draft.step(lambda queue, _: queue != Queue.COMPUTE)
    draft.remove(queue, index)
    return draft.as_plan()


def _copied_twice(draft: Draft) -> Plan:
    _, index, step = draft.step(lambda queue, _: queue == Queue.D2H)
    at = draft.rng.choice((index, index + 1, draft.rng.randint(0, len(draft.steps[Queue.D2H]))))
    draft.insert(Queue.D2H, at, step)
    return draft.as_plan()


def _kind_of_step(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda *_: True)
    other = draft.rng.choice((None, 0, -1, len(draft.graph.operators), step.operator))
    draft.steps[queue][index] = replace(step, operator=other)
    if queue != Queue.COMPUTE and draft.rng.random() < 0.5:
        draft.steps[queue][index] = replace(step, workspace=0)
    return draft.as_plan()


def _operator_missing(draft: Draft) -> Plan:
    _, index, _ = draft.step(lambda queue, _: queue == Queue.COMPUTE)
    draft.remove(Queue.COMPUTE, index)
    return draft.as_plan()


def _other_operator(draft: Draft) -> Plan:
    queue, index, step = draft.step(lambda queue, _: queue == Queue.COMPUTE)
    operator = draft.rng.randrange(len(draft.graph.operators))
    draft.steps[queue][index] = replace(step, operator=operator)
    return draft.as_plan()


def _repeated(draft: Draft, *, repeatable: bool) -> Plan:
    """An operator runs again, its results in bytes of their own, right after or at the end."""
    _, index, step = draft.step(
        lambda _, step: (
            step.operator is not None
            and draft.graph.operators[step.operator].repeatable == repeatable
        )
    )
    again = step
    for at in range(len(step.writes)):
        step = draft.steps[Queue.COMPUTE][index]
        fresh = draft.elsewhere(step.writes[at])
        again = replace(again, reads=tuple(one + 1 for one in again.reads))
        writes = [one + 1 for one in again.writes]
        writes[at] = fresh
        again = replace(again, writes=tuple(writes))
    draft.insert(Queue.COMPUTE, index + 1, replace(again, waits=()))
    return draft.as_plan()


def _repeated_random_operator(draft: Draft) -> Plan:
    return _repeated(draft, repeatable=False)


def _repeated_operator(draft: Draft) -> Plan:
    return _repeated(draft, repeatable=True)


def _counts(draft: Draft) -> Plan:
    field = draft.rng.choice(("arena_bytes", "budget_bytes", "host_bytes"))
    value = getattr(draft.plan, field)
    less = draft.rng.choice((1, ALIGNMENT, draft.rng.randint(0, value)))
    if not 0 < less <= value:
        raise DoesNotApplyError
    return replace(draft.plan, **{field: value - less})


def _grown_value(draft: Draft) -> Plan:
    """A plan for a graph in which a value, or a workspace, was smaller."""
    values, operators = list(draft.graph.values), list(draft.graph.operators)
    more = draft.rng.choice((1, ALIGNMENT, 5000))
    if draft.rng.random() < 0.8:
        at = draft.one([*range(len(values))])
        values[at] = replace(values[at], size_bytes=values[at].size_bytes + more)
    else:
        at = draft.one([n for n, one in enumerate(operators) if one.workspace_bytes])
        workspace_bytes = operators[at].workspace_bytes + more
        operators[at] = replace(operators[at], workspace_bytes=workspace_bytes)
    draft.graph = replace(draft.graph, values=tuple(values), operators=tuple(operators))
    return replace(draft.plan, graph=draft.graph.digest)


def _other_graph(draft: Draft) -> Plan:
    return replace(draft.plan, graph=draft.plan.graph[::-1])


def _final_instance(draft: Draft) -> Plan:
    """Another instance of the value is the last, or one that nobody writes."""
    outs = [
        n for n, i in enumerate(draft.instances) if draft.graph.values[i.value].role.is_live_out
    ]
    instance = draft.instances[draft.one(outs)]
    if draft.rng.random() < 0.3:
        draft.instances.append(instance)
        return draft.as_plan()
    order = [*range(len(draft.instances))]
    draft.rng.shuffle(order)
    where = {old: new for new, old in enumerate(order)}
    draft.instances = [draft.instances[old] for old in order]
    for steps in draft.steps.values():
        for index, step in enumerate(steps):
            reads = tuple(where[one] for one in step.reads)
            steps[index] = replace(step, reads=reads, writes=tuple(where[o] for o in step.writes))
    return draft.as_plan()


KINDS: dict[str, Callable[[Draft], Plan]] = {
    "wait dropped": _drop_wait,
    "wait weakened": _weaken_wait,
    "wait strengthened": _strengthen_wait,
    "wait for the other queue": _redirect_wait,
    "wait for no step": _malformed_wait,
    "instance moved": _move_instance,
    "instance not aligned": _misalign,
    "place of a live-in value": _live_in_place,
    "workspace shifted": _shift_workspace,
    "workspace not needed": _needless_workspace,
    "operators exchanged": _exchange_operators,
    "copies exchanged": _exchange_copies,
    "step moved": _move_step,
    "other instance read": _other_instance_read,
    "other instance written": _other_instance_written,
    "operands edited": _operand_count,
    "other host copy": _other_host_copy,
    "copy missing": _copy_missing,
    "copied twice": _copied_twice,
    "kind of step edited": _kind_of_step,
    "operator missing": _operator_missing,
    "other operator": _other_operator,
    "random operator repeated": _repeated_random_operator,
    "operator repeated": _repeated_operator,
    "counts shrunk": _counts,
    "value grown": _grown_value,
    "other graph": _other_graph,
    "final instance edited": _final_instance,
}


@dataclass(frozen=True)
class Fault:
    """A plan with a fault, for a graph."""

    kind: str
    graph: Graph
    plan: Plan


def faults(seed: int, runs: int) -> Iterator[Fault]:
    """So many faults, of all kinds in turn; the same for the same seed."""
    made, number = 0, 0
    while made < runs:
        rng = Random(f"{seed}/{number}")  # noqa: S311 - any faults will do
        number += 1
        graph = random_graph(rng)
        plan = random_plan(graph, rng)
        for _ in range(EACH):
            kind = [*KINDS][made % len(KINDS)] if rng.random() < 0.5 else rng.choice([*KINDS])
            draft = Draft(rng, graph, plan)
            try:
                faulty = KINDS[kind](draft)
            except DoesNotApplyError:
                continue
            made += 1
            yield Fault(kind, draft.graph, faulty)
            if made == runs:
                return


def is_accepted(fault: Fault) -> bool:
    """What the verifier says."""
    try:
        verify(fault.graph, fault.plan)
    except PlanRejectedError:
        return False
    return True


def judge(seed: int, runs: int, timings: int) -> Counter[tuple[str, bool, bool]]:
    """By kind, whether accepted, and whether shown wrong: how many."""
    found: Counter[tuple[str, bool, bool]] = Counter()
    rng = Random(seed)  # noqa: S311 - any times will do
    for fault in faults(seed, runs):
        wrong = shown_wrong(fault.graph, fault.plan, rng, timings) is not None
        found[fault.kind, is_accepted(fault), wrong] += 1
    return found


def main() -> int:
    """Print the table; 1 if the verifier accepted what a run shows to be wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timings", type=int, default=20, help="random runs of each")
    options = parser.parse_args()
    found = judge(options.seed, options.runs, options.timings)
    print("| fault | rejected | accepted | accepted, but wrong | rejected, none shows it wrong |")
    print("|---|---:|---:|---:|---:|")
    total = Counter[tuple[bool, bool]]()
    for kind in [*KINDS]:
        by = {(a, w): found[kind, a, w] for a in (False, True) for w in (False, True)}
        total.update(by)
        print(_row(kind, by))
    print(_row("**all**", total))
    return int(total[True, True] > 0)


def _row(kind: str, by: dict[tuple[bool, bool], int] | Counter[tuple[bool, bool]]) -> str:
    rejected, accepted = (by[a, False] + by[a, True] for a in (False, True))
    return f"| {kind} | {rejected} | {accepted} | {by[True, True]} | {by[False, False]} |"


if __name__ == "__main__":
    sys.exit(main())
