"""A codec of the client protocol made from protocol.toml alone: it encodes what none should."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.integration.agent.behaviours import Target

SPEC = tomllib.loads((Path(__file__).parents[4] / "nodeagent/native/protocol.toml").read_text())
MESSAGES: dict[str, dict[str, Any]] = {one["name"]: one for one in SPEC["message"]}
_BY_TYPE = {one["type"]: one for one in SPEC["message"]}
_RECORDS = {one["name"]: one["fields"] for one in SPEC["record"]}
_CODES = {"u16": "H", "u32": "I", "u64": "Q"}
KINDS: dict[str, int] = next(e["values"] for e in SPEC["enum"] if e["name"] == "DescriptorKind")
DEVICES: dict[str, int] = next(e["values"] for e in SPEC["enum"] if e["name"] == "Device")
NO_ARENA: int = SPEC["no_arena"]
RESIDENT: int = SPEC["resident_bit"]
MINOR: int = SPEC["minor"]
CACHED_LEASE: int = next(
    e["values"]["CACHED_LEASE"] for e in SPEC["flags"] if e["name"] == "WelcomeFlags"
)
EXTENT = 64 << 10
FOR_EVER = 1 << 62
_PATIENCE_S = 20.0
_LAST = 0xFFFFFFF0
Values = dict[str, Any]
Field = dict[str, Any]


def size_of(field: Field) -> int:
    kind = field["type"]
    known = {"u16": 2, "u32": 4, "u64": 8, "digest": 32}
    return known[kind] if kind in known else int(kind.split(":")[1])


def _pack_field(field: Field, value: Any) -> bytes:
    if value is None:
        value = field.get("const", 0)
    if field["type"] in _CODES:
        return struct.pack("<" + _CODES[field["type"]], value)
    text = value.encode() if isinstance(value, str) else value or b""
    return bytes(text).ljust(size_of(field), b"\0")[: size_of(field)]


def pack(fields: Sequence[Field], values: Values) -> bytes:
    return b"".join(_pack_field(field, values.get(field["name"])) for field in fields)


def payload(name: str, items: Sequence[Any] = (), **values: Any) -> bytes:
    message = MESSAGES[name]
    body = b""
    if many := message.get("array"):
        values.setdefault(many["count"], len(items))
        for item in items:
            record = _RECORDS.get(many["of"])
            body += pack(record, item) if record else _pack_field({"type": many["of"]}, item)
    return pack(message["fields"], values) + body


def raw(kind: int, body: bytes = b"", sequence: int = 1, reserved: int = 0, **odd: int) -> bytes:
    """A frame; `length` if it is not the body's."""
    return struct.pack("<IHHI", odd.get("length", len(body)), kind, reserved, sequence) + body


def frame(name: str, sequence: int = 1, items: Sequence[Any] = (), **values: Any) -> bytes:
    return raw(MESSAGES[name]["type"], payload(name, items, **values), sequence)


def _unpack(kind: int, body: bytes) -> Values:
    values: Values = {"": _BY_TYPE[kind]["name"]}
    at = 0
    for field in _BY_TYPE[kind]["fields"]:
        part = body[at : at + size_of(field)]
        at += size_of(field)
        code = _CODES.get(field["type"])
        values[field["name"]] = struct.unpack("<" + code, part)[0] if code else part
    many = _BY_TYPE[kind].get("array")
    if many and (code := _CODES.get(many["of"])):
        count = values[many["count"]]
        values[many["name"]] = struct.unpack(f"<{count}{code}", body[at:])
    return values


class ClosedError(Exception):
    """The agent closed the connection."""


