"""A program for each number: the same number gives the same text, in every process.

`python -m tests.programs.generator SEED` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.programs.pieces import loops
from tests.programs.pieces.addresses import ADDRESSES
from tests.programs.pieces.aliases import ALIASES
from tests.programs.pieces.bodies import BODIES, ORDERED
from tests.programs.pieces.exchanges import EXCHANGES
from tests.programs.pieces.failures import FAILURES
from tests.programs.pieces.meanwhile import MEANWHILE
from tests.programs.pieces.states import STATES
from tests.programs.pieces.tensors import TENSORS
from tests.programs.pieces.threads import THREADS
from tests.programs.pieces.transfers import TRANSFERS
from tests.programs.pieces.transforms import TRANSFORMS
from tests.programs.text import Piece, Text, written

_AXES: tuple[tuple[Sequence[Piece], float], ...] = (
    (TENSORS, 0.3),
    (STATES, 0.4),
    (STATES, 0.2),
    (ALIASES, 0.25),
    (EXCHANGES, 0.25),
    (TRANSFERS, 0.15),
    (THREADS, 0.15),
    (TRANSFORMS, 0.25),
    (FAILURES, 0.15),
)
"""Pieces in the order in which they are added, and how many programs have one of each."""
_MEANWHILE_FROM = 1000
"""The first number of which every tenth program has a thread that saves weights or writes them, and
another tenth code that keeps the address of one, if it has nothing that may write or notice that.
Lower numbers are as before there were any."""
_NOT_MEANWHILE = (STATES, ALIASES, EXCHANGES, TRANSFERS, THREADS, TRANSFORMS)
_COUNT_FORWARDS = """
FORWARDS = [0]
def count_forward(module, args):
    FORWARDS[0] += 1
model.register_forward_pre_hook(count_forward)
"""


@dataclass(frozen=True)
class Program:
    """A whole program."""

    seed: int
    source: str
    tags: tuple[str, ...]
    unordered: bool


def generate(seed: int, wider: int = 1) -> Program:
    """Make the program of a seed, with layers so many times as wide."""
    random = Random(f"program {seed}")  # noqa: S311 - choices, not secrets
    width = random.choice([32, 96, 128, 160, 192])
    text = Text(random, wider * width, random.randint(7, 12))
    body = random.choice(BODIES)
    text.unordered = body not in ORDERED and random.random() < 0.06
    _add(text, body)
    alone = not text.unordered
    for pieces, share in _AXES:
        if random.random() < share and not (text.unordered and pieces is not TENSORS):
            _add(text, random.choice(pieces))
            alone &= pieces not in _NOT_MEANWHILE
    if random.random() < 0.6:
        text.add("ready", _COUNT_FORWARDS)
        text.add("end", "say('forwards', FORWARDS[0])")
    if random.random() < 0.4:
        text.add("end", "say(model.state_dict())")
    loop = loops.choose(text)
    if seed >= _MEANWHILE_FROM and seed % 10 == 0 and alone:
        _add(text, random.choice(MEANWHILE))
    if seed >= _MEANWHILE_FROM and seed % 10 == 5 and alone:
        _add(text, random.choice(ADDRESSES))
    return Program(seed, written(text, seed, loop), tuple(text.tags), text.unordered)


def _add(text: Text, piece: Piece) -> None:
    text.tags.append(piece.__name__)
    piece(text)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        print(generate(int(number)).source)
