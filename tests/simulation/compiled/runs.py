"""Attacks as rows, played by the compiled engine; and one of them by the product's simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.simulation.compiled.draws import Share, Stream, seeds_of
from tests.simulation.compiled.engine import play_many
from tests.simulation.compiled.records import ATTACK, SEEN
from tests.simulation.compiled.tables import Table, Tables

from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.simulation.device import Machine, Noise, Seen, simulate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern


@dataclass(frozen=True)
class Attack:
    """One run: when jobs come, and what takes less than planned."""

    first_s: tuple[float, ...]
    until_s: float
    seed: int
    sporadic: float = 0.0
    adaptive: bool = False
    delayed: int | None = None
    busy: float = 1.0
    """Probability that an idle link turns out busy at a dispatch."""
    layer_least: float = 1.0
    """Layers take a random share of their time, from this to all of it."""
    copy_least: float = 1.0
    hold: float = 0.0
    """Probability that the next share is the one before."""


@dataclass(frozen=True)
class Played:
    """What happened, a row for each attack."""

    seen: Table
    worst_s: Table
    """Longest response by attack and task, seconds."""
    finished: Table
    """(task, end) of the jobs of the first attack, in the order of their ends."""


def play(tables: Tables, attacks: Sequence[Attack], *, record: int = 0) -> Played:
    """Play all `attacks`; `record` so many jobs of the first one."""
    rows = [
        (
            attack.until_s,
            attack.sporadic,
            attack.adaptive,
            -1 if attack.delayed is None else attack.delayed,
            attack.busy,
            attack.layer_least,
            attack.copy_least,
            attack.hold,
        )
        for attack in attacks
    ]
    seen = np.zeros(len(attacks), SEEN)
    worst_s = np.zeros((len(attacks), len(tables.tasks)))
    finished = np.zeros((record, 2))
    play_many(
        tables,
        np.array(rows, ATTACK),
        np.array([attack.first_s for attack in attacks]),
        np.array([seeds_of(attack.seed) for attack in attacks], np.uint64),
        seen,
        worst_s,
        finished,
    )
    return Played(seen, worst_s, finished)


def play_reference(tasks: Sequence[TaskModel], machine: Machine, attack: Attack) -> Seen:
    """The same run on the product's simulator, with the same draws."""
    arrivals, layers, copies, links = (Stream(seed) for seed in seeds_of(attack.seed))
    pattern = Pattern(
        attack.first_s, attack.until_s, attack.sporadic, attack.adaptive, attack.delayed
    )
    noise = Noise()
    if attack.layer_least < 1:
        noise = Noise(Share(layers, attack.layer_least, attack.hold), noise.copy, noise.busy)
    if attack.copy_least < 1:
        noise = Noise(noise.layer, Share(copies, attack.copy_least, attack.hold), noise.busy)
    if attack.busy < 1:
        noise = Noise(noise.layer, noise.copy, lambda: links() < attack.busy)
    periods = [task.period_s for task in tasks]
    source = Arrivals(periods, pattern, arrivals)
    return simulate(tasks, machine, source, AgentPolicy(), noise, record=True)
