from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.tiers.format import (
    MAX_EXTENT_BYTES,
    MIN_EXTENT_BYTES,
    Record,
    SlotState,
    Superblock,
    check_extent_bytes,
    decode_record,
    decode_superblock,
    lay_out,
    smallest_medium,
)
from tierline_agent.tiers.medium import BLOCK_BYTES

UUID = bytes(range(16))
EXTENT_BYTES = 1 << 16
RECORD = Record(SlotState.STORED, 7, 1000, b"d" * 32, b"t" * 16)

extent_sizes = st.sampled_from([1 << power for power in range(16, 31)])


@given(extent_sizes, st.integers(0, 1 << 42))
def test_everything_lies_inside_the_medium_and_apart(extent_bytes: int, medium_bytes: int) -> None:
    geometry = lay_out(extent_bytes, medium_bytes)
    if geometry is None:
        assert medium_bytes < smallest_medium(extent_bytes)
        return
    last = geometry.slot_count - 1
    assert geometry.record_offset(0, 0) == BLOCK_BYTES
    assert geometry.record_offset(last, 1) + BLOCK_BYTES <= geometry.data_offset
    assert geometry.data_offset % min(extent_bytes, 2 << 20) == 0
    assert geometry.slot_offset(last) + extent_bytes <= geometry.last_block
    assert geometry.last_block + BLOCK_BYTES <= medium_bytes
    assert geometry.last_block % BLOCK_BYTES == 0
    # No slot is wasted but for alignment.
    wasted = geometry.last_block - (geometry.slot_offset(last) + extent_bytes)
    assert wasted < extent_bytes + (2 << 20) + BLOCK_BYTES


@given(extent_sizes, st.integers(1, 10_000))
def test_the_smallest_medium_holds_exactly_so_many_slots(extent_bytes: int, slots: int) -> None:
    smallest = smallest_medium(extent_bytes, slots)
    geometry = lay_out(extent_bytes, smallest)
    assert geometry is not None
    assert geometry.slot_count == slots
    smaller = lay_out(extent_bytes, smallest - BLOCK_BYTES)
    assert (smaller.slot_count if smaller else 0) < slots


@pytest.mark.parametrize("extent_bytes", [0, -1, 1, 3 << 20, 1 << 15, 1 << 31, (1 << 22) + 1])
def test_an_odd_extent_size_is_refused(extent_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"power of two from \d+ to \d+"):
        check_extent_bytes(extent_bytes)


def test_common_extent_sizes_are_accepted() -> None:
    for extent_bytes in (MIN_EXTENT_BYTES, 4 << 20, MAX_EXTENT_BYTES):
        check_extent_bytes(extent_bytes)


def test_a_superblock_reads_back() -> None:
    geometry = lay_out(EXTENT_BYTES, 1 << 30)
    assert geometry is not None
    superblock = Superblock(UUID, geometry)
    block = superblock.encode()
    assert len(block) == BLOCK_BYTES
    assert decode_superblock(block) == superblock


@given(st.integers(0, 40 * 8 - 1))
def test_a_superblock_with_any_bit_flipped_is_none(bit: int) -> None:
    geometry = lay_out(EXTENT_BYTES, 1 << 30)
    assert geometry is not None
    assert decode_superblock(_flipped(Superblock(UUID, geometry).encode(), bit)) is None


@pytest.mark.parametrize(
    ("version", "block_bytes", "extent_bytes", "medium_bytes"),
    [
        pytest.param(2, 4096, EXTENT_BYTES, 1 << 30, id="of a later version"),
        pytest.param(1, 512, EXTENT_BYTES, 1 << 30, id="with other blocks"),
        pytest.param(1, 4096, 0, 1 << 30, id="with extents of nothing"),
        pytest.param(1, 4096, 12345, 1 << 30, id="with odd extents"),
        pytest.param(1, 4096, EXTENT_BYTES, 0, id="of an empty medium"),
        pytest.param(1, 4096, EXTENT_BYTES, EXTENT_BYTES, id="too small for a slot"),
        pytest.param(1, 4096, EXTENT_BYTES, (1 << 30) + 1, id="of half a block"),
        pytest.param(1, 4096, EXTENT_BYTES, (1 << 64) - 4096, id="of all the bytes in the world"),
    ],
)
def test_a_forged_superblock_is_none(
    version: int, block_bytes: int, extent_bytes: int, medium_bytes: int
) -> None:
    body = struct.pack(
        "<8sIIQQ16s", b"TIERSTOR", version, block_bytes, extent_bytes, medium_bytes, UUID
    )
    block = body + blake3(b"superblock" + body).digest(16)
    assert decode_superblock(block.ljust(BLOCK_BYTES, b"\0")) is None


records = st.builds(
    Record,
    st.sampled_from(SlotState),
    st.integers(1, (1 << 62) - 1),
    st.integers(1, EXTENT_BYTES),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
)


@given(records, st.integers(0, (1 << 32) - 1))
def test_a_record_reads_back(record: Record, slot: int) -> None:
    block = record.encode(UUID, slot)
    assert len(block) == BLOCK_BYTES
    assert decode_record(block, UUID, slot, EXTENT_BYTES) == record


@given(st.integers(0, 96 * 8 - 1))
def test_a_record_with_any_bit_flipped_is_none(bit: int) -> None:
    assert decode_record(_flipped(RECORD.encode(UUID, 3), bit), UUID, 3, EXTENT_BYTES) is None


def test_a_record_counts_only_at_its_place() -> None:
    block = RECORD.encode(UUID, 3)
    assert decode_record(block, UUID, 4, EXTENT_BYTES) is None
    assert decode_record(block, bytes(16), 3, EXTENT_BYTES) is None


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(Record(SlotState.STORED, 0, 10), id="without a number"),
        pytest.param(Record(SlotState.STORED, 1 << 62, 10), id="with a number never reached"),
        pytest.param(Record(SlotState.STORED, 1, 0), id="of no bytes"),
        pytest.param(Record(SlotState.STORED, 1, EXTENT_BYTES + 1), id="longer than its slot"),
        pytest.param(Record(SlotState.QUARANTINED, 1, 1 << 63), id="of all bytes"),
    ],
)
def test_a_forged_record_is_none(record: Record) -> None:
    assert decode_record(record.encode(UUID, 0), UUID, 0, EXTENT_BYTES) is None


def test_a_forged_state_is_none() -> None:
    body = struct.pack("<8sIIQQ32s16s", b"TIERSLOT", 0, 4, 1, 1, bytes(32), bytes(16))
    block = (body + blake3(UUID + body).digest(16)).ljust(BLOCK_BYTES, b"\0")
    assert decode_record(block, UUID, 0, EXTENT_BYTES) is None


@given(st.binary(max_size=BLOCK_BYTES))
def test_any_bytes_are_no_superblock_and_no_record(block: bytes) -> None:
    assert decode_superblock(block) is None
    assert decode_record(block, UUID, 0, EXTENT_BYTES) is None


def _flipped(block: bytes, bit: int) -> bytes:
    changed = bytearray(block)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
