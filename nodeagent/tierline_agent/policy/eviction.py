"""Where extents for a request come from: reused, newly made, or made in place of others.

Idle extents keep the bytes of the trust domain that used them last, so they are *reused* only
inside that domain. Another domain's idle extents are *destroyed* (their memory goes back to the
kernel, which zeroes it) and new ones *created* in their place; the longest idle go first. Where the
limit was lowered below what exists, its own that it does not want go after them.

Invariant: the choice never exceeds the limit, and never reuses across domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Idle(NamedTuple):
    """An extent that nobody uses and nobody else has mapped; there may be thousands."""

    key: int
    domain: str
    idle_since: int
    """Rises with time; only the order counts."""


@dataclass(frozen=True)
class Choice:
    """The evictions; `short` extents are missing even then (then nothing should be done)."""

    reuse: tuple[int, ...]
    destroy: tuple[int, ...]
    create: int
    short: int


def choose(idle: Sequence[Idle], domain: str, wanted: int, room: int) -> Choice:
    """Find `wanted` extents for `domain` where `room` more may be created.

    `room` may be negative, when the limit was lowered below what exists.
    """
    oldest_first = sorted(idle, key=lambda extent: extent.idle_since)
    own = [extent.key for extent in oldest_first if extent.domain == domain]
    foreign = [extent.key for extent in oldest_first if extent.domain != domain]
    spare = max(0, len(own) - wanted)
    reuse = own[spare:]
    create = wanted - len(reuse)
    missing = max(0, create - room)
    destroy = [*foreign, *own[:spare]][:missing]
    return Choice(tuple(reuse), tuple(destroy), create, missing - len(destroy))
