"""A medium laid out as a store: opens or formats it, and does the reads and writes of `format.py`.

It knows which record block of a slot is the newer one; it does not know which content is wanted,
referenced or recent (`catalogue.py`), takes no locks and hashes no content (`store.py`).
Its caller lets one thread at a time work on a slot.

A medium is formatted only if it is blank, or volatile and without a store of this boot, or if the
caller says so (`make`). Blank means that the
first and the last MiB are zero, where every common file system, partition table and volume manager
leaves a mark, except for the beginnings of a superblock of ours in the last block, which a crash in
the midst of formatting leaves.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from tierline_agent.tiers.errors import ForeignContent, MediumUnusable, OtherGeometry
from tierline_agent.tiers.format import (
    RECORDS_PER_SLOT,
    SUPERBLOCK_MAGIC,
    UUID_BYTES,
    Geometry,
    Record,
    SlotState,
    Superblock,
    check_extent_bytes,
    decode_record,
    decode_superblock,
    lay_out,
    smallest_medium,
)
from tierline_agent.tiers.medium import BLOCK_BYTES, Medium
from tierline_agent.tiers.memory import scratch

_MIB: Final = 1 << 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SLOTS_PER_READ: Final = 128
_GIVE_UP: Final = (
    "give up what it holds: remove the file, or write zeros over a device's first and last MiB"
)


class Volume:
    """An opened store on its medium, which it owns from here on (also when opening fails).

    `torn_records` counts record blocks that were neither blank nor valid when it was opened.
    """

    def __init__(self, medium: Medium, superblock: Superblock) -> None:
        self.medium = medium
        self.geometry = superblock.geometry
        self.uuid = superblock.uuid
        self.torn_records = 0
        self._newest_copy = bytearray(self.geometry.slot_count)
        self._state = bytearray(self.geometry.slot_count)
        self._slot_sequence = array("Q", bytes(8 * self.geometry.slot_count))
        self._sequence = itertools.count(1)

    @classmethod
    def open(cls, medium: Medium, extent_bytes: int) -> Volume:
        """Open the store on `medium`, or make one if the medium is blank.

        Raises ForeignContent, OtherGeometry, MediumUnusable (too small) or MediumFailure.
        """
        try:
            check_extent_bytes(extent_bytes)
            return cls(medium, _superblock(medium, extent_bytes))
        except BaseException:
            medium.close()
            raise

    @classmethod
    def make(cls, medium: Medium, extent_bytes: int) -> Volume:
        """Make a store on `medium`, whatever that holds. Raises as `open` does."""
        try:
            check_extent_bytes(extent_bytes)
            return cls(medium, _format(medium, extent_bytes))
        except BaseException:
            medium.close()
            raise

    def scan(self) -> Iterator[tuple[int, Record]]:
        """Each slot with its state, in slot order; to be exhausted once, before any write."""
        latest = 0
        table = scratch(_SLOTS_PER_READ * RECORDS_PER_SLOT * BLOCK_BYTES)
        for first in range(0, self.geometry.slot_count, _SLOTS_PER_READ):
            count = min(_SLOTS_PER_READ, self.geometry.slot_count - first)
            part = table[: count * RECORDS_PER_SLOT * BLOCK_BYTES]
            self.medium.read_into(self.geometry.record_offset(first, 0), part)
            for slot in range(first, first + count):
                at = (slot - first) * RECORDS_PER_SLOT * BLOCK_BYTES
                record = self._newest(slot, part[at : at + RECORDS_PER_SLOT * BLOCK_BYTES])
                latest = max(latest, record.sequence)
                yield slot, record
        self._sequence = itertools.count(latest + 1)

    def _newest(self, slot: int, both: memoryview) -> Record:
        newest = Record(SlotState.FREE)
        for copy in range(RECORDS_PER_SLOT):
            block = bytes(both[copy * BLOCK_BYTES : (copy + 1) * BLOCK_BYTES])
            record = decode_record(block, self.uuid, slot, self.geometry.extent_bytes)
            if record is not None and record.sequence > newest.sequence:
                newest = record
                self._newest_copy[slot] = copy
            elif record is None and block.count(0) != BLOCK_BYTES:
                self.torn_records += 1
        self._state[slot] = newest.state
        self._slot_sequence[slot] = newest.sequence
        return newest

    def read_content(self, slot: int, target: memoryview) -> None:
        """Fill `target` from the start of a slot. Raises MediumFailure."""
        self.medium.read_into(self.geometry.slot_offset(slot), target)

    def write_content(self, slot: int, content: memoryview) -> None:
        """Vacate a slot, write `content` into it and flush. Raises MediumFailure or NoSpace."""
        if self._state[slot] != SlotState.FREE:
            self.write_record(slot, Record(SlotState.FREE))
        offset = self.geometry.slot_offset(slot)
        self.medium.write_from(offset, content)
        self.medium.flush(offset, content.nbytes)

    def write_record(self, slot: int, record: Record) -> None:
        """Make `record` (its sequence is set here) the slot's state, durably.

        Raises MediumFailure or NoSpace; the state may then be the old or the new one.
        """
        sequence = next(self._sequence)
        # The very first record of a slot may go into either block; blank ones are equals.
        copy = 1 - self._newest_copy[slot] if self._slot_sequence[slot] else 0
        numbered = Record(record.state, sequence, record.length, record.digest, record.tag)
        # After a failed write nobody knows what this block holds, so the next record must go to
        # the same block: the other one still holds the last state that is certain. Hence the
        # bookkeeping changes only at the end, except that the slot no longer counts as vacated.
        was_free = self._state[slot] == SlotState.FREE
        if was_free:
            self._state[slot] = record.state
        offset = self.geometry.record_offset(slot, copy)
        _write_block(self.medium, offset, numbered.encode(self.uuid, slot))
        self._newest_copy[slot] = copy
        self._slot_sequence[slot] = sequence
        self._state[slot] = record.state

    def close(self) -> None:
        """Give the medium back."""
        self.medium.close()


def geometry_on(medium: Medium) -> Geometry | None:
    """The geometry of the store that begins where `medium` does; None if there is none."""
    found = _find_superblock(medium)
    return found.geometry if found else None


def _superblock(medium: Medium, extent_bytes: int) -> Superblock:
    """The superblock to go by: the medium's own, made whole again, or a new one."""
    found = _find_superblock(medium)
    if found is None:
        if not medium.volatile and not _is_blank(medium):
            raise ForeignContent(
                f"the {medium.kind} tier {medium.path} holds something that is not a Tierline "
                "store (or one whose superblocks are destroyed); configure another path, or "
                f"{_GIVE_UP}"
            )
        return _format(medium, extent_bytes)
    misfit = _misfit(medium, found, extent_bytes)
    if misfit is not None:
        raise misfit
    _repair(medium, found)
    return found


