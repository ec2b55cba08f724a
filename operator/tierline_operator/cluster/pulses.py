"""The liveness of agents: which are silent, and on which nodes no pod can start.

Agents write `status.lastSeen` of their MemNode every few seconds. What counts is when this operator
saw it change, not what it says: clocks of nodes differ. So a new leader hears every agent once
more before it calls one silent. A MemNode without `lastSeen`, as it is until its agent's first sign
of life, counts as well. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tierline_api.objects.conditions import Condition, ConditionStatus, ConditionType, Reason, find
from tierline_api.objects.memnode import MemNode

SILENCE_S: Final = 40.0
"""Four signs of life that did not come."""
CRASHING_S: Final = 400.0
"""Of an agent that keeps ending: the kubelet's longest pause, 5 min, before it is started again."""


@dataclass
class _Pulse:
    said: datetime
    heard: datetime | None = None
    """When it was seen first; None until the next turn."""
    silent: bool = False


class Pulses:
    """The signs of life of all agents, by node."""

    def __init__(self) -> None:
        self._of: dict[str, _Pulse] = {}
        self._ready: dict[str, Condition | None] = {}
        """The word of each MemNode on whether pods can start there."""

    def take(self, node: MemNode) -> None:
        """Note what a MemNode says now."""
        said = node.status.last_seen
        ready = find(node.status.conditions, ConditionType.READY)
        self._ready[node.name] = ready
        if said is None:
            self._of.pop(node.name, None)
            return
        known = self._of.get(node.name)
        if known is None or known.said != said:
            # An agent silent before this leader looked is silent until it says something new.
            unknown = ready is not None and ready.status is ConditionStatus.UNKNOWN
            self._of[node.name] = _Pulse(said, silent=known is None and unknown)

    def forget(self, node: str) -> None:
        """A MemNode is gone."""
        self._of.pop(node, None)
        self._ready.pop(node, None)

    def turn(self, now: datetime) -> tuple[set[str], datetime | None]:
        """Note which nodes are silent by now; returns the newly silent, and when to look again."""
        new: set[str] = set()
        next_: datetime | None = None
        for node, pulse in self._of.items():
            if pulse.silent:
                continue
            pulse.heard = pulse.heard or now
            until = pulse.heard + timedelta(seconds=self._patience_s(node))
            if until <= now:
                pulse.silent = True
                new.add(node)
            elif next_ is None or until < next_:
                next_ = until
        return new, next_

    def unfit(self, node: str) -> str:
        """Why no pod can start on a node, as a clause about it; "" if its agent is well."""
        if self._silent(node):
            return f"its agent has given no sign of life for {SILENCE_S:.0f} s"
        said = self._ready.get(node)
        if said is None or said.status is not ConditionStatus.FALSE:
            return ""
        return f"{said.message} ({said.reason})"

    def nodes(self) -> Iterator[tuple[str, str, bool]]:
        """All nodes with devices: a word for how it is, and whether pods can start there."""
        for node, said in self._ready.items():
            if self._silent(node):
                yield node, Reason.AGENT_SILENT.value, False
            else:
                yield node, said.reason if said else "", not self.unfit(node)

    def _patience_s(self, node: str) -> float:
        ready = self._ready.get(node)
        crashing = ready is not None and ready.reason == Reason.AGENT_CRASHING.value
        return CRASHING_S if crashing else SILENCE_S

    def _silent(self, node: str) -> bool:
        return node in self._of and self._of[node].silent
