"""Claims that kube-scheduler gave back: on which node, how often, and when it is tried again.

kube-scheduler gives back a claim that is allocated where its pod does not fit, for reasons that
only it knows (processors, ports, volumes, other pods). To allocate the same node again at once
would go on for ever. So the node is barred for that claim, each time for twice as long. Pure: the
clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tierline_operator.placement.books.seats import Barred, ClaimKey

FIRST_S: Final = 10
LONGEST_S: Final = 640


@dataclass(frozen=True)
class _Return:
    times: int
    until: datetime
    over: bool = False


class Returned:
    """What is remembered of each claim, for as long as the claim is there."""

    def __init__(self) -> None:
        self._of: dict[ClaimKey, dict[str, _Return]] = {}
        self._new: list[tuple[ClaimKey, str]] = []

    def note(self, claim: ClaimKey, node: str) -> None:
        """A claim that was allocated on a node is not any more; counts from the next `turn` on."""
        self._new.append((claim, node))

    def forget(self, claim: ClaimKey) -> None:
        """The claim is gone."""
        self._of.pop(claim, None)
        self._new = [(key, node) for key, node in self._new if key != claim]

    def barred(self, claim: ClaimKey) -> tuple[Barred, ...]:
        """The nodes that are barred for a claim, by name."""
        return tuple(
            Barred(node, one.times, seconds(one.times))
            for node, one in sorted(self._of.get(claim, {}).items())
            if not one.over
        )

    def turn(self, now: datetime) -> tuple[set[ClaimKey], datetime | None]:
        """Count what is new and open what was barred for long enough.

        Returns the claims of which something changed, and when to look again.
        """
        changed = {claim for claim, _ in self._new}
        for claim, node in self._new:
            nodes = self._of.setdefault(claim, {})
            times = nodes[node].times + 1 if node in nodes else 1
            nodes[node] = _Return(times, now + timedelta(seconds=seconds(times)))
        self._new.clear()
        next_: datetime | None = None
        for claim, nodes in self._of.items():
            for node, one in nodes.items():
                if one.over:
                    continue
                if one.until <= now:
                    nodes[node] = _Return(one.times, one.until, over=True)
                    changed.add(claim)
                elif next_ is None or one.until < next_:
                    next_ = one.until
        return changed, next_


def seconds(times: int) -> int:
    """For how long a node is barred that was given back so often."""
    return min(LONGEST_S, FIRST_S << min(times - 1, 16))
