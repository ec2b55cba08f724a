"""Host memory that a device copies from: mappings of the tiers, and buffers for what is read.

Everything is pinned at the start, before the medium is this agent's if it can be (`MappedMedium`:
to pin changes no byte), and in pieces: a pin takes a lock of the whole driver, and one of
hundreds of gigabytes would stall every CUDA call of the node for minutes. Each device pins mappings
of its own (`MappedMedium.map_again`).

The driver refuses a copy that crosses from one pinned piece into the next. Extents are powers of
two no larger than a piece, and pieces begin where the content begins: no extent lies across two.

Invariant: what is pinned stays mapped; an extent is copied only from a medium that is attached.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import CudaFailed, call, driver
from tierline_agent.tiers import MappedMedium
from tierline_agent.tiers.memory import address_of, scratch
from tierline_agent.tiers.sources import Place

_PIECE_BYTES = 1 << 30
_PORTABLE_OFF = 0


def pin(context: Context, what: str, address: int, size_bytes: int) -> None:
    """Pin memory that has been written to or is populated. Raises CudaFailed."""
    for piece in _pieces(address, size_bytes):
        _pin_piece(context, what, *piece)


def unpin(context: Context, address: int, size_bytes: int) -> None:
    """Undo `pin`; a context that is lost has undone it. Waits for all that is enqueued."""
    context.enter()
    for at, _ in _pieces(address, size_bytes):
        driver.cuMemHostUnregister(at)


def _pieces(address: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each piece begins, and its bytes."""
    end = address + size_bytes
    for at in range(address, end, _PIECE_BYTES):
        yield at, min(_PIECE_BYTES, end - at)


def _pin_piece(context: Context, what: str, address: int, size_bytes: int) -> None:
    context.enter()
    attempt = f"pin {what} ({size_bytes} bytes) for GPU {context.ordinal}"
    call(attempt, driver.cuMemHostRegister, address, size_bytes, _PORTABLE_OFF)


@dataclass(frozen=True)
class _Pinned:
    memory: mmap.mmap
    address: int
    content_offset: int


class PinnedMedia:
    """One device's own mappings of the media that are memory."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mappings: dict[MappedMedium, _Pinned] = {}
        self._attaching = threading.Lock()
        self._given_up = False

    def attach(self, media: Mapping[MappedMedium, int]) -> None:
        """Have each medium pinned from where its content begins, bytes, and no other one.

        What is pinned like that already stays. Raises CudaFailed, TierError: all others are.
        """
        with self._attaching:
            for medium, mapping in [*self._mappings.items()]:
                if media.get(medium) != mapping.content_offset:
                    del self._mappings[medium]
                    self._drop(medium, mapping)
            for medium, content_offset in media.items():
                if medium not in self._mappings:
                    self._mappings[medium] = self._map(medium, content_offset)

    def give_up(self) -> None:
        """Let go of all for good, also of what another thread is attaching: that fails."""
        self._given_up = True
        self.attach({})

    def address_of(self, place: Place) -> int:
        """Where this device finds a place."""
        return self._mappings[place.medium].address + place.offset

    def pin_again(self) -> None:
        """After the context was made again. Raises CudaFailed."""
        for medium, mapping in self._mappings.items():
            self._pin(medium, mapping)

    def _map(self, medium: MappedMedium, content_offset: int) -> _Pinned:
        memory = medium.map_again()
        mapping = _Pinned(memory, address_of(memoryview(memory)), content_offset)
        try:
            self._pin(medium, mapping)
        except CudaFailed:
            self._drop(medium, mapping)
            raise
        return mapping

    def _drop(self, medium: MappedMedium, mapping: _Pinned) -> None:
        offset = mapping.content_offset
        with suppress(CudaFailed):  # a context that is lost has unpinned it
            unpin(self._context, mapping.address + offset, medium.size_bytes - offset)
        mapping.memory.close()

    def _pin(self, medium: MappedMedium, mapping: _Pinned) -> None:
        what, offset = f"the {medium.kind} tier {medium.path}", mapping.content_offset
        for piece in _pieces(mapping.address + offset, medium.size_bytes - offset):
            if self._given_up:
                raise CudaFailed(f"cannot pin {what}: GPU {self._context.ordinal} was given back")
            _pin_piece(self._context, what, *piece)


@dataclass(frozen=True, eq=False)
class Buffer:
    """Pinned memory of one extent."""

    view: memoryview
    address: int


class Buffers:
    """Pinned buffers for content that a link's worker reads."""

    def __init__(self, context: Context, count: int, size_bytes: int) -> None:
        """Raises CudaFailed."""
        self._context = context
        self._memory = scratch(count * size_bytes)
        self._base = address_of(self._memory)
        self.all = [
            Buffer(self._memory[at : at + size_bytes], self._base + at)
            for at in range(0, count * size_bytes, size_bytes)
        ]
        self.pin()

    def pin(self) -> None:
        """Pin them in the context as it is now. Raises CudaFailed."""
        pin(self._context, "read buffers", self._base, self._memory.nbytes)