def _find_superblock(medium: Medium) -> Superblock | None:
    """The first copy if it is good, else the second, which lies at the medium's end.

    What was written to a volatile medium in another boot is none: content may have changed.
    """
    for offset in (0, medium.size_bytes - medium.size_bytes % BLOCK_BYTES - BLOCK_BYTES):
        found = decode_superblock(_read(medium, offset, BLOCK_BYTES))
        if found is not None and found.uuid.startswith(_mark(medium)):
            return found
    return None


def _mark(medium: Medium) -> bytes:
    """How the uuid of each store on this medium begins."""
    if not medium.volatile:
        return b""
    return blake3(_BOOT_ID.read_bytes()).digest(length=UUID_BYTES // 2)


def _misfit(medium: Medium, found: Superblock, extent_bytes: int) -> OtherGeometry | None:
    """Why the store cannot be used with this medium and extent size. A larger medium is fine."""
    geometry = found.geometry
    where = f"the {medium.kind} tier {medium.path}"
    if geometry.medium_bytes > medium.size_bytes:
        return OtherGeometry(
            f"{where} was formatted with {geometry.medium_bytes} bytes and has now "
            f"{medium.size_bytes}; give it its former size, or {_GIVE_UP}"
        )
    if geometry.extent_bytes != extent_bytes:
        return OtherGeometry(
            f"{where} was formatted for extents of {geometry.extent_bytes} bytes, not "
            f"{extent_bytes}; configure that extent size, or {_GIVE_UP}"
        )
    return None


def _repair(medium: Medium, superblock: Superblock) -> None:
    """Write whichever copy of the superblock is not as it should be."""
    block = superblock.encode()
    for offset in (superblock.geometry.last_block, 0):
        if _read(medium, offset, BLOCK_BYTES) != block:
            _write_block(medium, offset, block)


def _is_blank(medium: Medium) -> bool:
    edge = min(_MIB, medium.size_bytes)
    end = medium.size_bytes - medium.size_bytes % BLOCK_BYTES
    tail = _read(medium, end - edge, edge)
    last = tail[-BLOCK_BYTES:]
    return (
        not any(_read(medium, 0, edge - BLOCK_BYTES))
        and not any(tail[:-BLOCK_BYTES])
        and (last.startswith(SUPERBLOCK_MAGIC) or not any(last))
    )


def _format(medium: Medium, extent_bytes: int) -> Superblock:
    geometry = lay_out(extent_bytes, medium.size_bytes)
    if geometry is None:
        raise MediumUnusable(
            f"the {medium.kind} tier {medium.path} has {medium.size_bytes} bytes, too few for one "
            f"extent of {extent_bytes}; configure at least {smallest_medium(extent_bytes)}"
        )
    mark = _mark(medium)
    superblock = Superblock(mark + os.urandom(UUID_BYTES - len(mark)), geometry)
    # The last block first: until the first block is written, a blank medium still counts as blank
    # and an older store is still itself. Old records fall with the old uuid.
    _write_block(medium, geometry.last_block, superblock.encode())
    _write_block(medium, 0, superblock.encode())
    return superblock


def _read(medium: Medium, offset: int, size_bytes: int) -> bytes:
    block = scratch(size_bytes)
    medium.read_into(offset, block)
    return bytes(block)


def _write_block(medium: Medium, offset: int, block: bytes) -> None:
    aligned = scratch(BLOCK_BYTES)
    aligned[:] = block
    medium.write_from(offset, aligned)
    medium.flush(offset, BLOCK_BYTES)