class Wire:
    """One connection. What it was lent stays open until the process ends."""

    def __init__(self, target: Target, *, greet: bool = True) -> None:
        self.device = target.device
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(_PATIENCE_S)
        self.socket.connect(str(target.path))
        self._buffer = b""
        self._arrived: list[int] = []
        self._sequence = 0
        self.lent: dict[str, list[int]] = {}
        if greet:
            terms = self.ask("Hello", minor=MINOR, device=self.device, process_name="mean")
            if terms[""] == "Error":  # as when there are too many clients, some of them gone
                raise ClosedError
            while len(self.lent) < 1 + bool(terms["flags"] & CACHED_LEASE):
                self.until("Fds")
            slots = os.fstat(self.lent["STAGING"][0]).st_size
            self.staging = mmap.mmap(self.lent["STAGING"][0], slots)

    @property
    def lent_files(self) -> tuple[str, ...]:
        """Kinds of what is lent as files. A GPU's memory is none, only the simulated driver's."""
        on_gpu = self.device == DEVICES["CUDA"]
        return "CONTROL", "STAGING", *(("LEASE",) if on_gpu else ("RESIDENT", "RING"))

    def send_bytes(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        with suppress(OSError):  # it was closed, which is an answer
            if descriptors:
                sent = self.socket.sendmsg(
                    [data],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))],
                )
                data = data[sent:]
            self.socket.sendall(data)

    def send(self, name: str, descriptors: Sequence[int] = (), **values: Any) -> int:
        self._sequence += 1
        self.send_bytes(frame(name, self._sequence, **values), descriptors)
        return self._sequence

    def receive(self) -> tuple[int, Values]:
        header = self._take(12)
        length, kind, _, sequence = struct.unpack("<IHHI", header)
        values = _unpack(kind, self._take(length))
        if values[""] == "Fds":
            name = next(name for name, number in KINDS.items() if number == values["kind"])
            taken, self._arrived = (
                self._arrived[: values["count"]],
                self._arrived[values["count"] :],
            )
            self.lent.setdefault(name, []).extend(taken)
        return sequence, values

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                data, found, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 253))
            except ConnectionError as error:
                raise ClosedError from error
            for _, _, sent in found:
                self._arrived += array.array("i", sent).tolist()
            if not data:
                raise ClosedError
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def until(self, *names: str) -> Values:
        while True:
            _, values = self.receive()
            if values[""] in names:
                return values

    def ask(self, name: str, **values: Any) -> Values:
        sequence, wanted = self.send(name, **values), MESSAGES[name]["reply"]
        while True:
            answered, found = self.receive()
            if found[""] in (wanted, "Error") and answered in (sequence, 0):
                return found

    def settle(self) -> None:
        """Wait until all that was sent is answered, or the connection is closed."""
        self.send_bytes(frame("Stats", _LAST))
        with suppress(ClosedError):
            while self.receive()[0] != _LAST:
                pass

    def end(self) -> None:
        """Send nothing more, and wait until the agent has closed the connection."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        with suppress(ClosedError):
            while True:
                self.receive()

    def reserve(self, extents: int) -> Values:
        found = self.ask("Reserve", weight_bytes=extents * EXTENT, largest_span_extents=1)
        if found[""] == "Reserved":
            missing = found["resident_count"] + found["ring_slots"] + 1
            while missing:
                missing -= self.until("Fds")["count"]
        return found

    def load(self, extents: int, *, seal: bool = True) -> Values:
        """Arena 0 with so many extents; what RESERVED said."""
        reserved = self.reserve(extents)
        assert reserved[""] == "Reserved", reserved
        for extent in range(extents):
            self.staging[:EXTENT] = os.urandom(64) * (EXTENT // 64)
            stored = self.ask("Store", extent=extent, length=EXTENT)
            assert stored[""] == "Stored", stored
        if seal:
            layers = [{"first_extent": e, "last_extent": e} for e in range(extents)]
            assert self.ask("Seal", items=layers)[""] == "Sealed"
        return reserved

    def job(self, arena: int = 0, number: int = 1) -> None:
        """Begin a job, and wait for the device."""
        self.send("JobBegin", job=number, arena=arena, deadline_ns=FOR_EVER)
        self.until("Grant")
