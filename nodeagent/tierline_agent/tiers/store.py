"""The content-addressed store of one tier: extents by digest, shared, verified on every read.

It joins a volume (where bytes lie) and a catalogue (what may go) under one lock. It does not
choose tiers, schedule transfers or know tasks; it counts references that its callers take.
References and pins live in memory only: after a restart all content is there and idle.

Any number of threads may call it. The lock guards the catalogue and is never held during a copy,
a hash, or any read, write or flush; two threads keep off each other's slots because a slot being
written is claimed, one being read is pinned, and one content is written by one thread at a time
(`_busy`), for which others that want to write the same wait.

Content of a mapped medium can also be *lent*: used where it lies, by a device that copies from it.
Only the agent can write there, so its digest is verified once in the life of the process, if this
process did not write it itself, and trusted from then on.

Invariants: content that `put` has acknowledged is readable until it is released and evicted, also
after a crash; `read_into` returns only after the bytes in the caller's memory had the right
digest, or the checksum of bytes that had it; content once found corrupt is never used again until
it has been written again; lent content stays where it is until it is taken back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from tierline_agent.tiers.catalogue import Catalogue, Claim, Entry
from tierline_agent.tiers.digest import (
    DIGEST_BYTES,
    Checksum,
    Digest,
    checksum_of,
    digest_of,
    domain_tag,
)
from tierline_agent.tiers.errors import (
    CorruptExtent,
    MediumFailure,
    MemoryChanged,
    NoSpace,
    TierError,
    UnknownExtent,
)
from tierline_agent.tiers.format import Record, SlotState
from tierline_agent.tiers.mapped import MappedMedium
from tierline_agent.tiers.medium import Medium
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.volume import Volume

Measure = Callable[[Callable[[], int]], object]
"""Does a write, which says how many bytes it was; what it raises passes through."""


@dataclass(frozen=True)
class StoreStatistics:
    """State and history of a store; counts of slots unless the name says otherwise.

    slots = free + stored + unsound + retired + writing, where unsound content may have lost its
    slot (then it counts in none). The rest are totals since it was opened.
    """

    slots: int
    free: int
    stored: int
    referenced: int
    stored_bytes: int
    unsound: int
    retired: int
    writing: int
    torn_records: int
    puts: int = 0
    deduplicated: int = 0
    repaired: int = 0
    evicted: int = 0
    reads: int = 0
    corruptions: int = 0
    failures: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass
class _Totals:
    puts: int = 0
    deduplicated: int = 0
    repaired: int = 0
    evicted: int = 0
    reads: int = 0
    corruptions: int = 0
    failures: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class _Content:
    """Content that is to be written."""

    data: memoryview
    key: bytes
    digest: Digest
    checksum: Checksum
    measure: Measure


def _unmeasured(write: Callable[[], int]) -> None:
    write()


class Store:
    """The store on one volume, which it owns."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._catalogue = Catalogue(volume.geometry.slot_count)
        self._changed = threading.Condition()
        self._busy: set[Digest] = set()
        self._totals = _Totals()
        with_content = []
        for slot, record in volume.scan():
            if record.names_content:
                with_content.append((record.sequence, slot, record))
            elif record.state == SlotState.RETIRED:
                self._catalogue.load_retired()
            else:
                self._catalogue.load_free(slot)
        for _, slot, record in sorted(with_content, key=lambda found: found[:2]):
            sound = record.state == SlotState.STORED
            self._catalogue.load(
                Entry(
                    record.digest, record.tag, record.length, slot, sound=sound, corrupt=not sound
                )
            )

    @classmethod
    def open(cls, medium: Medium, extent_bytes: int) -> Store:
        """Open the store on a medium, which it owns from here on; a blank one is formatted.

        Raises ForeignContent or OtherGeometry where something else is there, MediumUnusable if it
        is too small, MediumFailure.
        """
        volume = Volume.open(medium, extent_bytes)
        try:
            return cls(volume)
        except BaseException:
            volume.close()
            raise

    @property
    def medium(self) -> Medium:
        """The medium on which it lies."""
        return self._volume.medium

    @property
    def extent_bytes(self) -> int:
        """Most bytes one content may have."""
        return self._volume.geometry.extent_bytes

    def put(self, key: bytes, data: memoryview, measure: Measure | None = None) -> Digest:
        """Store `data` (1 to extent_bytes bytes) in the domain of `key`, and take a reference.

        Content that is there already is shared; content that was found corrupt is written again,
        for all that refer to it. Returns when it is durable. `data` must not change meanwhile:
        if it does, the content is found corrupt at its first read. The write to the medium is done
        by `measure`. Raises NoSpace or MediumFailure; then no reference is taken.
        """
        if not 0 < data.nbytes <= self.extent_bytes:
            raise ValueError(f"content of {data.nbytes} bytes: must be 1 to {self.extent_bytes}")
        # The checksum first, as when reading: it must not be that of bytes with another digest.
        checksum = checksum_of(data)
        digest = digest_of(key, data)
        with self._changed:
            self._changed.wait_for(lambda: self._may_write(digest))
            entry = self._catalogue.find(digest)
            if entry is not None and entry.sound:
                self._catalogue.reference(entry)
                self._totals.deduplicated += 1
                return digest
            # In one breath with the look at the entry: no reader may get into its slot between.
            claim = self._claim(digest, data.nbytes)
            self._busy.add(digest)
        try:
            content = _Content(data, key, digest, checksum, measure or _unmeasured)
            self._write(claim, content)
        finally:
            with self._changed:
                self._busy.discard(digest)
                self._changed.notify_all()
        return digest

    def _may_write(self, digest: Digest) -> bool:
        entry = self._catalogue.find(digest)
        being_read = entry is not None and not entry.sound and entry.pins > 0
        return digest not in self._busy and not being_read

    def _claim(self, digest: Digest, size_bytes: int) -> Claim:
        """A slot to write to; the lock is held."""
        claim = self._catalogue.claim(digest)
        if claim is None:
            raise NoSpace(
                f"cannot store {size_bytes} bytes in the {self.medium.kind} tier "
                f"{self.medium.path}: all {self._catalogue.slot_count} slots hold content in use; "
                "remove a task or configure a larger tier"
            )
        self._totals.evicted += claim.evicted
        return claim

    def _write(self, claim: Claim, content: _Content) -> None:
        digest, size_bytes, tag = content.digest, content.data.nbytes, domain_tag(content.key)
        while True:
            try:
                held = self._fill(claim, content, tag)
            except BaseException:
                with self._changed:
                    self._totals.failures += 1
                    self._catalogue.abandon(claim, digest)
                raise
            with self._changed:
                if not held:
                    self._catalogue.retire(digest)
                    claim = self._claim(digest, size_bytes)
                    continue
                repairs = self._catalogue.find(digest) is not None
                self._catalogue.settle(claim, digest, tag, size_bytes).checksum = content.checksum
                self._totals.puts += 1
                self._totals.repaired += repairs
                self._totals.written_bytes += size_bytes
                return

    def _fill(self, claim: Claim, content: _Content, tag: bytes) -> bool:
        """Write content and record into a claimed slot; False if a suspect slot failed again."""
        digest, length = content.digest, content.data.nbytes

        def write() -> int:
            self._volume.write_content(claim.slot, content.data)
            return length

        content.measure(write)
        if claim.suspect and self._digest_on_medium(claim.slot, length, content.key) != digest:
            self._volume.write_record(claim.slot, Record(SlotState.RETIRED))
            return False
        record = Record(SlotState.STORED, length=length, digest=digest, tag=tag)
        self._volume.write_record(claim.slot, record)
        return True

    def acquire(self, digest: Digest, key: bytes | None = None) -> int:
        """Take a reference on stored content; returns its length in bytes.

        With `key`, content of another domain counts as unknown, as it does for `read_into`.
        Raises UnknownExtent or CorruptExtent (a `put` repairs it).
        """
        with self._changed:
            entry = self._find(digest, None if key is None else domain_tag(key))
            if entry.corrupt:
                raise self._corrupt(digest)
            self._catalogue.reference(entry)
            return entry.length

    def release(self, digest: Digest) -> None:
        """Give one reference back; content without any stays until its slot is needed.

        Raises UnknownExtent; ValueError if nobody holds a reference.
        """
        with self._changed:
            entry = self._find(digest, None)
            if entry.references == 0:
                raise ValueError(f"extent {digest.hex()[:16]} is released but not acquired")
            self._catalogue.unreference(entry)

    def read_into(self, digest: Digest, key: bytes, target: memoryview) -> int:
        """Copy content to the start of `target` (page-aligned), verify it, return its length.

        The caller's memory is checked after the copy: by digest the first time in this process,
        unless this process wrote it, then by the checksum found on that occasion or when it was
        written. If it does not match, the medium itself is
        looked at again, by digest: wrong bytes there are quarantined for good
        (CorruptExtent); right ones mean that somebody wrote to `target` (MemoryChanged).
        After any error the bytes in `target` must not be used. Raises also UnknownExtent,
        MediumFailure; ValueError if `target` is too small.
        """
        with self._changed:
            entry = self._find(digest, domain_tag(key))
            if entry.corrupt or entry.slot is None:
                raise self._corrupt(digest)
            if target.nbytes < entry.length:
                raise ValueError(f"{entry.length} bytes do not fit into {target.nbytes}")
            self._catalogue.pin(entry)
            slot = entry.slot
        try:
            place = target[: entry.length]
            self._volume.read_content(slot, place)
            if not self._is_right(entry, key, place):
                self._look_again(entry, slot, key)
        except MediumFailure:
            with self._changed:
                self._totals.failures += 1
                if entry.sound:
                    self._catalogue.condemn(entry, corrupt=False)
            raise
        else:
            with self._changed:
                self._totals.reads += 1
                self._totals.read_bytes += entry.length
                if not entry.sound and not entry.corrupt:
                    self._catalogue.exonerate(entry)
            return entry.length
        finally:
            self._unpin(entry)

    @property
    def mapped(self) -> MappedMedium | None:
        """The medium, if it is memory whose content can be lent."""
        medium = self._volume.medium
        return medium if isinstance(medium, MappedMedium) else None

    @property
    def content_offset(self) -> int:
        """Where on the medium the content begins: slots of an extent each, without gaps, bytes."""
        return self._volume.geometry.data_offset

    def may_lend(self, digest: Digest, key: bytes) -> bool:
        """Whether `lend` would have nothing to verify. Raises UnknownExtent or CorruptExtent."""
        with self._changed:
            entry = self._find(digest, domain_tag(key))
            if entry.corrupt or entry.slot is None:
                raise self._corrupt(digest)
            return entry.trusted

    def lend(self, digest: Digest, key: bytes) -> tuple[int, int]:
        """Offset and length of content on its mapped medium; verified if this process never did.

        It stays there, unchanged, until `take_back`. Raises as `read_into`.
        """
        medium = self.mapped
        if medium is None:
            raise ValueError(f"the {self.medium.kind} tier {self.medium.path} is not mapped")
        with self._changed:
            entry = self._find(digest, domain_tag(key))
            if entry.corrupt or entry.slot is None:
                raise self._corrupt(digest)
            self._catalogue.pin(entry)
            slot = entry.slot
        offset = self._volume.geometry.slot_offset(slot)
        try:
            if not entry.trusted:
                if digest_of(key, medium.view(offset, entry.length)) != digest:
                    self._look_again(entry, slot, key)
                entry.trusted = True
        except BaseException:
            self._unpin(entry)
            raise
        with self._changed:
            self._totals.reads += 1
            self._totals.read_bytes += entry.length
        return offset, entry.length

    def take_back(self, digest: Digest) -> None:
        """Lent content is not used any more."""
        with self._changed:
            entry = self._find(digest, None)
        self._unpin(entry)

    def _unpin(self, entry: Entry) -> None:
        with self._changed:
            self._catalogue.unpin(entry)
            self._changed.notify_all()

    def _is_right(self, entry: Entry, key: bytes, place: memoryview) -> bool:
        # The checksum before the digest: whatever scribbles into `place` in between, a checksum
        # that is kept and wrong only costs a digest at the next read, which replaces it.
        checksum = checksum_of(place)
        if checksum == entry.checksum:
            return True
        if digest_of(key, place) != entry.digest:
            return False
        entry.checksum = checksum
        return True

    def _look_again(self, entry: Entry, slot: int, key: bytes) -> None:
        """Raise the reason for a digest that does not match, and quarantine if it is the medium."""
        if self._digest_on_medium(slot, entry.length, key) == entry.digest:
            raise MemoryChanged(
                f"extent {entry.digest.hex()[:16]} is right in the {self.medium.kind} tier but "
                "changed in the memory it was copied to; no other process may write there"
            )
        with self._changed:
            first = not entry.corrupt
            if first:
                self._catalogue.condemn(entry, corrupt=True)
                self._totals.corruptions += 1
        if first:  # others that read it at the same time only report it
            try:
                self._volume.write_record(
                    slot,
                    Record(
                        SlotState.QUARANTINED,
                        length=entry.length,
                        digest=entry.digest,
                        tag=entry.tag,
                    ),
                )
            except TierError as error:
                # Still never used: this process knows, and the next one hashes before use too.
                raise self._corrupt(entry.digest) from error
        raise self._corrupt(entry.digest)

    def _digest_on_medium(self, slot: int, length: int, key: bytes) -> Digest:
        private = scratch(length)
        self._volume.read_content(slot, private)
        return digest_of(key, private)

    def _find(self, digest: Digest, tag: bytes | None) -> Entry:
        entry = self._catalogue.find(digest) if len(digest) == DIGEST_BYTES else None
        if entry is None or (tag is not None and tag != entry.tag):
            raise UnknownExtent(
                f"extent {digest.hex()[:16]} is not in the {self.medium.kind} tier "
                f"{self.medium.path}; load the model's weights again"
            )
        return entry

    def _corrupt(self, digest: Digest) -> CorruptExtent:
        return CorruptExtent(
            f"extent {digest.hex()[:16]} in the {self.medium.kind} tier {self.medium.path} does "
            "not match its digest; load the model's weights again to repair it, check the medium"
        )

    def digests(self) -> list[Digest]:
        """All content that may be acquired, in no order."""
        with self._changed:
            return [entry.digest for entry in self._catalogue.entries() if not entry.corrupt]

    def needed(self) -> list[Digest]:
        """All content that somebody refers to, in no order."""
        with self._changed:
            return [entry.digest for entry in self._catalogue.entries() if entry.references]

    def statistics(self) -> StoreStatistics:
        """A consistent snapshot."""
        with self._changed:
            entries = self._catalogue.entries()
            totals = replace(self._totals)
            sound = [entry for entry in entries if entry.sound]
            return StoreStatistics(
                slots=self._catalogue.slot_count,
                free=self._catalogue.free,
                stored=len(sound),
                referenced=sum(entry.references > 0 for entry in entries),
                stored_bytes=sum(entry.length for entry in sound),
                unsound=sum(entry.slot is not None for entry in entries) - len(sound),
                retired=self._catalogue.retired,
                writing=self._catalogue.claimed,
                torn_records=self._volume.torn_records,
                **vars(totals),
            )

    def close(self) -> None:
        """Give the medium back. No other call may be in progress or follow."""
        self._volume.close()
