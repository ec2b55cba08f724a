"""Which content a store has, in which slot, what needs it, and what may go. Pure: no I/O, no locks.

Content is *held* while it has references (tasks that need it) or pins (reads in progress). Sound
content that is not held stays until its slot is needed; the least recently used goes first.
Content that is not sound (quarantined, or the medium failed to read it) is remembered by its
digest, so that a reader is told the truth and a new `put` can repair it; its slot is *suspect*:
whatever is written there next must be read back before it is believed.

Invariant: each slot is in exactly one place: free, suspect, an entry's, retired, or claimed for a
write.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from tierline_agent.tiers.digest import Checksum, Digest


@dataclass(slots=True, eq=False)
class Entry:
    """One content. `length` in bytes; `slot` is None when unsound content has lost its slot.

    `sound` is False from the moment a read finds wrong bytes (`corrupt`) or none at all.
    `checksum` is of bytes whose digest was taken in this process, read or written, None before;
    `trusted` tells that the bytes on the medium itself were verified, or written, by this process.
    """

    digest: Digest
    tag: bytes
    length: int
    slot: int | None
    references: int = 0
    pins: int = 0
    sound: bool = True
    corrupt: bool = False
    checksum: Checksum | None = None
    trusted: bool = False

    @property
    def held(self) -> bool:
        """Whether anybody needs it now."""
        return self.references > 0 or self.pins > 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot taken out of circulation for one write; `suspect` asks for reading it back."""

    slot: int
    suspect: bool
    evicted: bool


class Catalogue:
    """The contents of one store of `slot_count` slots."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._entries: dict[Digest, Entry] = {}
        self._idle: OrderedDict[Digest, Entry] = OrderedDict()  # sound, not held; oldest first
        self._unsound: OrderedDict[Digest, Entry] = OrderedDict()  # unsound, not held
        self._free: deque[int] = deque()
        self._suspect: deque[int] = deque()
        self.retired = 0
        self.claimed = 0

    def find(self, digest: Digest) -> Entry | None:
        """The entry of a content, sound or not."""
        return self._entries.get(digest)

    def entries(self) -> list[Entry]:
        """All of them, in no order."""
        return list(self._entries.values())

    @property
    def free(self) -> int:
        """Slots without content that a `put` may take."""
        return len(self._free) + len(self._suspect)

    # Filling it from a medium; in order of age, oldest first.

    def load_free(self, slot: int) -> None:
        """A slot without content."""
        self._free.append(slot)

    def load_retired(self) -> None:
        """A slot that must not be used."""
        self.retired += 1

    def load(self, entry: Entry) -> None:
        """A content; a younger copy replaces an older one, whose slot becomes free."""
        older = self._entries.pop(entry.digest, None)
        if older is not None and older.slot is not None:
            self._shelve(older, remove=True)
            self._free.append(older.slot)
        self._entries[entry.digest] = entry
        self._shelve(entry)

    # Holding content.

    def reference(self, entry: Entry) -> None:
        """One more task needs it."""
        self._shelve(entry, remove=True)
        entry.references += 1

    def unreference(self, entry: Entry) -> None:
        """One task fewer needs it; the last one makes it the most recently used idle content."""
        entry.references -= 1
        self._drop_if_gone(entry)

    def pin(self, entry: Entry) -> None:
        """A read begins."""
        self._shelve(entry, remove=True)
        entry.pins += 1

    def unpin(self, entry: Entry) -> None:
        """A read has ended; idle content is now the most recently used."""
        entry.pins -= 1
        self._drop_if_gone(entry)

    def condemn(self, entry: Entry, *, corrupt: bool) -> None:
        """A read found wrong bytes (`corrupt`), or the medium could not deliver them."""
        self._shelve(entry, remove=True)
        entry.sound, entry.corrupt, entry.trusted = False, entry.corrupt or corrupt, False
        self._shelve(entry)

    def exonerate(self, entry: Entry) -> None:
        """A later read got the right bytes where the medium had failed before."""
        self._shelve(entry, remove=True)
        entry.sound = True
        self._shelve(entry)

    # Writing content.

    def claim(self, digest: Digest) -> Claim | None:
        """Take a slot to write the content `digest`; None if all are held.

        Its own unsound slot is rewritten first (no reader may be in it); then come free slots,
        suspect ones, those of other unsound content nobody holds, and last the least recently
        used sound content.
        """
        own = self._entries.get(digest)
        if own is not None and own.slot is not None:
            slot, own.slot = own.slot, None
            return self._claimed(slot, suspect=True)
        if self._free:
            return self._claimed(self._free.popleft())
        if self._suspect:
            return self._claimed(self._suspect.popleft(), suspect=True)
        for shelf in (self._unsound, self._idle):
            for victim in shelf.values():
                if victim.slot is not None:
                    del shelf[victim.digest], self._entries[victim.digest]
                    return self._claimed(
                        victim.slot, suspect=not victim.sound, evicted=victim.sound
                    )
        return None

    def _claimed(self, slot: int, *, suspect: bool = False, evicted: bool = False) -> Claim:
        self.claimed += 1
        return Claim(slot, suspect, evicted)

    def settle(self, claim: Claim, digest: Digest, tag: bytes, length: int) -> Entry:
        """The write succeeded: the slot holds this content, which gets one reference."""
        self.claimed -= 1
        entry = self._entries.get(digest)
        if entry is None:
            entry = self._entries[digest] = Entry(digest, tag, length, claim.slot)
        else:
            self._shelve(entry, remove=True)
            entry.slot, entry.sound, entry.corrupt = claim.slot, True, False
        entry.trusted = True
        entry.references += 1
        return entry

    def abandon(self, claim: Claim, digest: Digest) -> None:
        """The write failed: the slot is usable, but suspect from now on."""
        self.claimed -= 1
        self._suspect.append(claim.slot)
        self._forget_if_lost(digest)

    def retire(self, digest: Digest) -> None:
        """The slot claimed for `digest` does not hold what is written to it."""
        self.claimed -= 1
        self.retired += 1
        self._forget_if_lost(digest)

    def _forget_if_lost(self, digest: Digest) -> None:
        entry = self._entries.get(digest)
        if entry is not None:
            self._drop_if_gone(entry)

    def _drop_if_gone(self, entry: Entry) -> None:
        if not entry.held and entry.slot is None:
            self._shelve(entry, remove=True)
            del self._entries[entry.digest]
        else:
            self._shelve(entry)

    def _shelve(self, entry: Entry, *, remove: bool = False) -> None:
        """Put an entry that is not held on the shelf it belongs to, or take it off."""
        if remove:
            self._idle.pop(entry.digest, None)
            self._unsound.pop(entry.digest, None)
        elif not entry.held:
            shelf = self._idle if entry.sound else self._unsound
            shelf[entry.digest] = entry
            shelf.move_to_end(entry.digest)
