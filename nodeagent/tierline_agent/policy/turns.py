"""Which device goes next on a link that several devices share: fair turns.

The device whose last turn is longest ago goes next. Transfers for which a job waits go before those
for which none does, whichever device's they are; inside a device the most urgent goes first, which
is `transfers`.

Invariant: while a device has a transfer of a job waiting, every other device begins at most one
between two of its own, and none at all if it had its last turn after this device's. The theorem
"fair turns" of the planner's `pipeline` rests on that: of n devices each has its part of the link,
whatever the deadlines of the others and however much they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping

from tierline_agent.policy.transfers import BACKGROUND_NS

NEVER = 0
"""The last turn of a device that had none."""


def next_device(waiting: Mapping[str, int], last_turn: Mapping[str, int]) -> str:
    """Which device has the turn, among those of which something waits (at least one).

    `waiting` has the deadline of each one's most urgent transfer, `last_turn` the number of the
    turn that it had last; turns are counted from 1.
    """

    def rank(device: str) -> tuple[bool, int, str]:
        return (waiting[device] == BACKGROUND_NS, last_turn.get(device, NEVER), device)

    return min(waiting, key=rank)
