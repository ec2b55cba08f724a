"""Which weights can be streamed, in which layers, and why the others cannot. Pure.

A run is one job of the program. A weight is streamed if, in every run, exactly one module call
reads it, that call is the only one of its module in the job and the module owns the weight, and the
call encloses no other streamed module; and if the order of those calls is the same in every run.
Everything else is pinned: it stays in fast memory, with the reason.

A weight that no run read is pinned too: a branch taken later, compiled code or another thread may
read it, and then it is there.

Invariant: `layers`, `pinned` and `stays` of a Selection hold every weight exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_RUNS = 4
"""Jobs that are recorded at most."""
OUTSIDE = -1
"""The call index of a read outside every module call, and the parent of an outermost call."""

NOT_READ = "not read in the first jobs"
NOT_OWN = "read outside its own module's forward"
REPEATED = "read more than once in a job"
RECALLED = "its module is called more than once in a job"
CHANGING = "read in a changing order"
ENCLOSING = "its module's forward encloses other streamed modules"


@dataclass(frozen=True)
class Call:
    """A module call: the module's id and the index of the enclosing call."""

    module: int
    parent: int


@dataclass(frozen=True)
class Run:
    """One job: its module calls in order, and the first reads (call, weight) in order.

    Where launches are seen instead of modules, there are no calls, and reads are all of the job's,
    as (launch, weight).
    """

    calls: tuple[Call, ...]
    reads: tuple[tuple[int, int], ...]
    writes: frozenset[int] = frozenset()
    """Weights that an operator wrote."""
    addressed: frozenset[int] = frozenset()
    """Weights of which the device's memory holds the addresses."""
    graphed: frozenset[int] = frozenset()
    """Weights that CUDA graphs of the program's own name."""

    def of(self, number: Mapping[int, int]) -> Run:
        """The same job in terms of some of the weights, by their new numbers."""
        return Run(
            self.calls,
            tuple((call, number[one]) for call, one in self.reads if one in number),
            frozenset(number[one] for one in self.writes if one in number),
            frozenset(number[one] for one in self.addressed if one in number),
            frozenset(number[one] for one in self.graphed if one in number),
        )


@dataclass(frozen=True)
class Layer:
    """Weights (by index) that lie together and are waited for together."""

    module: int | None
    """The module that is gated, by id; None where kernel launches are."""
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Pinned:
    """Weights (by index) that stay resident, and why."""

    reason: str
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """The verdict: layers in the order of their use, and the pinned weights by reason."""

    layers: tuple[Layer, ...]
    pinned: tuple[Pinned, ...]
    launches: tuple[tuple[int, ...], ...] = ()
    """Where launches are gated: the streamed weights (by index) that each names, in order."""
    stays: tuple[Pinned, ...] = ()
    """Weights that are not moved at all: nobody knows how they are found."""


def select(owners: Sequence[frozenset[int] | set[int]], runs: Sequence[Run]) -> Selection:
    """Sort the weights whose owning modules are given, by what `runs` (at least one) show."""
    facts = [_Facts(run) for run in runs]
    reasons = {
        weight: reason
        for weight, owner in enumerate(owners)
        if (reason := _unfit(weight, owner, facts)) is not None
    }
    fit = [weight for weight in range(len(owners)) if weight not in reasons]
    enclosing = {module for one in facts for module in one.enclosing(fit)}
    for weight in fit:
        if facts[0].reader(weight) in enclosing:
            reasons[weight] = ENCLOSING
    fit = [weight for weight in fit if weight not in reasons]
    orders = [one.order(fit) for one in facts]
    steady = _steady(orders)
    layers: dict[int, list[int]] = {module: [] for module in orders[0] if module in steady}
    for weight in facts[0].readers:
        if weight in reasons:
            continue
        module = facts[0].reader(weight)
        if module in steady:
            layers[module].append(weight)
        else:
            reasons[weight] = CHANGING
    return Selection(
        layers=tuple(Layer(module, tuple(weights)) for module, weights in layers.items()),
        pinned=by_reason(reasons),
    )


def judge(
    owners: Sequence[frozenset[int] | set[int]], runs: Sequence[Run], learned: Selection | None
) -> tuple[Selection, bool]:
    """The selection that `runs` (at least one) allow, and whether that is enough to go by.

    It is if one more run asked for the same as before it, if the run shows the layers that were
    `learned` before, or after `MOST_RUNS`: then with what all of them allow.
    """
    if len(runs) >= MOST_RUNS:
        return select(owners, runs), True
    selection = select(owners, runs[-2:])
    if learned is not None and learned.layers == selection.layers:
        return selection, True
    steady = len(runs) > 1 and select(owners, runs[-3:-1]) == selection
    return selection, steady


def by_reason(reasons: dict[int, str]) -> tuple[Pinned, ...]:
    """Group pinned weights (by index) by the reason given for each."""
    groups: dict[str, list[int]] = {}
    for weight in sorted(reasons):
        groups.setdefault(reasons[weight], []).append(weight)
    return tuple(Pinned(reason, tuple(weights)) for reason, weights in sorted(groups.items()))


class _Facts:
    """One run, by weight."""

    def __init__(self, run: Run) -> None:
        self.calls = run.calls
        self.readers: dict[int, list[int]] = {}
        """The calls that read each weight; weights in the order of their first read."""
        for call, weight in run.reads:
            self.readers.setdefault(weight, []).append(call)
        self.times_called = Counter(call.module for call in run.calls)

    def reader(self, weight: int) -> int:
        """The module whose call first reads the weight."""
        return self.calls[self.readers[weight][0]].module

    def enclosing(self, fit: Sequence[int]) -> set[int]:
        """Modules whose calls lie around a call that reads a fit weight."""
        around: set[int] = set()
        for weight in fit:
            parent = self.calls[self.readers[weight][0]].parent
            while parent != OUTSIDE:
                around.add(self.calls[parent].module)
                parent = self.calls[parent].parent
        return around

    def order(self, fit: Sequence[int]) -> list[int]:
        """The modules that read fit weights, in the order of their calls."""
        return [self.calls[call].module for call in sorted({self.readers[one][0] for one in fit})]


def _unfit(weight: int, owners: frozenset[int] | set[int], facts: Sequence[_Facts]) -> str | None:
    readers = [one.readers.get(weight, []) for one in facts]
    if not any(readers):
        return NOT_READ
    for one, calls in zip(facts, readers, strict=True):
        if any(call == OUTSIDE or one.calls[call].module not in owners for call in calls):
            return NOT_OWN
        if len(calls) > 1:
            return REPEATED
    if not all(readers) or len({one.reader(weight) for one in facts}) > 1:
        return CHANGING
    if any(one.times_called[one.reader(weight)] > 1 for one in facts):
        return RECALLED
    return None


def _steady(orders: Sequence[Sequence[int]]) -> set[int]:
    """The calls that keep their order in all runs: those that match the first run's order."""
    steady = list(orders[0])
    for other in orders[1:]:
        matcher = SequenceMatcher(a=steady, b=other, autojunk=False)
        steady = [
            item
            for block in matcher.get_matching_blocks()
            for item in steady[block.a : block.a + block.size]
        ]
    return set(steady)
