"""The verdict on one task: where its pods are, with which plans, and why others wait.

Values for the writer of status; the sentences are made here, because here the causes are known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final

from tierline_api.objects.conditions import ConditionStatus, Reason
from tierline_api.objects.memtask import MemTaskSpec
from tierline_api.objects.memtask_status import Phase, Remeasured
from tierline_operator.placement.books.seats import DeviceKey, Seat
from tierline_operator.planning.answer import Infeasible

_REASONS: Final = {
    "deadline": Reason.DEADLINE_INFEASIBLE,
    "memory": Reason.MEMORY_INSUFFICIENT,
    "ring": Reason.RING_TOO_SMALL,
    "tier": Reason.TIER_INSUFFICIENT,
}


@dataclass(frozen=True)
class Refusal:
    """Why a task has no place; of several devices, where it came nearest."""

    reason: Reason
    sentence: str
    device: DeviceKey | None = None
    missing_bytes: int | None = None
    shortfall_s: float | None = None
    relief: str | None = None
    """Which pods would make room; None as long as nobody has looked."""

    @property
    def text(self) -> str:
        """All that is to be said."""
        return f"{self.sentence}; {self.relief}" if self.relief else self.sentence

    @property
    def has_figures(self) -> bool:
        """Whether it says how much is missing."""
        return self.missing_bytes is not None or self.shortfall_s is not None

    def told(self, namespace: str, before: str, name: str) -> Refusal:
        """The same about a task of another name that is alike."""
        if name == before or not self.has_figures:
            return self
        one = rf"(?<![\w.-]){re.escape(f'{namespace}/{before}')}(?![\w-]|\.\w)"
        sentence = re.sub(one, lambda _: f"{namespace}/{name}", self.sentence)
        return replace(self, sentence=sentence)

    @property
    def distance(self) -> tuple[int, float, float, str]:
        """Sorts refusals, the nearest first."""
        last = 3 if self.reason is Reason.NOT_SCHEDULABLE else 2  # no room would help there
        return (
            0 if self.missing_bytes is not None else 1 if self.shortfall_s is not None else last,
            self.missing_bytes or 0,
            self.shortfall_s if self.shortfall_s is not None else math.inf,
            str(self.device),
        )


def refusal_of(answer: Infeasible, device: DeviceKey) -> Refusal:
    """The planner's refusal as placement reports it."""
    return Refusal(
        _REASONS[answer.kind], answer.sentence, device, answer.missing_bytes, answer.shortfall_s
    )


@dataclass(frozen=True)
class Said:
    """One condition: whether it holds, a word for scripts and a sentence for people."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on a task, for its status."""

    profiled: Said
    admitted: Said
    phase: Phase
    seats: tuple[Seat, ...]
    """In the order of admission."""
    granted: MemTaskSpec | None
    """The spec by which its seats are planned."""
    granted_generation: int | None
    remeasured: tuple[Remeasured, ...] = ()
    """By what times it is planned since its jobs over-ran, by node."""
    unproven: str = ""
    """Why it does not hold by what jobs were measured to take, if it does not."""
