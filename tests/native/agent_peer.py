"""A small agent for the tests of the client library: real sockets, memfds and a stream thread.

It speaks the whole client side of the protocol for one task, keeps what it stores in files, and
misbehaves where its options say so. It plans nothing and proves nothing: the placement is given.

    python -m tests.native.agent_peer --socket S --store DIR --resident 0,4 --ring 2

Each event a test may want to see is a line of DIR/events.jsonl. Ring slots are filled with POISON
whenever no job runs, so that a stale read shows.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierline_agent.transport import protocol as p
from tierline_client import words

POISON = b"\xee"
CONSUMED_OFFSET = 64
PAGE = mmap.PAGESIZE


class Memory:
    """A mapped memfd."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.view = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, name: str, size: int) -> Memory:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(descriptor, size)

    @classmethod
    def adopt(cls, descriptor: int, size: int) -> Memory:
        return cls(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC), size)

    def read_only(self) -> int:
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.view))


@dataclass
class Arena:
    """What the peer holds of one arena."""

    placement: tuple[int, ...]
    weight_bytes: int
    resident: list[Memory] = field(default_factory=list)
    ring: list[Memory] = field(default_factory=list)
    control: Memory | None = None
    digests: dict[int, bytes] = field(default_factory=dict)

    @property
    def streamed(self) -> list[int]:
        return [e for e, place in enumerate(self.placement) if not place & p.RESIDENT_BIT]


