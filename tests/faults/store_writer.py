"""A program that fills a store until it is killed: `store_writer.py KIND PATH SIZE EXTENT SEED`.

It puts, releases and reads extents with content that follows from their number. After each `put` it
prints the number: an acknowledged extent. KILL_AT=N in its environment kills it at its N-th
operation on the medium: before a flush or read, or in the middle of a write, of which only the
first half is done. The product knows nothing of this; the medium is wrapped here.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable

from tierline_agent.tiers import Medium, Store, domain_key, open_medium
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.memory import scratch

KEY = domain_key("faults")


def extent(number: int, extent_bytes: int) -> memoryview:
    """The content of extent `number`; every third one is shorter than an extent."""
    chance = random.Random(number)  # noqa: S311 - reproducible, not secret
    size_bytes = chance.randrange(1, extent_bytes) if number % 3 == 0 else extent_bytes
    view = scratch(size_bytes)
    view[:] = chance.randbytes(size_bytes)
    return view


def kill_this_process() -> None:
    """End at once, without any of Python's own tidying up."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingMedium(Medium):
    """Calls `die`, which does not return, at one operation (`left` counts down to it)."""

    def __init__(
        self, inner: Medium, dies_at: int, die: Callable[[], None] = kill_this_process
    ) -> None:
        self.inner, self.left, self._die = inner, dies_at, die
        self.kind, self.path, self.mode = inner.kind, inner.path, inner.mode
        self.durability, self.size_bytes = inner.durability, inner.size_bytes

    def _step(self) -> bool:
        self.left -= 1
        return self.left == 0

    def read_into(self, offset: int, target: memoryview) -> None:
        if self._step():
            self._die()
        self.inner.read_into(offset, target)

    def write_from(self, offset: int, source: memoryview) -> None:
        if self._step():
            if source.nbytes > BLOCK_BYTES:
                self.inner.write_from(offset, source[: source.nbytes // 2])
            else:  # a record, torn inside its fields
                block = scratch(BLOCK_BYTES)
                self.inner.read_into(offset, block)
                torn = min(source.nbytes, 40)
                block[:torn] = source[:torn]
                self.inner.write_from(offset, block)
            self._die()
        self.inner.write_from(offset, source)

    def flush(self, offset: int, size_bytes: int) -> None:
        if self._step():
            self._die()
        self.inner.flush(offset, size_bytes)

    def close(self) -> None:
        self.inner.close()


def _say(line: str) -> None:
    """Tell the test, whole or not at all: unbuffered, print() writes a line in pieces."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main() -> None:
    kind, path, size_bytes, extent_bytes, seed = sys.argv[1:]
    medium = open_medium(kind, path, int(size_bytes))  # type: ignore[arg-type]  # from the test
    dies_at = int(os.environ.get("KILL_AT", "0"))
    store = Store.open(DyingMedium(medium, dies_at), int(extent_bytes))
    slots = store.statistics().slots
    target = scratch(int(extent_bytes))
    held: list[tuple[int, bytes]] = []
    number = int(seed)
    while True:
        if len(held) == slots - 1:  # the oldest goes, so that slots are used again and again
            gone, digest = held.pop(0)
            _say(f"release {gone}")
            store.release(digest)
        held.append((number, store.put(KEY, extent(number, int(extent_bytes)))))
        _say(f"stored {number}")
        store.read_into(held[len(held) // 2][1], KEY, target)
        number += 1


if __name__ == "__main__":
    main()
