"""Claims that kube-scheduler gave back: from which nodes, how often, and when one is tried again.

kube-scheduler gives back a claim that is allocated where its pod does not fit, for reasons that
only it knows (processors, ports, volumes, other pods). To allocate the same node again at once
would go on for ever. So each node is barred from which a claim was given back. Nodes that were not
tried are tried first; of the barred ones a single one opens at a time, the one given back longest
ago, and from one to the next the claim waits twice as long: what a pod costs that fits nowhere
does not grow with the number of nodes.

A claim that was given back stays so until its pod is bound, or until kube-scheduler has let it
keep a place for `TRIAL_S`: no place is news before. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tierline_operator.placement.books.seats import ClaimKey

FIRST_S: Final = 10
LONGEST_S: Final = 120
TRIAL_S: Final = 60
"""kube-scheduler looks at a pod again 10 s after it found no node, and at once at a new one."""


@dataclass
class _Given:
    """The memory of one claim."""

    nodes: dict[str, bool] = field(default_factory=dict)
    """Whether each is barred; the one from which it was given back longest ago first."""
    times: int = 0
    placed: bool = False
    due: datetime | None = None
    """When the next node opens; of a claim that has a place, when that is taken for good."""
    settled: bool = False

    @property
    def wait_s(self) -> int:
        """How long until the next node opens."""
        again = self.times - len(self.nodes)
        return min(LONGEST_S, FIRST_S << min(again, 16))

    @property
    def barred(self) -> tuple[str, ...]:
        """Nodes that are not tried now, in the order in which they open."""
        return tuple(node for node, barred in self.nodes.items() if barred)


class Returned:
    """The memory of each claim, until its pod is bound or it is gone."""

    def __init__(self) -> None:
        self._of: dict[ClaimKey, _Given] = {}
        self._new: list[tuple[ClaimKey, str]] = []
        self._placed: set[ClaimKey] = set()

    def note(self, claim: ClaimKey, node: str) -> None:
        """A claim that was allocated on a node is not any more; counts from the next `turn` on."""
        self._new.append((claim, node))
        self._placed.discard(claim)

    def place(self, claim: ClaimKey) -> None:
        """A claim is allocated; counts from the next `turn` on."""
        self._placed.add(claim)

    def forget(self, claim: ClaimKey) -> None:
        """The claim is gone, or its pod is bound."""
        self._of.pop(claim, None)
        self._placed.discard(claim)
        self._new = [(key, node) for key, node in self._new if key != claim]

    def barred(self, claim: ClaimKey) -> tuple[str, ...]:
        """The nodes that are barred for a claim, by name."""
        given = self._of.get(claim)
        return tuple(sorted(given.barred)) if given else ()

    def nodes(self, claim: ClaimKey) -> tuple[str, ...]:
        """From which nodes a claim was given back, barred or not, by name; none once settled."""
        given = self._of.get(claim)
        return tuple(sorted(given.nodes)) if given and not given.settled else ()

    def times(self, claim: ClaimKey) -> int:
        """How often a claim was given back."""
        given = self._of.get(claim)
        return given.times if given else 0

    def turn(self, now: datetime) -> tuple[set[ClaimKey], datetime | None]:
        """Count what is new, open what is due and settle what has kept its place.

        Returns the claims of which something changed, and when to look again.
        """
        changed = {claim for claim, _ in self._new}
        for claim, node in self._new:
            given = self._of.setdefault(claim, _Given())
            given.nodes.pop(node, None)
            given.nodes[node] = True
            given.times += 1
            given.placed = given.settled = False
            given.due = now + timedelta(seconds=given.wait_s)
        self._new.clear()
        for claim in self._placed & self._of.keys():
            given = self._of[claim]
            given.placed, given.due = True, now + timedelta(seconds=TRIAL_S)
        self._placed.clear()
        for claim, given in self._of.items():
            if given.due is not None and given.due <= now:
                self._come_due(given, now)
                changed.add(claim)
        times = (given.due for given in self._of.values() if given.due is not None)
        return changed, min(times, default=None)

    @staticmethod
    def _come_due(given: _Given, now: datetime) -> None:
        given.due = None
        if given.placed:
            given.settled = True
            return
        given.nodes[given.barred[0]] = False
        if given.barred:
            given.due = now + timedelta(seconds=given.wait_s)
