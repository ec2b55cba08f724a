"""Results of a few operators: which to keep and which to make again, at a price for each byte.

A minimum cut. A value that is wanted is kept, which costs its bytes at the price, or its operator
runs again, which costs its time once and wants what that reads.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from tierline_steps.schedule import Problem

_SOURCE, _SINK = 0, 1
_ALL = float(1 << 62)
_LEAST = 1e-6


def kept(
    problem: Problem,
    operators: Sequence[int],
    wanted: Iterable[int],
    there: Collection[int],
    again: Collection[int],
    price: float,
) -> frozenset[int]:
    """The cheapest set of values, of those that the operators make.

    What is `there` needs neither; what is made `again` is not kept; nor is what an operator makes
    that cannot run again, as it is there.
    """
    network = _Network()
    values = [
        value
        for operator in operators
        if not problem.once[operator]
        for value in problem.writes[operator]
        if value not in there
    ]
    at = {value: network.node() for value in values}
    runs = {operator: network.node() for operator in operators}
    for value in wanted:
        if value in at:
            network.join(_SOURCE, at[value], _ALL)
    for value, node in at.items():
        cost = _ALL if value in again else price * problem.sizes[value]
        network.join(node, runs[problem.writer[value]], cost)
    for operator, node in runs.items():
        network.join(node, _SINK, float(problem.times[operator]))
        for value in problem.reads[operator]:
            if value in at:
                network.join(node, at[value], _ALL)
    near = network.cut()
    return frozenset(
        value
        for value, node in at.items()
        if node in near and runs[problem.writer[value]] not in near
    )


class _Network:
    """Nodes and pipes; a pipe's index is even, its reverse is the next."""

    def __init__(self) -> None:
        self.pipes: list[list[int]] = [[], []]
        self.ends: list[int] = []
        self.left: list[float] = []

    def node(self) -> int:
        self.pipes.append([])
        return len(self.pipes) - 1

    def join(self, start: int, end: int, width: float) -> None:
        for node, other, left in ((start, end, width), (end, start, 0.0)):
            self.pipes[node].append(len(self.ends))
            self.ends.append(other)
            self.left.append(left)

    def cut(self) -> set[int]:
        """The nodes on the source's side, once as much flows as can (Edmonds and Karp 1972)."""
        while True:
            came = self._reached()
            if _SINK not in came:
                return set(came)
            path, node = [], _SINK
            while node != _SOURCE:
                path.append(came[node])
                node = self.ends[came[node] ^ 1]
            flow = min(self.left[pipe] for pipe in path)
            for pipe in path:
                self.left[pipe] -= flow
                self.left[pipe ^ 1] += flow

    def _reached(self) -> dict[int, int]:
        """By which pipe each node is reached first."""
        came = {_SOURCE: -1}
        todo = deque([_SOURCE])
        while todo and _SINK not in came:
            for pipe in self.pipes[todo.popleft()]:
                end = self.ends[pipe]
                if self.left[pipe] > _LEAST and end not in came:
                    came[end] = pipe
                    todo.append(end)
        return came
