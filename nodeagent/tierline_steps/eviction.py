"""Run an order within an arena: what does not fit goes, and is made again when it is needed.

The order may run operators again. It says when each value is needed next, and which are made again
before that: these go first, and are not made again as long as they are there. When a result needs
more room, what costs least goes: the time to make a value again (with all that is gone and must be
made again for it, and a share of what is gone and would be made from it), by its size and by how
long it is not needed. Nothing goes that cannot be made again. What results is an order with other
repetitions; whether it fits says its `Schedule`.

Costs look at a value's neighbourhood only (`_REACH` values): they are estimates.
"""

from dataclasses import dataclass, field

from tierline_steps.schedule import Problem

_REACH = 64
_NEVER = (1 << 60) + 1
_MOST_RUNS = 6  # of each operator, on average: what needs more will not get anywhere
_KEPT = 1e30
_MADE_ANYWAY = 1e-6
"""The worth of keeping a value that the order makes again, by the time that making it takes."""
_AT_THE_END = 1e3
"""The same for one that nothing but the program reads: all that it is made from is gone by then."""


@dataclass(frozen=True, slots=True)
class Taste:
    """How much the time until the next use counts, and what is made from a value that is gone."""

    patience: float
    share: float


def evicted(problem: Problem, base: list[int], arena_bytes: int, taste: Taste) -> list[int] | None:
    """An order with repetitions that should fit; None if it finds none."""
    run = _Run(problem, base, arena_bytes, taste)
    return run.steps if run.go() else None


