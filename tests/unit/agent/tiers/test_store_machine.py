"""The store against a dictionary: whatever is done to it, in whatever order."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tests.unit.agent.tiers.media_models import MemoryMedium, content

from tierline_agent.tiers import CorruptExtent, NoSpace, Store, UnknownExtent, domain_key
from tierline_agent.tiers.format import smallest_medium
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.memory import scratch

EXTENT_BYTES = 1 << 16
SLOTS = 4
KEYS = [domain_key("vision"), domain_key("speech")]
SIZES = [1, 4096, 5000, EXTENT_BYTES]
CONTENT = {seed: bytes(content(seed, SIZES[seed % len(SIZES)])) for seed in range(8)}


class StoreMachine(RuleBasedStateMachine):
    """Model: content by digest, references by digest, the set of what must be found corrupt."""

    def __init__(self) -> None:
        super().__init__()
        size_bytes = smallest_medium(EXTENT_BYTES) + (SLOTS - 1) * EXTENT_BYTES
        self.medium = MemoryMedium(size_bytes)
        self.store = Store.open(self.medium, EXTENT_BYTES)
        self.slots = self.store.statistics().slots
        self.bytes: dict[bytes, tuple[int, bytes]] = {}  # every digest ever seen
        self.references: dict[bytes, int] = {}
        self.spoiled: set[bytes] = set()  # to be found corrupt, if they are still there
        self.chance = random.Random(0)  # noqa: S311 - reproducible, not secret

    seen = Bundle("seen")
    held = Bundle("held")

    @rule(target=seen, domain=st.integers(0, 1), seed=st.sampled_from(sorted(CONTENT)))
    def put(self, domain: int, seed: int) -> bytes:
        data = scratch(len(CONTENT[seed]))
        data[:] = CONTENT[seed]
        try:
            digest = self.store.put(KEYS[domain], data)
        except NoSpace:
            held = sum(count > 0 for count in self.references.values())
            assert held + self.store.statistics().retired >= self.slots
            return bytes(32)
        if self.store.statistics().repaired > self.repaired:
            self.spoiled.discard(digest)
        self.repaired = self.store.statistics().repaired
        self.bytes[digest] = (domain, CONTENT[seed])
        self.references[digest] = self.references.get(digest, 0) + 1
        return digest

    repaired = 0

    @rule(target=held, digest=seen)
    def acquire(self, digest: bytes) -> bytes:
        try:
            length = self.store.acquire(digest)
        except UnknownExtent:
            assert not self.references.get(digest)
            return bytes(32)
        except CorruptExtent:
            assert digest in self.spoiled
            return bytes(32)
        assert length == len(self.bytes[digest][1])
        self.references[digest] = self.references.get(digest, 0) + 1
        return digest

    @rule(digest=st.one_of(seen, consumes(held)))
    def release(self, digest: bytes) -> None:
        if self.references.get(digest):
            self.store.release(digest)
            self.references[digest] -= 1

    @rule(digest=seen)
    def read(self, digest: bytes) -> None:
        domain, expected = self.bytes.get(digest, (0, b""))
        target = scratch(EXTENT_BYTES)
        try:
            length = self.store.read_into(digest, KEYS[domain], target)
        except UnknownExtent:
            assert not self.references.get(digest)
        except CorruptExtent:
            assert digest in self.spoiled
        else:
            assert bytes(target[:length]) == expected
            # Rotten content may have been evicted and put again, which made it right.
            self.spoiled.discard(digest)

    @rule(digest=seen)
    def spoil(self, digest: bytes) -> None:
        """Flip a bit of the content, wherever the medium has it (maybe in a freed slot)."""
        _, expected = self.bytes.get(digest, (0, b""))
        for slot in range(self.slots):
            start = self.medium.size_bytes - BLOCK_BYTES - (self.slots - slot) * EXTENT_BYTES
            stored = self.medium.content[start : start + len(expected)]
            if expected and stored == expected:
                self.medium.content[start + len(expected) - 1] ^= 1
                self.spoiled.update(
                    other for other, (_, same) in self.bytes.items() if same == expected
                )

    @rule(power_loss=st.booleans())
    def restart(self, power_loss: bool) -> None:
        if power_loss:
            self.medium = self.medium.after_power_loss(self.chance)
        else:
            self.medium = self.medium.reopened()
        before = set(self.store.digests())
        self.store = Store.open(self.medium, EXTENT_BYTES)
        self.repaired = 0
        # Content that a failing medium left unsound in memory is sound again until read.
        assert set(self.store.digests()) == before
        self.references.clear()

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        state = self.store.statistics()
        assert state.slots == self.slots
        assert state.free + state.stored + state.unsound + state.retired == state.slots
        assert state.writing == 0
        assert state.referenced == sum(count > 0 for count in self.references.values())

    @invariant()
    def what_is_referenced_is_there(self) -> None:
        there = set(self.store.digests()) | self.spoiled
        assert {digest for digest, count in self.references.items() if count} <= there


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, database=None
)
TestStoreMachine = StoreMachine.TestCase
