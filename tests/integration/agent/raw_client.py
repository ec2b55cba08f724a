"""A client of the agent in plain Python: the protocol by hand, for what a good library never sends.

It blocks, and checks nothing that a test does not ask for. `Loaded` is a task's arena as a client
holds it: mappings of its residents, its ring and its control page.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tierline_agent.transport import protocol as p
from tierline_client import words

TIMEOUT_S = 120.0
_DIGESTS_AT_ONCE = 1024
DUE_S = 1000.0
"""When a job is due if its deadline does not matter: later than any machine takes for it."""
_M = TypeVar("_M")
Received = tuple[int, p.Message, list[int]]


class RefusedError(Exception):
    """The agent answered ERROR."""

    def __init__(self, error: p.Error) -> None:
        super().__init__(f"{error.code.name}: {error.reason}")
        self.code = error.code


class ClosedError(Exception):
    """The agent closed the connection."""


class RawClient:
    """One connection."""

    device = p.Device.CPU

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._sequences = itertools.count(1)
        self._decoder = p.Decoder()
        self._inbox: list[Received] = []
        self._descriptors: list[int] = []
        self.welcome: p.Welcome | None = None
        self.staging: mmap.mmap | None = None
        self.lease = -1
        """The file of its cached lease."""
        self._jobs = itertools.count(1)

    # -- frames

    def send(self, message: p.Message, descriptors: Sequence[int] = ()) -> int:
        sequence = next(self._sequences)
        socket.send_fds(self.socket, [p.encode(message, sequence)], list(descriptors))
        return sequence

    def send_together(self, *messages: p.Message) -> None:
        """Send messages that arrive at once."""
        self.send_bytes(b"".join(p.encode(one, next(self._sequences)) for one in messages))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Received:
        """The next message, whatever it is."""
        while not self._inbox:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 253)
            self._descriptors += descriptors
            if not data:
                raise ClosedError
            self._decoder.feed(data)
            for sequence, message in self._decoder:
                taken: list[int] = []
                if isinstance(message, p.Fds):
                    taken = self._descriptors[: message.count]
                    del self._descriptors[: message.count]
                self._inbox.append((sequence, message, taken))
        return self._inbox.pop(0)

    def expect(self, kind: type[_M]) -> _M:
        _, message, _ = self.receive()
        if isinstance(message, p.Error):
            raise RefusedError(message)
        assert isinstance(message, kind), message
        return message

    def ask(self, message: p.Message, kind: type[_M]) -> _M:
        self.send(message)
        return self.expect(kind)

    def expect_descriptors(self, kind: p.DescriptorKind, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            _, message, descriptors = self.receive()
            assert isinstance(message, p.Fds), message
            assert message.kind == kind
            assert message.first == len(found)
            found += descriptors
        return found

    # -- verbs

    def hello(
        self, token: int = 0, name: str = "test", minor: int = p.MINOR, *, held: int = 0
    ) -> p.Welcome:
        """`held`: the job in progress that has the lease alone."""
        self.send(p.Hello(self.device, token, name, minor))
        return self.welcomed(held)

    def welcomed(self, held: int = 0) -> p.Welcome:
        """Take what answers a HELLO, and say what is held."""
        self.welcome = self.expect(p.Welcome)
        (descriptor,) = self.expect_descriptors(p.DescriptorKind.STAGING, 1)
        self.staging = mmap.mmap(descriptor, self.welcome.extent_bytes * self.welcome.staging_slots)
        os.close(descriptor)
        if self.welcome.flags & p.WelcomeFlags.CACHED_LEASE:
            (self.lease,) = self.expect_descriptors(p.DescriptorKind.LEASE, 1)
        if self.welcome.flags & p.WelcomeFlags.SAYS_HELD:
            now_ns = time.monotonic_ns()
            self.send(p.JobHeld(held, now_ns, now_ns + int(DUE_S * 1e9)))
        return self.welcome

    def load(self, content: bytes, *, arena: int = 0, pinned: int = 0, span: int = 1) -> Loaded:
        """Reserve, store and seal `content`; each extent is a layer."""
        loaded = self.reserve(len(content), arena=arena, pinned=pinned, span=span)
        self.fill(loaded, content)
        return loaded

    def fill(self, loaded: Lent, content: bytes) -> None:
        """Store `content` in a reserved arena, and seal it."""
        arena, size = loaded.arena, loaded.extent_bytes
        for extent in range(len(loaded.placement)):
            part = content[extent * size : (extent + 1) * size]
            loaded.digests.append(self.store(arena, extent, part))
        self.seal(arena, len(loaded.placement))

    def reserve(self, size: int, *, arena: int = 0, pinned: int = 0, span: int = 1) -> Loaded:
        return Loaded(*self.borrow(size, arena=arena, pinned=pinned, span=span))

    def borrow(
        self, size: int, *, arena: int = 0, pinned: int = 0, span: int = 1
    ) -> tuple[int, int, int, tuple[int, ...], list[int], list[int], int]:
        """Reserve an arena; the fields of `Lent`."""
        assert self.welcome is not None
        reserved = self.ask(p.Reserve(arena, span, size, pinned), p.Reserved)
        residents = self.expect_descriptors(p.DescriptorKind.RESIDENT, reserved.resident_count)
        ring = self.expect_descriptors(p.DescriptorKind.RING, reserved.ring_slots)
        (control,) = self.expect_descriptors(p.DescriptorKind.CONTROL, 1)
        return arena, size, self.welcome.extent_bytes, reserved.placement, residents, ring, control

    def store(self, arena: int, extent: int, part: bytes, slot: int = 0) -> bytes:
        assert self.staging is not None
        assert self.welcome is not None
        begin = slot * self.welcome.extent_bytes
        self.staging[begin : begin + len(part)] = part
        return self.ask(p.Store(arena, extent, slot, len(part)), p.Stored).digest

    def seal(self, arena: int, extents: int) -> p.Sealed:
        layers = tuple(p.LayerSpan(extent, extent) for extent in range(extents))
        return self.ask(p.Seal(arena, layers), p.Sealed)

    def begin(
        self,
        arena: int,
        *,
        deadline_s: float = DUE_S,
        release_ns: int | None = None,
        warmup: bool = False,
        wait: bool = True,
    ) -> int:
        """Ask for a job, released now if not said otherwise; wait for the grant if asked to."""
        job = next(self._jobs)
        now_ns = time.monotonic_ns() if release_ns is None else release_ns
        self.send(
            p.JobBegin(
                job,
                arena,
                p.JobFlags.WARMUP if warmup else p.JobFlags(0),
                now_ns,
                now_ns + int(deadline_s * 1e9),
            )
        )
        if wait:
            assert self.expect(p.Grant).job == job
        return job

    def end(self, job: int) -> None:
        self.ask(p.JobEnd(job, time.monotonic_ns(), 0, 0, 0), p.Ended)

    # -- the cached lease

    def take(
        self, *, deadline_s: float = DUE_S, arena: int = p.NO_ARENA, warmup: bool = False
    ) -> int | None:
        """Begin a job by the cached lease; None if it is not open."""
        job = next(self._jobs)
        if not self.lock_lease():
            return None
        last_job, of_arena, _ = struct.unpack("<QII", os.pread(self.lease, 16, 0))
        if last_job < job or of_arena != arena:
            self.unlock_lease()
            return None
        now_ns = time.monotonic_ns()
        flags = p.JobFlags.WARMUP if warmup else p.JobFlags(0)
        self.send(p.JobTaken(job, arena, flags, now_ns, now_ns + int(deadline_s * 1e9), now_ns))
        return job

    def give_back(self, job: int) -> None:
        """End it."""
        self.unlock_lease()
        self.send(p.JobReturned(job, time.monotonic_ns(), 0, 0, 0))

    def lock_lease(self) -> bool:
        try:
            fcntl.flock(self.lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock_lease(self) -> None:
        fcntl.flock(self.lease, fcntl.LOCK_UN)

    def counted(self) -> p.Statistics:
        """The task's counters, when all that was sent before is counted."""
        return self.ask(p.Stats(), p.Statistics)

    def rewind(
        self, job: int, arena: int = 0, position: int = 0, consumed: int | None = None
    ) -> None:
        """Have an arena streamed for a job, from a position of its stream."""
        consumed = position if consumed is None else consumed
        assert self.ask(p.Rewind(job, arena, position, consumed), p.Rewound).job == job

    def attach(self, loaded: Lent, *, job: int = 0, deadline_ns: int = 1 << 60) -> None:
        """Offer an arena back, which the agent takes."""
        self.offer(loaded, job=job, deadline_ns=deadline_ns)
        assert self.expect(p.Attached).arena == loaded.arena

    def offer(self, loaded: Lent, *, job: int = 0, deadline_ns: int = 1 << 60) -> None:
        """Offer an arena back."""
        for first in range(0, len(loaded.digests), _DIGESTS_AT_ONCE):
            digests = tuple(loaded.digests[first : first + _DIGESTS_AT_ONCE])
            self.send(p.Digests(loaded.arena, first, digests))
        self.send(
            p.Attach(
                loaded.arena,
                len(loaded.placement),
                len(loaded.ring),
                loaded.size,
                0,
                job,
                0,
                deadline_ns,
                loaded.placement,
            )
        )
        for kind, descriptors in (
            (p.DescriptorKind.RESIDENT, loaded.residents),
            (p.DescriptorKind.RING, loaded.ring),
            (p.DescriptorKind.CONTROL, [loaded.control]),
        ):
            for first in range(0, len(descriptors), p.MAX_DESCRIPTORS):
                part = descriptors[first : first + p.MAX_DESCRIPTORS]
                self.send(p.Fds(loaded.arena, kind, first, len(part)), part)

    def wait_readable(self) -> None:
        """Wait until a message is there, and leave it."""
        self.socket.recv(1, socket.MSG_PEEK)

    def close(self) -> None:
        self.socket.close()
        if self.lease >= 0:
            os.close(self.lease)
            self.lease = -1
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