@dataclass
class _Run:
    problem: Problem
    base: list[int]
    arena_bytes: int
    taste: Taste
    steps: list[int] = field(default_factory=list)
    used: int = 0
    now: int = 0

    def __post_init__(self) -> None:
        count = len(self.problem.sizes)
        self.events: list[list[int]] = [[] for _ in range(count)]  # step * 2, + 1 where made
        for step, operator in enumerate(self.base):
            for value in self.problem.reads[operator]:
                self.events[value].append(step * 2)
            for value in self.problem.writes[operator]:
                self.events[value].append(step * 2 + 1)
        self.at = [0] * count
        self.ran: set[int] = set()
        self.there, self.made = [False] * count, [False] * count
        self.pinned, self.wanted = [0] * count, [0] * count
        self.candidates: set[int] = set()
        self.stale = [True] * count
        self.cost, self.after, self.need = [0.0] * count, [0.0] * count, [0] * count
        self.least = min(1 << 20, self.arena_bytes // 2000)
        begins = [0]
        for operator in self.base:
            begins.append(begins[-1] + self.problem.times[operator])
        self.begins = begins

    def go(self) -> bool:
        for index, operator in enumerate(self.base):
            self.now = index
            if not self._is_there(operator) and not self._run(operator):
                return False
            self.now = index + 1
            for value in self.problem.reads[operator] + self.problem.writes[operator]:
                if self.there[value] and self._is_spent(value):
                    self._drop(value)
        self.now = len(self.base)
        for value, stays in enumerate(self.problem.live_out):
            if stays:
                if not self.there[value] and not self._make(value):
                    return False
                self.pinned[value] += 1
        return True

    def _is_there(self, operator: int) -> bool:
        """Whether it ran, and all that it made and that is read before it runs again is there."""
        return operator in self.ran and all(
            self.there[value] or self._event(value, self.now * 2 + 2) & 1
            for value in self.problem.writes[operator]
        )

    def _is_spent(self, value: int) -> bool:
        return self._event(value, self.now * 2) == _NEVER and self._reads_again(value) is None

    def _event(self, value: int, since: int) -> int:
        """The next use of it in the order: step * 2 to read it, + 1 to make it again.

        Odd, too, if nothing reads it any more. `since` only ever grows.
        """
        events, at = self.events[value], self.at[value]
        while at < len(events) and events[at] < since:
            at += 1
        self.at[value] = at
        if at < len(events):
            return events[at]
        return len(self.base) * 2 if self.problem.live_out[value] else _NEVER

    def _run(self, operator: int) -> bool:
        reads, writes = self.problem.reads[operator], self.problem.writes[operator]
        for value in reads:
            self.pinned[value] += 1
        fits = all(self.there[value] or self._make(value) for value in reads)
        # making one may have let another go
        fits = fits and all(self.there[value] or self._make(value) for value in reads)
        if fits:
            new = sum(self.problem.sizes[value] for value in writes if not self.there[value])
            fits = self._has_room(new + self.problem.workspaces[operator])
        fits = fits and len(self.steps) < _MOST_RUNS * len(self.problem.times)
        if fits:
            self.steps.append(operator)
            self.ran.add(operator)
            for value in writes:
                if not self.there[value]:
                    self._add(value)
                    self.made[value] = True
        for value in reads:
            self.pinned[value] -= 1
        return fits

    def _make(self, value: int) -> bool:
        """Make a value again, and before it all that is gone and needed for it, as base orders."""
        writer, reads = self.problem.writer, self.problem.reads
        found: set[int] = set()
        todo = [value]
        while todo:
            operator = writer[todo.pop()]
            if operator not in found:
                if self.made[self.problem.writes[operator][0]] and self.problem.once[operator]:
                    return False
                found.add(operator)
                todo += [one for one in reads[operator] if not self.there[one]]
        operators = sorted(found)
        for operator in operators:
            for one in reads[operator]:
                self.wanted[one] += 1
        fits = True
        for index, operator in enumerate(operators):
            if fits and self._is_wanted(operator, operators[index + 1 :], value):
                fits = self._run(operator)
            for one in reads[operator]:
                self.wanted[one] -= 1
        return fits and (self.there[value] or self._run(writer[value])) and self.there[value]

    def _is_wanted(self, operator: int, later: list[int], value: int) -> bool:
        if operator == self.problem.writer[value]:
            return not self.there[value]
        missing = {one for one in self.problem.writes[operator] if not self.there[one]}
        return bool(missing) and any(
            not missing.isdisjoint(self.problem.reads[one]) for one in later
        )

    def _add(self, value: int) -> None:
        self.there[value] = True
        self.used += self.problem.sizes[value]
        if self.problem.sizes[value] > self.least:
            self.candidates.add(value)
            self._touch(value)

    def _drop(self, value: int) -> None:
        self.there[value] = False
        self.used -= self.problem.sizes[value]
        if value in self.candidates:
            self.candidates.remove(value)
            self._touch(value)

    def _touch(self, value: int) -> None:
        """What is made from it, or for it, through values that are gone costs something else."""
        problem, stale, there, made = self.problem, self.stale, self.there, self.made
        stale[value] = True
        seen, todo = {value}, [value]
        for one in todo:
            for reader in problem.readers[one]:
                for result in problem.writes[reader]:
                    if result not in seen:
                        seen.add(result)
                        stale[result] = True
                        if made[result] and not there[result] and len(todo) < _REACH:
                            todo.append(result)
        seen, todo = {value}, [value]
        for one in todo:
            operator = problem.writer[one]
            for operand in problem.reads[operator]:
                if operand not in seen:
                    seen.add(operand)
                    stale[operand] = True
                    if not there[operand] and len(todo) < _REACH:
                        todo.append(operand)

    def _has_room(self, more: int) -> bool:
        excess = self.used + more - self.arena_bytes
        if excess <= 0:
            return True
        free = [one for one in self.candidates if not self.pinned[one]]
        ranked = sorted((self._score(one), one) for one in free)
        for wanted in (False, True):
            for score, value in ranked:
                if score >= _KEPT:
                    break
                if self.there[value] and bool(self.wanted[value]) is wanted:
                    self._drop(value)
                    excess -= self.problem.sizes[value]
                    if excess <= 0:
                        return True
        return False

    def _score(self, value: int) -> float:
        if self.stale[value] or self.need[value] < self.now * 2:
            self._estimate(value)
        need = self.need[value]
        if need == _NEVER:
            return -1.0
        if self.cost[value] >= _KEPT:
            return _KEPT
        idle = max(self.begins[need >> 1] - self.begins[self.now], 1)
        cost = self.cost[value] + self.taste.share * self.after[value] + 1.0
        score = float(cost / (self.problem.sizes[value] * idle**self.taste.patience))
        if need & 1:
            return score * _MADE_ANYWAY
        return score * _AT_THE_END if need == len(self.base) * 2 else score

    def _estimate(self, value: int) -> None:
        problem, there = self.problem, self.there
        need, after = self._event(value, self.now * 2), 0.0
        again = self._reads_again(value)
        if again is not None:
            need, after = min(need, again[0]), again[1]
        cost, seen, todo = 0.0, {value}, [value]
        while todo and len(seen) < _REACH and need != _NEVER:
            operator = problem.writer[todo.pop()]
            if problem.once[operator]:
                cost = _KEPT
                break
            cost += problem.times[operator]
            for one in problem.reads[operator]:
                if not there[one] and one not in seen:
                    seen.add(one)
                    todo.append(one)
        self.need[value], self.after[value], self.cost[value] = need, after, cost
        self.stale[value] = False

    def _reads_again(self, value: int) -> tuple[int, float] | None:
        """When what is made from it and gone is needed first, and what making that takes."""
        problem, there, made = self.problem, self.there, self.made
        first, cost, seen, todo = _NEVER, 0.0, {value}, [value]
        while todo and len(seen) < _REACH:
            for reader in problem.readers[todo.pop()]:
                gone = False
                for one in problem.writes[reader]:
                    if made[one] and not there[one] and problem.sizes[one] > self.least:
                        need = self._event(one, self.now * 2)
                        if need & 1:  # the order makes it, and reads what that takes
                            continue
                        gone = True
                        if one not in seen:
                            seen.add(one)
                            first = min(first, need)
                            todo.append(one)
                if gone:
                    cost += problem.times[reader]
        return None if first == _NEVER else (first, cost)
