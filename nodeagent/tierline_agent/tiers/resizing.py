"""Gives the store of a tier in memory another size, before it is opened.

The layout of a store follows from its size, so another size is another store: made beside the old
one, filled with the old one's content, and put into its place in one step. An agent that dies
meanwhile leaves the old store as it was. Content is needed only by programs that run: without any,
the old store goes before the new one comes, and a tier that fills the machine can be resized too.

It judges no content: what was stored is copied with its digest, by which each read checks it. It
resizes no store on a disk, where copying takes long.

Invariant: with programs running, either all content is in the store of the new size, or the old
store is untouched and a sentence says why; the plans of before always have the room they reckon
with.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tierline_agent.tiers.digest import Digest
from tierline_agent.tiers.errors import TierError
from tierline_agent.tiers.format import Geometry, Record, SlotState, lay_out
from tierline_agent.tiers.media import open_medium
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.volume import Volume

_KIND: Final = "dram"
_MEMORY: Final = Path("/proc/meminfo")


@dataclass(frozen=True)
class Fitted:
    """How the tier is to be opened."""

    size_bytes: int
    """Its size, bytes; 0 for all there is."""
    objection: str = ""
    """Why that is not the size that was asked for."""


def fit(
    path: Path,
    size_bytes: int,
    extent_bytes: int,
    *,
    planned_extents: int,
    needed: Container[Digest] | None,
) -> Fitted:
    """Make the store at `path`, if there is one, be of `size_bytes`.

    Plans keep `planned_extents` in it. Programs that run need the content `needed`: none of it if
    that is empty, and perhaps all if it is None.

    Raises:
        TierError: what is there cannot be used, or is no store.
    """
    here_bytes = path.stat().st_size if path.is_file() else 0
    if not size_bytes or here_bytes < BLOCK_BYTES:
        return Fitted(size_bytes)
    with closing(Volume.open(open_medium(_KIND, path), extent_bytes)) as store:
        wanted = lay_out(extent_bytes, size_bytes)
        if store.geometry == wanted and here_bytes <= size_bytes:
            return Fitted(size_bytes)
        content = [
            (slot, record)
            for slot, record in store.scan()
            if record.state is SlotState.STORED and (needed is None or record.digest in needed)
        ]
        room_for = max(planned_extents, len(content))
        objection = _objection(wanted, room_for, size_bytes if content else 0)
        if content and not objection:
            beside = path.with_name(f"{path.name}.new")
            try:
                beside.unlink(missing_ok=True)
                with closing(
                    Volume.open(open_medium(_KIND, beside, size_bytes), extent_bytes)
                ) as new:
                    _copy(store, new, content)
                beside.replace(path)
            except (TierError, OSError) as error:
                beside.unlink(missing_ok=True)
                objection = str(error)
    if objection:
        return Fitted(
            here_bytes,
            f"the {_KIND} tier {path} keeps its {here_bytes} bytes instead of {size_bytes}: "
            f"{objection}; end tasks, then restart the agent",
        )
    if not content:
        path.unlink()
    return Fitted(size_bytes)


def _objection(wanted: Geometry | None, needed: int, beside_bytes: int) -> str:
    """Why a store of that size, made beside the old one, does not do; empty if it does."""
    slots = wanted.slot_count if wanted else 0
    if needed > slots:
        return f"tasks of this node may need {needed} extents of it, and {slots} would fit"
    free_bytes = _free_bytes()
    if beside_bytes > free_bytes:
        return (
            f"until all is copied it takes {beside_bytes} bytes more, and the machine has "
            f"{free_bytes} bytes of memory left"
        )
    return ""


def _copy(old: Volume, new: Volume, content: Sequence[tuple[int, Record]]) -> None:
    """Copy content, the least recently stored first."""
    for _ in new.scan():
        pass
    block = scratch(old.geometry.extent_bytes)
    in_order = sorted(content, key=lambda pair: pair[1].sequence)
    for to, (slot, record) in enumerate(in_order):
        part = block[: record.length]
        old.read_content(slot, part)
        new.write_content(to, part)
        new.write_record(to, record)


def _free_bytes() -> int:
    """Memory of the machine that could be used without swapping, bytes."""
    (line,) = (one for one in _MEMORY.read_text().splitlines() if one.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
