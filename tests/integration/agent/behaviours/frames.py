"""Frames: each message with each field as it must not be, before and after HELLO."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import (
    MESSAGES,
    MINOR,
    Field,
    Wire,
    frame,
    pack,
    payload,
    raw,
    size_of,
)

_FROM_CLIENT = [one for one in MESSAGES.values() if one["from"] in ("client", "both")]
_UNKNOWN = (0, 42, 43, 50, 99, 100, 127, 128, 200, 254, 256, 257, 300, 1024, 4096, 32767, 65535)
_COUNTS = (1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x40000001)
_TEXTS = {
    "not UTF-8": b"\xff\xfe" * 4,
    "bytes after NUL": b"a\0b",
    "a surrogate": b"\xed\xa0\x80",
    "no NUL": b"a" * 4096,
}


def frames(device: int) -> Iterator[Behaviour]:
    """All of them, for a task of this kind of device."""
    for kind in _UNKNOWN:
        yield _sends(f"unknown type {kind}", raw(kind, bytes(16)))
    for one in MESSAGES.values():
        if one["from"] == "agent":
            yield _sends(f"the agent's own {one['name']}", raw(one["type"], bytes(64)))
    for one in _FROM_CLIENT:
        yield from _of_message(one, device)
        for field in one["fields"]:
            yield from _of_field(one, field, device)
    yield from _others(device)


def _sends(name: str, data: bytes, *, greet: bool = True, whole: bool = True) -> Behaviour:
    def run(target: Target) -> None:
        wire = Wire(target, greet=greet)
        wire.send_bytes(data)
        if whole:
            wire.settle()
        wire.end()

    return name, run


def _of_message(one: dict[str, Any], device: int) -> Iterator[Behaviour]:
    name, kind = one["name"], one["type"]
    usual = payload(name, device=device)
    if name != "Hello":
        yield _sends(f"{name} before HELLO", frame(name), greet=False)
    for what, data in {
        "empty": raw(kind),
        "one byte short": raw(kind, usual[:-1]),
        "one byte long": raw(kind, usual + b"\0"),
        "all ones": raw(kind, b"\xff" * len(usual)),
        "reserved set": raw(kind, usual, reserved=1),
        "as it is": raw(kind, usual),
        "twice": frame(name, 7, device=device) * 2,
    }.items():
        yield _sends(f"{name} {what}", data)
    for count in _COUNTS if "array" in one else ():
        body = pack(one["fields"], {one["array"]["count"]: count})
        yield _sends(f"{name} of {count:#x} items without them", raw(kind, body))


def _of_field(one: dict[str, Any], field: Field, device: int) -> Iterator[Behaviour]:
    odd: dict[str, Any] = {}
    if "const" in field:
        odd["another constant"] = field["const"] ^ 0xFF
    if "enum" in field:
        odd["no such value"] = 0xDEAD
    if "flags" in field:
        odd["unknown flags"] = 0xFFFFFFFE
    if "max" in field:
        odd["above its limit"] = field["max"] + 1
    if "min" in field:
        odd["below its limit"] = field["min"] - 1
    if field["type"].startswith("text"):
        odd |= {what: value[: size_of(field)] for what, value in _TEXTS.items()}
    for what, value in odd.items():
        body = pack(one["fields"], {"device": device, field["name"]: value})
        for greet in (True, False) if one["name"] == "Hello" else (True,):
            yield _sends(
                f"{one['name']}.{field['name']} {what}", raw(one["type"], body), greet=greet
            )


def _others(device: int) -> Iterator[Behaviour]:
    stats, hello = MESSAGES["Stats"]["type"], MESSAGES["Hello"]
    for length in (65537, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF):
        yield _sends(f"a length of {length:#x}", raw(stats, bytes(8), length=length))
    yield _sends("64 KiB of STATS", raw(stats, bytes(1 << 16)))
    yield _sends("garbage", Random(1).randbytes(1 << 16), greet=False)  # noqa: S311 - filler
    yield _sends("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", greet=False)
    yield _sends("nothing", b"", greet=False, whole=False)
    yield _sends("half a header", b"\x08\0\0", whole=False)
    yield _sends("half a frame", frame("Stats")[:-1], whole=False)
    for major in (0, 2, 9, 65535):
        for more in (b"", bytes(40)):
            body = pack(hello["fields"], {"major": major, "minor": MINOR, "device": device}) + more
            yield _sends(
                f"HELLO of major {major} and {len(more)} bytes more",
                raw(hello["type"], body),
                greet=False,
            )
    for minor in (0, 1, MINOR + 1, 65535):
        data = frame("Hello", minor=minor, device=device)
        yield _sends(f"HELLO of minor {minor}", data, greet=False)
    for token in (1, 1 << 63, (1 << 64) - 1):
        data = frame("Hello", minor=MINOR, device=device, reattach_token=token)
        yield _sends(f"HELLO with token {token}", data, greet=False)
    yield _sends("HELLO for another device", frame("Hello", device=1 - device), greet=False)
    yield _sends("sequences 0 and most", frame("Stats", 0) + frame("Stats", 0xFFFFFFFF))
    yield "a byte at a time", _a_byte_at_a_time
    yield "shut for reading", _shut_for_reading


def _a_byte_at_a_time(target: Target) -> None:
    wire = Wire(target)
    for byte in frame("Stats", 3) * 20:
        wire.send_bytes(bytes([byte]))
    wire.settle()


def _shut_for_reading(target: Target) -> None:
    wire = Wire(target)
    wire.socket.shutdown(socket.SHUT_RD)
    for _ in range(3):
        wire.send_bytes(frame("Stats", 3))
