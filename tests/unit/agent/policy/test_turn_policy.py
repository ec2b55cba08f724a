"""Devices that share a link get what each was promised, whatever the others do.

The policy is played in virtual time with a link that is as unfair between the two extents on their
way as the planner's theorem allows. No job of any device takes longer than the pipeline recursion
says for its part of the link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.unit.planning.shapes import random_layout

from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT
from tierline_agent.policy.turns import next_device
from tierline_api.layout import ArenaLayout
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline

EXTENT_BYTES = 100
BANDWIDTH = 100.0
OVERHEAD_S = 0.125
TOLERANCE_S = 1e-9


@pytest.mark.parametrize(
    ("waiting", "last_turn", "goes"),
    [
        pytest.param({"a": 9, "b": 5}, {}, "a", id="nobody had a turn: by name, not by deadline"),
        pytest.param({"a": 5, "b": 9}, {"a": 1}, "b", id="who had none goes before who had one"),
        pytest.param({"a": 5, "b": 9}, {"a": 4, "b": 3}, "b", id="whose turn is longest ago"),
        pytest.param({"a": 5}, {"a": 4, "b": 3}, "a", id="no turn is kept for who does not wait"),
        pytest.param(
            {"a": 5, "b": BACKGROUND_NS}, {"a": 4}, "a", id="what no job waits for goes last"
        ),
        pytest.param(
            {"a": BACKGROUND_NS, "b": BACKGROUND_NS}, {"a": 4}, "b", id="and in turns as well"
        ),
    ],
)
def test_whose_turn_it_is(waiting: dict[str, int], last_turn: dict[str, int], goes: str) -> None:
    assert next_device(waiting, last_turn) == goes


@dataclass
class Reader:
    """The jobs of one device, one after another, all streamed."""

    name: str
    layout: ArenaLayout
    compute_s: list[float]
    ring: int
    jobs: int
    longest_s: float = 0.0
    began_s: float = 0.0
    layer: int = 0
    layer_ends_s: float = math.inf
    asked: int = 0
    waiting: list[int] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)

    def move_to(self, now_s: float) -> None:
        """Compute and ask for extents as far as that goes now."""
        while self.jobs:
            if self.layer_ends_s <= now_s + TOLERANCE_S:
                self.layer_ends_s = math.inf
                self.layer += 1
            elif self.layer == self.layout.layer_count:
                self.longest_s = max(self.longest_s, now_s - self.began_s)
                self.jobs -= 1
                self.began_s, self.layer, self.asked, self.arrived = now_s, 0, 0, set()
            elif self._may_ask():
                self.waiting.append(self.asked)
                self.asked += 1
            elif self.layer_ends_s == math.inf and self._may_compute():
                self.layer_ends_s = now_s + self.compute_s[self.layer]
            else:
                return

    def _may_ask(self) -> bool:
        before = self.asked - self.ring
        return self.asked < self.layout.extent_count and (
            before < 0 or self.layout.last_layer[before] < self.layer
        )

    def _may_compute(self) -> bool:
        needed = max(self.layout.last_extent[: self.layer + 1], default=-1)
        return all(extent in self.arrived for extent in range(needed + 1))


@dataclass(eq=False)
class Flight:
    """An extent on its way."""

    reader: Reader
    number: int
    left_s: float
    overtaken: bool = False


def play(readers: list[Reader], rng: np.random.Generator) -> None:
    """Serve all jobs, with whatever part for each extent, which changes at every event."""
    now_s, turn, last_turn = 0.0, 0, dict[str, int]()
    flight: list[Flight] = []
    by_name = {reader.name: reader for reader in readers}
    while any(reader.jobs for reader in readers):
        for reader in readers:
            reader.move_to(now_s)
        while len(flight) < IN_FLIGHT and (
            waiting := {reader.name: 0 for reader in readers if reader.waiting}
        ):
            reader = by_name[next_device(waiting, last_turn)]
            turn += 1
            last_turn[reader.name] = turn
            number = reader.waiting.pop(0)
            size = reader.layout.extent_sizes[number]
            flight.append(Flight(reader, number, size / BANDWIDTH + OVERHEAD_S))
        parts = [1.0]
        if len(flight) == IN_FLIGHT:
            first = 1.0 if flight[0].overtaken else float(rng.choice([0.0, 0.5, 1.0]))
            parts = [first, 1.0 - first]
        ends_s = [
            now_s + one.left_s / part if part else math.inf
            for one, part in zip(flight, parts, strict=False)
        ]
        next_s = min([*ends_s, *(reader.layer_ends_s for reader in readers)])
        for one, part in zip(flight, parts, strict=False):
            one.left_s -= part * (next_s - now_s)
        now_s = next_s
        for one in [one for one in flight if one.left_s <= TOLERANCE_S]:
            for earlier in flight[: flight.index(one)]:
                earlier.overtaken = True
            flight.remove(one)
            one.reader.arrived.add(one.number)


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_each_device_meets_what_its_part_of_the_link_promises(devices: int) -> None:
    rng = np.random.default_rng(devices)
    tightest = 0.0
    for _ in range(24):
        readers = []
        for number in range(devices):
            layout = random_layout(rng, pinned=False)
            widest = max(
                last - first + 1
                for first, last in zip(layout.first_extent, layout.last_extent, strict=True)
            )
            scale = float(rng.choice([0.0, 0.3, 3.0]))
            compute_s = [float(seconds) * scale for seconds in rng.random(layout.layer_count)]
            ring = max(1, widest) + int(rng.integers(0, 4))
            readers.append(Reader(f"gpu-{number}", layout, compute_s, ring, jobs=6))
        play(readers, rng)
        link = LinkRate(
            *(BANDWIDTH, OVERHEAD_S, IN_FLIGHT), devices=devices, turn_bytes=EXTENT_BYTES
        )
        for reader in readers:
            extents = [0] * reader.layout.extent_count
            promised = Pipeline(reader.layout, reader.compute_s, extents, [link])
            promised_s = promised.total_s(frozenset(), reader.ring)
            assert reader.longest_s <= promised_s + TOLERANCE_S
            if promised_s and not any(reader.compute_s):
                tightest = max(tightest, reader.longest_s / promised_s)
    assert tightest > 0.7, "the promise is far from what can happen"
