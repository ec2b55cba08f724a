"""The bytes of a store on its medium: geometry, superblocks, slot records. Pure; no I/O.

    offset 0            superblock, first copy
    4096                slot table: for each slot two record blocks, side by side
    data_offset         slots of extent_bytes each, aligned for mapping (up to 2 MiB)
    medium_bytes-4096   superblock, second copy

Every block checks itself: a truncated BLAKE3 over its fields, and for a record also over the
store's uuid and its slot, so that a record of an earlier store, or one that the drive wrote to a
wrong place, counts as torn. All integers are little-endian.

A slot's state is its valid record of the greater sequence number; a slot with none is free. A new
record goes into the block of the other, older one. A content's way onto the medium is

    record FREE -> flush -> data -> flush -> record STORED -> flush       (acknowledged only now)

where the first step falls away if the slot's record says FREE already.

Invariant: at every instant, whatever part of the unflushed writes has reached the medium, each slot
is either in its last acknowledged state or in the one being written; while data is being
overwritten no record claims it. So a torn write reads as free, and never destroys anything else.

Everything read from a medium is hostile: decoding a block gives a value that satisfies this
page, or None, and never raises. What a record claims about bytes is only believed after hashing
them: a record can hide content, it cannot make wrong bytes right.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from blake3 import blake3

from tierline_agent.tiers.digest import DIGEST_BYTES, TAG_BYTES, Digest
from tierline_agent.tiers.medium import BLOCK_BYTES

MIN_EXTENT_BYTES: Final = 64 << 10
MAX_EXTENT_BYTES: Final = 1 << 30
UUID_BYTES: Final = 16
RECORDS_PER_SLOT: Final = 2
SUPERBLOCK_MAGIC: Final = b"TIERSTOR"

_VERSION: Final = 1
_RECORD_MAGIC: Final = b"TIERSLOT"
_MAX_ALIGNMENT: Final = 2 << 20  # a huge page: what GPUs and devdax map in
_MAX_SEQUENCE: Final = 1 << 62  # never reached by counting, so a forged one cannot overflow us
_CHECKSUM_BYTES: Final = 16
_SUPERBLOCK: Final = struct.Struct("<8sIIQQ16s")
_RECORD: Final = struct.Struct(f"<8sIIQQ{DIGEST_BYTES}s{TAG_BYTES}s")


@dataclass(frozen=True)
class Geometry:
    """Where everything lies, in bytes; a function of two sizes."""

    extent_bytes: int
    medium_bytes: int
    slot_count: int
    data_offset: int

    @property
    def last_block(self) -> int:
        """Offset of the second superblock."""
        return self.medium_bytes - BLOCK_BYTES

    def slot_offset(self, slot: int) -> int:
        """Offset of a slot's content."""
        return self.data_offset + slot * self.extent_bytes

    def record_offset(self, slot: int, copy: int) -> int:
        """Offset of one of a slot's two record blocks."""
        return BLOCK_BYTES * (1 + slot * RECORDS_PER_SLOT + copy)


def check_extent_bytes(extent_bytes: int) -> None:
    """Raise ValueError unless a store can have extents of this size."""
    if not (
        MIN_EXTENT_BYTES <= extent_bytes <= MAX_EXTENT_BYTES
        and extent_bytes & (extent_bytes - 1) == 0
    ):
        raise ValueError(
            f"an extent of {extent_bytes} bytes: must be a power of two "
            f"from {MIN_EXTENT_BYTES} to {MAX_EXTENT_BYTES}"
        )


