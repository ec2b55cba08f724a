"""Random draws that the compiled engine and the product's simulator make alike.

splitmix64 (Steele, Lea, Flood, OOPSLA 2014): one 64-bit word of state a stream, so a run is known
by its seed. A *share* is what a duration is multiplied by: uniform between `least` and 1, kept for
the next duration with probability `hold` (then whole jobs, not only layers, come out short).
"""

from __future__ import annotations

from dataclasses import dataclass

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
UNIT = 2.0**-53
STREAMS = ("arrivals", "layers", "copies", "links")


class Stream:
    """Uniform draws from [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK

    def __call__(self) -> float:
        self._state = (self._state + STEP) & MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * FIRST) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * SECOND) & MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * UNIT


@dataclass
class Share:
    """What a duration is multiplied by, drawn from a stream."""

    stream: Stream
    least: float
    hold: float
    last: float = 1.0

    def __call__(self) -> float:
        if self.stream() >= self.hold:
            self.last = self.least + (1.0 - self.least) * self.stream()
        return self.last


def seeds_of(run: int) -> list[int]:
    """Seeds of the streams of a run; streams of neighbouring runs share nothing."""
    source = Stream(run)
    return [int(source() * 2**53) << 10 for _ in STREAMS]
