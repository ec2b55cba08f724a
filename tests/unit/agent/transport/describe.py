"""Prints messages as golden/messages.txt holds them, and reads that file."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierline_agent.transport.protocol import LayerProfile, LayerSpan, Message

GOLDEN = Path(__file__).parents[3] / "native" / "golden" / "messages.txt"


def describe(message: Message | LayerSpan | LayerProfile) -> str:
    """`Name(field=value, ...)`: text and digests in hex, in the order of the wire."""
    fields = sorted(dataclasses.fields(message), key=_wire_order)
    inner = ", ".join(f"{f.name}={_value(getattr(message, f.name))}" for f in fields)
    return f"{type(message).__name__}({inner})"


def _wire_order(field: dataclasses.Field[Any]) -> int:
    return 0 if field.name == "minor" else 1  # declared last because it has a default


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + " ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, enum.IntEnum | enum.IntFlag):
        return str(int(value))
    if isinstance(value, LayerSpan | LayerProfile):
        return describe(value)
    return str(value)


@dataclass(frozen=True)
class Golden:
    """One vector: a frame, and either its message as text or the code that refuses it."""

    name: str
    frame: bytes
    described: str | None
    code: int | None


def golden_vectors() -> list[Golden]:
    """Reads golden/messages.txt."""
    vectors = []
    for line in GOLDEN.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        verdict, name, raw, expected = line.split("|")
        accepted = verdict == "accept"
        vectors.append(
            Golden(
                name,
                bytes.fromhex(raw),
                expected if accepted else None,
                None if accepted else int(expected),
            )
        )
    return vectors
