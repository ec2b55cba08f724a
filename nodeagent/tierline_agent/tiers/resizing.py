"""Gives the store of a tier another size, before it is opened.

The layout of a store follows from its size, so another size is another store: made next to the old
one, filled with the old one's content, and put into its place in one step. An agent that dies
meanwhile, or a machine that loses power, leaves the old store as it was, and a draft that the next
agent removes. A draft has a name that no store is given, and begins with a superblock or with
nothing yet; another file of that name stays, and the store keeps its size. A device has no place
next to its store: it keeps its size as long as content of it is needed, and then is made again.

Content is needed only by programs that run. What else a store holds saves a program that loads the
same weights the writing: of a tier on a disk it is kept as far as it has room, the newest first,
and a sentence says what was left; host memory loses it as it does when the machine boots, so that
a tier that fills the machine can be resized too.

It judges no content: what was stored is copied with its digest, by which each read checks it.

Invariant: with programs running, either all content that they need is in the store of the new size,
or the old store is untouched and a sentence says why; the previous plans always have the room they
reckon with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tierline_agent.tiers.digest import Digest
from tierline_agent.tiers.errors import TierError
from tierline_agent.tiers.format import SUPERBLOCK_MAGIC, Record, SlotState, lay_out
from tierline_agent.tiers.media import Kind, open_medium
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.volume import Volume, geometry_on

_log = logging.getLogger(__name__)
_IN_MEMORY: Final = "dram"
_DRAFT: Final = ".tierline-draft"
_END_TASKS: Final = "end tasks"
_MEMORY: Final = Path("/proc/meminfo")
_Content = tuple[int, Record]
"""A slot and what it says."""


@dataclass(frozen=True)
class Fitted:
    """How the tier is to be opened."""

    size_bytes: int
    """Its size, bytes; 0 for all there is."""
    objection: str = ""
    """Why that is not the size that was asked for."""
    left: str = ""
    """Content that programs may load again is not there any more."""


def fit(
    kind: Kind,
    path: Path,
    size_bytes: int,
    extent_bytes: int,
    *,
    planned_extents: int,
    needed: Container[Digest] | None,
) -> Fitted:
    """Make the store of that kind at `path`, if there is one, be of `size_bytes`.

    Plans keep `planned_extents` in it. Programs that run need the content `needed`: none of it if
    that is empty, and perhaps all if it is None.

    Raises:
        TierError: what is there cannot be used, or is no store.
    """
    if path.is_block_device() or path.is_char_device():
        return _fit_device(
            *(kind, path, size_bytes, extent_bytes), planned_extents=planned_extents, needed=needed
        )
    path = Path(os.path.realpath(path))  # a link to a store stays one
    draft = path.with_name(path.name + _DRAFT)
    here_bytes = path.stat().st_size if path.is_file() else 0
    if here_bytes < BLOCK_BYTES:
        return Fitted(size_bytes)
    with closing(Volume.open(open_medium(kind, path), extent_bytes)) as store:
        taken = not _clear(draft)
        wanted = lay_out(extent_bytes, size_bytes)
        if not size_bytes or (store.geometry == wanted and here_bytes <= size_bytes):
            return Fitted(size_bytes)
        stored = [one for one in store.scan() if one[1].state is SlotState.STORED]
        content = [one for one in stored if needed is None or one[1].digest in needed]
        slots = wanted.slot_count if wanted else 0
        objection = _too_small(slots, max(planned_extents, len(content)))
        remedy = _END_TASKS
        kept = content if kind == _IN_MEMORY else _with_newest(content, stored, slots)
        if kept and not objection and taken:
            objection = f"it would be copied to {draft}, and what is there is none of Tierline's"
            remedy = "move that file away"
        if kept and not objection:
            lacking = _no_room_for_both(kind, path, size_bytes)
            try:
                if not lacking:
                    _make(store, kind, draft, size_bytes, kept)
                    _put_in_place(draft, path)
            except (TierError, OSError) as error:
                draft.unlink(missing_ok=True)
                lacking = str(error)
            if lacking:
                objection, kept = (lacking if content else ""), []
        if objection:
            sentence = _keeps(kind, path, here_bytes, size_bytes, objection, remedy)
            return Fitted(here_bytes, sentence)
    if not kept:
        path.unlink()
    lost = 0 if kind == _IN_MEMORY else len(stored) - len(kept)
    return Fitted(size_bytes, left=_left(kind, path, here_bytes, size_bytes, lost, len(stored)))


def _fit_device(
    kind: Kind,
    path: Path,
    size_bytes: int,
    extent_bytes: int,
    *,
    planned_extents: int,
    needed: Container[Digest] | None,
) -> Fitted:
    with closing(open_medium(kind, path)) as whole:
        there, whole_bytes = geometry_on(whole), whole.size_bytes
    with closing(open_medium(kind, path, size_bytes)) as medium:
        wanted_bytes = medium.size_bytes
    wanted = lay_out(extent_bytes, wanted_bytes)
    usable = there is not None and there.extent_bytes == extent_bytes
    if there is None or not usable or there == wanted or there.medium_bytes > whole_bytes:
        return Fitted(size_bytes)  # what is the matter, if anything, is said when it is opened
    here_bytes = there.medium_bytes
    with closing(Volume.open(open_medium(kind, path, here_bytes), extent_bytes)) as store:
        stored = [record for _, record in store.scan() if record.state is SlotState.STORED]
    content = sum(needed is None or record.digest in needed for record in stored)
    objection = _too_small(wanted.slot_count if wanted else 0, planned_extents)
    if content and not objection:
        objection = (
            f"programs that run may need {content} extents of it, and a device has no room for a "
            "copy of them"
        )
    if objection:
        return Fitted(here_bytes, _keeps(kind, path, here_bytes, wanted_bytes, objection))
    Volume.make(open_medium(kind, path, size_bytes), extent_bytes).close()
    held = len(stored)
    return Fitted(size_bytes, left=_left(kind, path, here_bytes, wanted_bytes, held, held))


def _keeps(
    kind: Kind,
    path: Path,
    here_bytes: int,
    size_bytes: int,
    objection: str,
    remedy: str = _END_TASKS,
) -> str:
    """Say that a tier could not be given another size."""
    return (
        f"the {kind} tier {path} keeps its {here_bytes} bytes instead of {size_bytes}: {objection}"
        f"; {remedy}, then restart the agent"
    )


def _left(kind: Kind, path: Path, here_bytes: int, size_bytes: int, lost: int, of: int) -> str:
    """Say what a tier of another size does not hold any more; nothing if that is nothing."""
    if not lost:
        return ""
    return (
        f"the {kind} tier {path} has {size_bytes} bytes now instead of {here_bytes}, and {lost} of "
        f"the {of} extents that it held are gone: no program that runs needs them, and others load "
        "them again"
    )


def _too_small(slots: int, needed: int) -> str:
    """Why a store of so many extents does not do; empty if it does."""
    if needed > slots:
        return f"tasks of this node may need {needed} extents of it, and {slots} would fit"
    return ""


def _no_room_for_both(kind: Kind, path: Path, size_bytes: int) -> str:
    """Why a store of that size cannot be made next to the old one; empty if it can."""
    free_bytes, what = _free_memory_bytes(), "the machine has {} bytes of memory left"
    if kind != _IN_MEMORY:
        system = os.statvfs(path.parent)
        free_bytes, what = system.f_bavail * system.f_frsize, "its file system has {} bytes left"
    if size_bytes > free_bytes:
        return f"until all is copied it takes {size_bytes} bytes more, and " + what.format(
            free_bytes
        )
    return ""


def _with_newest(
    content: Sequence[_Content], stored: Sequence[_Content], slots: int
) -> list[_Content]:
    """The slots that are needed, and of the rest those stored last, as far as there is room."""
    needed = {slot for slot, _ in content}
    others = sorted(
        (one for one in stored if one[0] not in needed), key=lambda one: -one[1].sequence
    )
    return [*content, *others[: max(0, slots - len(content))]]


def _make(
    old: Volume, kind: Kind, path: Path, size_bytes: int, content: Sequence[_Content]
) -> None:
    """Make a store with this content, the least recently stored first. Raises TierError."""
    extent_bytes = old.geometry.extent_bytes
    _log.info("copying %d extents into a store of %d bytes at %s", len(content), size_bytes, path)
    with closing(Volume.open(open_medium(kind, path, size_bytes), extent_bytes)) as new:
        for _ in new.scan():
            pass
        block = scratch(extent_bytes)
        in_order = sorted(content, key=lambda pair: pair[1].sequence)
        for to, (slot, record) in enumerate(in_order):
            part = block[: record.length]
            old.read_content(slot, part)
            new.write_content(to, part)
            new.write_record(to, record)


def _clear(draft: Path) -> bool:
    """Remove the draft of an agent that died. Whether there is nothing any more.

    The store that it is a draft of is locked, so nobody is making one.
    """
    if draft.is_symlink() or not draft.is_file():
        return not os.path.lexists(draft)
    try:
        with draft.open("rb") as file:
            first = file.read(BLOCK_BYTES)
        if any(first) and not first.startswith(SUPERBLOCK_MAGIC):
            return False
        draft.unlink()
    except OSError:  # another user's
        return False
    return True


def _put_in_place(draft: Path, path: Path) -> None:
    """Durably: after a loss of power there is the one or the other."""
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _free_memory_bytes() -> int:
    """Memory of the machine that could be used without swapping, bytes."""
    (line,) = (one for one in _MEMORY.read_text().splitlines() if one.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
