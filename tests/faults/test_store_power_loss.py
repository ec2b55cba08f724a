"""Take the power away at every step: of the writes since the last flush, any part may survive."""

from __future__ import annotations

import random

import pytest
from tests.unit.agent.tiers.media_models import MemoryMedium, WatchedMedium, content

from tierline_agent.tiers import CorruptExtent, Store, digest_of, domain_key
from tierline_agent.tiers.format import smallest_medium
from tierline_agent.tiers.memory import scratch

EXTENT_BYTES = 1 << 16
SLOTS = 3
SIZE_BYTES = smallest_medium(EXTENT_BYTES) + (SLOTS - 1) * EXTENT_BYTES
KEY = domain_key("faults")
LOSSES_PER_STEP = 12


class PowerLossError(Exception):
    """The machine went dark."""


class Life:
    """One run of a workload that reuses every slot, quarantines one and repairs it."""

    def __init__(self, steps: int) -> None:
        self.memory = MemoryMedium(SIZE_BYTES)
        self.left = steps
        self.held: dict[bytes, int] = {}
        self.spoiled: set[bytes] = set()

    def step(self, _operation: str, _offset: int) -> None:
        if self.left == 0:
            raise PowerLossError
        self.left -= 1

    def run(self) -> None:
        store = Store.open(WatchedMedium(self.memory, self.step), EXTENT_BYTES)
        for seed in range(3 * SLOTS):
            if len(self.held) == SLOTS - 1:
                oldest = next(iter(self.held))
                del self.held[oldest]
                store.release(oldest)
            self.held[store.put(KEY, content(seed, self.size(seed)))] = seed
        digest, seed = next(iter(self.held.items()))
        data = content(seed, self.size(seed))
        self.memory.content[self.memory.content.index(bytes(data[:64]))] ^= 1
        self.spoiled.add(digest)
        with pytest.raises(CorruptExtent):
            store.read_into(digest, KEY, scratch(EXTENT_BYTES))
        store.put(KEY, data)
        self.spoiled.clear()

    @staticmethod
    def size(seed: int) -> int:
        return EXTENT_BYTES - 5000 * (seed % 3)


@pytest.mark.slow
def test_power_lost_at_each_step() -> None:
    chance = random.Random(11)  # noqa: S311 - reproducible, not secret
    steps, done = 0, False
    while not done:
        life = Life(steps)
        try:
            life.run()
            done = True
        except PowerLossError:
            pass
        for _ in range(LOSSES_PER_STEP):
            _check(life, life.memory.after_power_loss(chance))
        steps += 1
    assert steps > 60, "the workload should have many steps"


def _check(life: Life, survivor: MemoryMedium) -> None:
    store = Store.open(survivor, EXTENT_BYTES)
    there = set(store.digests())
    assert set(life.held) - life.spoiled <= there
    target = scratch(EXTENT_BYTES)
    for digest in there - life.spoiled:
        length = store.read_into(digest, KEY, target)
        assert digest_of(KEY, target[:length]) == digest
        if digest in life.held:
            seed = life.held[digest]
            assert target[:length] == content(seed, life.size(seed))
    state = store.statistics()
    assert state.corruptions == 0
    assert state.free + state.stored + state.unsound + state.retired == state.slots
    for seed in range(state.slots):
        store.put(KEY, content(100 + seed, EXTENT_BYTES))
    assert store.statistics().stored == state.slots