@dataclass
class Lent:
    """An arena and the descriptors that were lent for it."""

    arena: int
    size: int
    extent_bytes: int
    placement: tuple[int, ...]
    residents: list[int]
    ring: list[int]
    control: int

    def __post_init__(self) -> None:
        self.digests: list[bytes] = []
        self.streamed = [
            extent for extent, word in enumerate(self.placement) if not word & p.RESIDENT_BIT
        ]


class Loaded(Lent):
    """An arena of host memory, with its extents mapped one by one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory = [self._map(descriptor) for descriptor in self.residents]
        self._slots = [self._map(descriptor) for descriptor in self.ring]
        self.words = mmap.mmap(self.control, mmap.PAGESIZE)
        self._address = _address_of(self.words)

    def _map(self, descriptor: int) -> mmap.mmap:
        return mmap.mmap(descriptor, self.extent_bytes, prot=mmap.PROT_READ)

    def wait_published(self, count: int, timeout_s: float = TIMEOUT_S) -> bool:
        return words.wait(self._address, count, timeout_s)

    def published(self) -> int:
        return int(struct.unpack_from("<I", self.words)[0])

    def consume(self, count: int) -> None:
        words.publish(self._address + 64, count)

    def read_extent(self, extent: int) -> bytes:
        """The bytes at an extent's address, whatever is there now."""
        word = self.placement[extent]
        memory = self._memory[word - p.RESIDENT_BIT] if word & p.RESIDENT_BIT else self._slots[word]
        return memory[: min(self.extent_bytes, self.size - extent * self.extent_bytes)]

    def read_in_job(self, start: int = 0) -> bytes:
        """Read the whole arena as a job does: wait, read, consume."""
        parts = []
        streamed = 0
        for extent, word in enumerate(self.placement):
            if not word & p.RESIDENT_BIT:
                streamed += 1
                if streamed > start:
                    assert self.wait_published(streamed), f"extent {extent} never came"
            if word & p.RESIDENT_BIT or streamed > start:
                parts.append(self.read_extent(extent))
            if not word & p.RESIDENT_BIT and streamed > start:
                self.consume(streamed)
        return b"".join(parts)


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