def lay_out(extent_bytes: int, medium_bytes: int) -> Geometry | None:
    """The geometry with the most slots, or None if not even one fits."""
    alignment = min(extent_bytes, _MAX_ALIGNMENT)
    medium_bytes -= medium_bytes % BLOCK_BYTES
    slot_bytes = extent_bytes + RECORDS_PER_SLOT * BLOCK_BYTES
    slots = max(0, (medium_bytes - 2 * BLOCK_BYTES) // slot_bytes)
    while slots > 0:  # alignment of the data costs a slot or two
        table_end = BLOCK_BYTES * (1 + slots * RECORDS_PER_SLOT)
        data_offset = -(-table_end // alignment) * alignment
        if data_offset + slots * extent_bytes + BLOCK_BYTES <= medium_bytes:
            return Geometry(extent_bytes, medium_bytes, slots, data_offset)
        slots -= 1
    return None


def content_offset(extent_bytes: int, medium_bytes: int) -> int | None:
    """Where the content of a store of that geometry begins, bytes; None as for `lay_out`."""
    geometry = lay_out(extent_bytes, medium_bytes)
    return geometry.data_offset if geometry else None


def smallest_medium(extent_bytes: int, slots: int = 1) -> int:
    """Bytes a medium needs to hold so many slots."""
    alignment = min(extent_bytes, _MAX_ALIGNMENT)
    data_offset = -(-(BLOCK_BYTES * (1 + slots * RECORDS_PER_SLOT)) // alignment) * alignment
    return data_offset + slots * extent_bytes + BLOCK_BYTES


@dataclass(frozen=True)
class Superblock:
    """The head of a store: its identity and the sizes that give its geometry."""

    uuid: bytes
    geometry: Geometry

    def encode(self) -> bytes:
        """One block."""
        body = _SUPERBLOCK.pack(
            SUPERBLOCK_MAGIC,
            _VERSION,
            BLOCK_BYTES,
            self.geometry.extent_bytes,
            self.geometry.medium_bytes,
            self.uuid,
        )
        return _sealed(body, b"superblock")


def decode_superblock(block: bytes) -> Superblock | None:
    """The superblock in a block, or None if it is anything else or damaged."""
    body = _unsealed(block, _SUPERBLOCK.size, b"superblock")
    if body is None:
        return None
    magic, version, block_bytes, extent_bytes, medium_bytes, uuid = _SUPERBLOCK.unpack(body)
    if (magic, version, block_bytes) != (SUPERBLOCK_MAGIC, _VERSION, BLOCK_BYTES):
        return None
    try:
        check_extent_bytes(extent_bytes)
    except ValueError:
        return None
    if medium_bytes % BLOCK_BYTES or medium_bytes >= 1 << 60:
        return None
    geometry = lay_out(extent_bytes, medium_bytes)
    return Superblock(uuid, geometry) if geometry else None


class SlotState(IntEnum):
    """The state of a slot, by its newest record."""

    FREE = 0
    STORED = 1
    QUARANTINED = 2  # was found corrupt; not to be used until rewritten
    RETIRED = 3  # did not hold what was written to it; never to be used again


@dataclass(frozen=True)
class Record:
    """One state of one slot. `digest`, `tag` and `length` (bytes) name its content, if any."""

    state: SlotState
    sequence: int = 0
    length: int = 0
    digest: Digest = bytes(DIGEST_BYTES)
    tag: bytes = bytes(TAG_BYTES)

    @property
    def names_content(self) -> bool:
        """Whether the record speaks of a content."""
        return self.state in (SlotState.STORED, SlotState.QUARANTINED)

    def encode(self, uuid: bytes, slot: int) -> bytes:
        """One block, for this slot of this store."""
        body = _RECORD.pack(
            _RECORD_MAGIC, slot, self.state, self.sequence, self.length, self.digest, self.tag
        )
        return _sealed(body, uuid)


def decode_record(block: bytes, uuid: bytes, slot: int, extent_bytes: int) -> Record | None:
    """The record in a block, or None if it is blank, torn, damaged or of another place."""
    body = _unsealed(block, _RECORD.size, uuid)
    if body is None:
        return None
    magic, its_slot, state, sequence, length, digest, tag = _RECORD.unpack(body)
    if magic != _RECORD_MAGIC or its_slot != slot or not 0 < sequence < _MAX_SEQUENCE:
        return None
    if state not in SlotState.__members__.values():
        return None
    record = Record(SlotState(state), sequence, length, digest, tag)
    if record.names_content and not 0 < length <= extent_bytes:
        return None
    return record


def _sealed(body: bytes, context: bytes) -> bytes:
    return (body + _checksum(body, context)).ljust(BLOCK_BYTES, b"\0")


def _unsealed(block: bytes, body_bytes: int, context: bytes) -> bytes | None:
    body = block[:body_bytes]
    end = body_bytes + _CHECKSUM_BYTES
    return body if block[body_bytes:end] == _checksum(body, context) else None


def _checksum(body: bytes, context: bytes) -> bytes:
    return blake3(context + body).digest(_CHECKSUM_BYTES)