class Peer:
    """One connection's agent."""

    def __init__(self, options: argparse.Namespace, connection: socket.socket) -> None:
        self.options = options
        self.connection = connection
        self.store = Path(options.store)
        self.extent_bytes: int = options.extent_bytes
        self.descriptors: list[int] = []
        self.arenas: dict[int, Arena] = {}
        self.attaching: tuple[int, p.Attach] | None = None
        self.offered: dict[int, dict[int, bytes]] = {}
        self.staging = Memory.create("staging", options.staging_slots * self.extent_bytes)
        self.stop = threading.Event()
        self.stream: threading.Thread | None = None
        self.job = 0
        self.sending = threading.Lock()

    def note(self, event: str, **values: Any) -> None:
        with (self.store / "events.jsonl").open("a") as log:
            log.write(json.dumps({"event": event, **values}) + "\n")

    def send(self, message: p.Message, sequence: int, descriptors: list[int] | None = None) -> None:
        frame = self.spoil(message, p.encode(message, sequence))
        with self.sending:
            if descriptors:
                socket.send_fds(self.connection, [frame], descriptors)
            else:
                self.connection.sendall(frame)

    def spoil(self, message: p.Message, frame: bytes) -> bytes:
        """Break a reply as --malform says: TYPE=how."""
        which, _, how = (self.options.malform or "").partition("=")
        if type(message).__name__ != which:
            return frame
        (sequence,) = struct.unpack_from("<I", frame, 8)
        spoiled = {
            "length": struct.pack("<I", 70000) + frame[4:],
            "type": frame[:4] + struct.pack("<H", 99) + frame[6:],
            "cut": struct.pack("<I", len(frame) - 13) + frame[4:-1],
            "sequence": frame[:8] + struct.pack("<I", 0xFFFF0000) + frame[12:],
            "bytes": frame[: p.HEADER_BYTES] + b"\xff" * (len(frame) - p.HEADER_BYTES),
            "other": p.encode(p.Ended(job=1), sequence),
        }
        return spoiled[how]

    def messages(self) -> Iterator[tuple[int, p.Message]]:
        decoder = p.Decoder()
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.connection, 65536, 253)
            self.descriptors += descriptors
            if not data:
                return
            decoder.feed(data)
            yield from decoder

    def serve(self) -> None:
        try:
            for sequence, message in self.messages():
                name = type(message).__name__
                if name == self.options.die_on:
                    os._exit(9)
                if name == self.options.hang_up_on:
                    self.options.hang_up_on = ""
                    break
                if name == self.options.refuse:
                    self.send(p.Error(p.ErrorCode.QUOTA, f"no {name} here"), sequence)
                    continue
                getattr(self, f"on_{name.lower()}")(sequence, message)
        except OSError:
            pass
        finally:
            self.end_stream()
            self.connection.close()

    # -- one handler a message

    def on_hello(self, sequence: int, message: p.Hello) -> None:
        self.note("hello", token=message.reattach_token, name=message.process_name)
        welcome = p.Welcome(
            reattach_token=message.reattach_token or 4711,
            extent_bytes=self.extent_bytes,
            period_ns=50_000_000,
            deadline_ns=40_000_000,
            flags=p.WelcomeFlags.RECORD_OUTPUTS,
            staging_slots=self.options.staging_slots,
            max_arenas=4,
            task_name="test",
            device_uuid="",
        )
        self.send(welcome, sequence)
        self.send(p.Fds(0, p.DescriptorKind.STAGING, 0, 1), 0, [self.staging.descriptor])

    def place(self, count: int) -> tuple[int, ...]:
        resident = {e for e in self.options.resident if e < count}
        placement, residents, streamed = [], 0, 0
        for extent in range(count):
            if extent in resident:
                placement.append(p.RESIDENT_BIT | residents)
                residents += 1
            else:
                placement.append(streamed % self.options.ring)
                streamed += 1
        return tuple(placement)

    def on_reserve(self, sequence: int, message: p.Reserve) -> None:
        count = -(-message.weight_bytes // self.extent_bytes)
        arena = Arena(self.place(count), message.weight_bytes)
        residents = sum(1 for place in arena.placement if place & p.RESIDENT_BIT)
        size = self.extent_bytes
        arena.resident = [Memory.create("resident", size) for _ in range(residents)]
        arena.ring = [Memory.create("ring", size) for _ in range(self.options.ring)]
        arena.control = Memory.create("control", PAGE)
        self.arenas[message.arena] = arena
        self.poison(arena)
        answer = p.Reserved(message.arena, residents, self.options.ring, arena.placement)
        if self.options.misplace == "slot":
            answer = p.Reserved(message.arena, residents, self.options.ring,
                                tuple(place ^ 1 for place in arena.placement))  # fmt: skip
        if self.options.misplace == "count":
            answer = p.Reserved(message.arena, residents, self.options.ring,
                                (*arena.placement, 0))  # fmt: skip
        self.send(answer, sequence)
        kinds = [
            (p.DescriptorKind.RESIDENT, [m.read_only() for m in arena.resident]),
            (p.DescriptorKind.RING, [m.read_only() for m in arena.ring]),
            (p.DescriptorKind.CONTROL, [os.dup(arena.control.descriptor)]),
        ]
        for kind, descriptors in kinds:
            for first in range(0, len(descriptors), p.MAX_DESCRIPTORS):
                some = descriptors[first : first + p.MAX_DESCRIPTORS]
                number = first + (1 if self.options.misplace == "descriptors" else 0)
                self.send(p.Fds(message.arena, kind, number, len(some)), 0, some)
            for descriptor in descriptors:
                os.close(descriptor)

    def path(self, arena: int, extent: int) -> Path:
        return self.store / f"{arena}-{extent}.bin"

    def on_store(self, sequence: int, message: p.Store) -> None:
        start = message.staging_slot * self.extent_bytes
        data = self.staging.view[start : start + message.length]
        self.path(message.arena, message.extent).write_bytes(data)
        digest = hashlib.blake2s(data).digest()
        self.arenas[message.arena].digests[message.extent] = digest
        self.send(p.Stored(message.arena, message.extent, digest), sequence)

    def fill(self, memory: Memory, number: int, extent: int) -> None:
        data = self.path(number, extent).read_bytes()
        memory.view[: len(data)] = data

    def on_seal(self, sequence: int, message: p.Seal) -> None:
        arena = self.arenas[message.arena]
        for extent, place in enumerate(arena.placement):
            if place & p.RESIDENT_BIT:
                self.fill(arena.resident[place & ~p.RESIDENT_BIT], message.arena, extent)
        whole = b"".join(arena.digests[e] for e in sorted(arena.digests))
        self.send(p.Sealed(message.arena, hashlib.blake2s(whole).digest()), sequence)

    def on_free(self, sequence: int, message: p.Free) -> None:
        self.arenas.pop(message.arena, None)
        self.note("freed", arena=message.arena)
        self.send(p.Freed(message.arena), sequence)

    def poison(self, arena: Arena) -> None:
        for memory in arena.ring:
            memory.view[:] = POISON * self.extent_bytes

    def on_jobbegin(self, sequence: int, message: p.JobBegin) -> None:
        self.job = message.job
        if message.arena != p.NO_ARENA:
            control = self.arenas[message.arena].control
            assert control is not None
            control.view[:PAGE] = bytes(PAGE)
            self.begin_stream(message.arena, 0)
        self.send(p.Grant(message.job, time.monotonic_ns()), sequence)

    def begin_stream(self, number: int, published: int) -> None:
        self.stop.clear()
        self.stream = threading.Thread(target=self.run_stream, args=(number, published))
        self.stream.start()

    def run_stream(self, number: int, published: int) -> None:
        arena = self.arenas[number]
        assert arena.control is not None
        address = arena.control.address()
        for j, extent in enumerate(arena.streamed):
            if j < published:
                continue
            if j == self.options.hold_at:
                self.note("holding", at=j)
                self.stop.wait()
            if j == self.options.revoke_at:
                self.note("revoking", job=self.job)
                self.send(p.Revoke(self.job, 7), 0)
                return
            while not words.wait(address + CONSUMED_OFFSET, max(0, j - len(arena.ring) + 1), 0.05):
                if self.stop.is_set():
                    return
            if self.stop.is_set():
                return
            self.fill(arena.ring[j % len(arena.ring)], number, extent)
            words.publish(address, j + 1)

    def end_stream(self) -> None:
        self.stop.set()
        if self.stream is not None:
            self.stream.join()
            self.stream = None

    def on_jobend(self, sequence: int, message: p.JobEnd) -> None:
        self.end_stream()
        for arena in self.arenas.values():
            self.poison(arena)
        self.note("ended", job=message.job, stall_ns=message.stall_ns,
                  fetched_bytes=message.fetched_bytes)  # fmt: skip
        self.send(p.Ended(message.job), sequence)

    def on_ack(self, _sequence: int, message: p.Ack) -> None:
        self.end_stream()
        for arena in self.arenas.values():
            self.poison(arena)
        self.note("acknowledged", job=message.job)

    def on_fetch(self, sequence: int, message: p.Fetch) -> None:
        if self.options.corrupt == message.extent:
            self.send(p.Error(p.ErrorCode.CORRUPT, "the extent's digest is wrong"), sequence)
            return
        data = self.path(message.arena, message.extent).read_bytes()
        start = message.staging_slot * self.extent_bytes
        self.staging.view[start : start + len(data)] = data
        self.note("fetched", extent=message.extent)
        length = len(data) - (1 if self.options.short_fetch else 0)
        self.send(p.Fetched(message.arena, message.extent, length), sequence)

    def on_output(self, _sequence: int, message: p.Output) -> None:
        self.note("output", job=message.job, output=message.output_digest.hex())

    def on_ready(self, sequence: int, _message: p.Ready) -> None:
        self.note("ready")
        self.send(p.Start(123, 456), sequence)

    def on_profile(self, sequence: int, message: p.Profile) -> None:
        self.note("profile", first=message.first_layer, total=message.total_layers,
                  names=[layer.name for layer in message.layers[:2]])  # fmt: skip
        self.send(p.Profiled(message.first_layer + len(message.layers)), sequence)

    def on_notice(self, _sequence: int, message: p.Notice) -> None:
        self.note("notice", kind=message.kind.name, size_bytes=message.size_bytes,
                  text=message.text)  # fmt: skip

    def on_stats(self, sequence: int, _message: p.Stats) -> None:
        self.send(p.Statistics(self.job, 0, 0, 0), sequence)

    # -- re-attaching

    def on_digests(self, _sequence: int, message: p.Digests) -> None:
        known = self.offered.setdefault(message.arena, {})
        known.update(enumerate(message.digests, message.first))

    def on_attach(self, sequence: int, message: p.Attach) -> None:
        self.attaching = (sequence, message)
        arena = Arena(message.placement, message.weight_bytes)
        arena.digests = self.offered.get(message.arena, {})
        self.arenas[message.arena] = arena

    def on_fds(self, _sequence: int, message: p.Fds) -> None:
        descriptors = [self.descriptors.pop(0) for _ in range(message.count)]
        assert self.attaching is not None
        sequence, attach = self.attaching
        arena = self.arenas[attach.arena]
        for descriptor in descriptors:
            if message.kind is p.DescriptorKind.CONTROL:
                arena.control = Memory.adopt(descriptor, PAGE)
            elif message.kind is p.DescriptorKind.RING:
                arena.ring.append(Memory.adopt(descriptor, self.extent_bytes))
            else:
                arena.resident.append(Memory.adopt(descriptor, self.extent_bytes))
            os.close(descriptor)
        if arena.control is None:
            return
        assert len(arena.ring) == attach.ring_slots
        assert len(arena.digests) == len(attach.placement)
        self.attaching = None
        if attach.running_job:
            self.job = attach.running_job
            (published,) = struct.unpack_from("<I", arena.control.view, 0)
            self.note("resumed", job=self.job, published=published)
            if self.options.revoke_resumed:
                self.send(p.Revoke(self.job, 8), 0)
            else:
                self.begin_stream(attach.arena, published)
        self.send(p.Attached(attach.arena), sequence)


def main() -> None:
    """Serve until killed; each connection in its own thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--extent-bytes", type=int, default=65536)
    parser.add_argument("--staging-slots", type=int, default=2)
    parser.add_argument(
        "--resident", type=lambda s: [int(x) for x in s.split(",") if x], default=[]
    )
    parser.add_argument("--ring", type=int, default=2)
    parser.add_argument("--hold-at", type=int, default=-1, help="stop streaming before this one")
    parser.add_argument("--revoke-at", type=int, default=-1, help="revoke the job before this one")
    parser.add_argument("--revoke-resumed", action="store_true")
    parser.add_argument("--malform", help="TYPE=length|type|cut|sequence|bytes|other")
    parser.add_argument("--misplace", choices=["slot", "count", "descriptors"])
    parser.add_argument("--refuse", help="answer this message with an ERROR")
    parser.add_argument("--die-on", help="exit when this message comes")
    parser.add_argument("--hang-up-on", help="close the connection when it first comes")
    parser.add_argument("--corrupt", type=int, default=-1, help="this extent cannot be fetched")
    parser.add_argument("--short-fetch", action="store_true")
    options = parser.parse_args()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = Path(options.socket)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen()
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=Peer(options, connection).serve, daemon=True).start()


if __name__ == "__main__":
    main()
