"""The margin of a run's plans, from how steady times are on this machine. Pure.

A profile has the worst of a dozen jobs; hundreds follow. Where that dozen varies little, the usual
margin of the kind of device is above what follows. Where it varies, or where what is left of the
processors does, the margin is larger by as much.

Times vary by the larger of two: the worst job of a profile above its mean; and, for what computes
on processors, how much less of them others left in some second of the profile than on average.
Programs that always take as much are no variation: they are in the profile.

A model whose jobs vary more than twofold is taken to vary by its inputs. That is its own, and its
worst is in its profile, so it is no reason to plan all others with several times what they take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tierline_api.objects.memprofile import MemProfile

STEADY: Final = 0.05
"""A variation that the usual margin has room for."""
_MOST_OF_JOBS: Final = 1.0
"""Of the variation of jobs, what a machine does; beyond it, inputs differ."""
_LEAST_LEFT: Final = 0.05
"""Of the processors; what is counted in hundredths of a second says no less."""


@dataclass(frozen=True)
class Load:
    """How others used the processors for a while; parts of all that they can do, 0 to 1."""

    stolen: float = 0.0
    """Time that the host of a virtual machine gave to others."""
    others: float = 0.0
    """Time that programs had which are not the run's."""

    @property
    def left(self) -> float:
        """Time that the run could have had."""
        return max(_LEAST_LEFT, 1 - self.stolen - self.others)


@dataclass(frozen=True)
class Steadiness:
    """How much longer than on average a time may be, as a part of it, and why."""

    variation: float = 0.0
    cause: str = ""

    @property
    def steady(self) -> bool:
        """Whether the usual margin has room for it."""
        return self.variation <= STEADY

    def margin(self, usual: float) -> float:
        """The margin to plan with where `usual` is that of a steady machine; in tenths."""
        if self.steady:
            return usual
        return max(usual, math.ceil(round(usual * (1 + self.variation - STEADY) * 10, 6)) / 10)

    def sentence(self, margin: float) -> str:
        """The sentence about it for a person."""
        return f"times vary by {self.variation:.0%} here ({self.cause}): planned with {margin:g}"


def steadiness(profiles: Mapping[str, MemProfile], loads: Sequence[Load]) -> Steadiness:
    """How steady times are: of the jobs in `profiles`, by task, and under the `loads` meanwhile.

    Both were measured here and now.
    """
    jobs = [
        Steadiness(min(spread(one), _MOST_OF_JOBS), f"jobs of {name}")
        for name, one in profiles.items()
    ]
    return max([Steadiness(), *jobs, _of_loads(loads)], key=lambda one: one.variation)


def spread(profile: MemProfile) -> float:
    """How much longer than the mean a profile's worst job was, as a part of the mean.

    Of several arenas, the most; 0 without means.
    """
    worst: dict[int, float] = {}
    mean: dict[int, float] = {}
    for layer in profile.spec.layers:
        if layer.mean_compute_time_s is not None:
            worst[layer.arena] = worst.get(layer.arena, 0.0) + layer.compute_time_s
            mean[layer.arena] = mean.get(layer.arena, 0.0) + layer.mean_compute_time_s
    return max((worst[arena] / mean[arena] - 1 for arena in mean if mean[arena]), default=0.0)


def _of_loads(loads: Sequence[Load]) -> Steadiness:
    if not loads:
        return Steadiness()
    worst = min(loads, key=lambda load: load.left)
    more_stolen = worst.stolen - fmean(load.stolen for load in loads)
    more_used = worst.others - fmean(load.others for load in loads)
    cause = "the machine's host takes" if more_stolen > more_used else "other programs use"
    average = fmean(load.left for load in loads)
    return Steadiness(average / worst.left - 1, f"{cause} the processors")
