"""Kill the process that writes a store, at every step of its first extents and at random moments.

What it had acknowledged must be there and right; nothing else may read as anything but its own
content; every slot must be accounted for; and the store must go on working.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.store_folders import store_folder
from tests.faults.store_writer import KEY, extent

from tierline_agent.tiers import (
    Kind,
    Store,
    digest_of,
    open_medium,
)
from tierline_agent.tiers.memory import scratch

WRITER = Path(__file__).with_name("store_writer.py")
EXTENT_BYTES = 1 << 16
SIZE_BYTES = 5 * EXTENT_BYTES + 2 * EXTENT_BYTES


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with store_folder(request.param) as path:
        yield path


PLACES = [
    pytest.param("dram", "memory", id="dram"),
    pytest.param("nvme", "disk", id="nvme"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "folder"), PLACES, indirect=["folder"])
def test_killed_at_each_step(kind: Kind, folder: Path) -> None:
    """Steps cover formatting, first use of slots, and reuse, each torn in the middle."""
    points = range(1, 70, 1 if kind == "dram" else 6)
    for dies_at in points:
        path = folder / f"medium-{dies_at}"
        acknowledged = _run_until_killed(kind, path, seed=0, dies_at=dies_at)
        _check(kind, path, acknowledged)
        path.unlink()
    assert acknowledged, "the last kill came before anything was stored"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "folder"), PLACES, indirect=["folder"])
def test_killed_again_and_again_at_random_moments(kind: Kind, folder: Path) -> None:
    """One store lives through many deaths; each writer adds content of its own."""
    chance = random.Random(7)  # noqa: S311 - reproducible, not secret
    path = folder / "medium"
    for life in range(12):
        acknowledged = _run_until_killed(
            kind, path, seed=1000 * life, lines=chance.randrange(1, 40)
        )
        _check(kind, path, acknowledged)


def _run_until_killed(
    kind: Kind, path: Path, *, seed: int, dies_at: int = 0, lines: int | None = None
) -> set[int]:
    """Run a writer until it dies at its step, or is killed after `lines` lines.

    Returns the extents that were acknowledged and not released.
    """
    writer = subprocess.Popen(
        [sys.executable, WRITER, kind, path, str(SIZE_BYTES), str(EXTENT_BYTES), str(seed)],
        env={**os.environ, "KILL_AT": str(dies_at)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    acknowledged: set[int] = set()
    seen = 0
    try:
        for line in writer.stdout:
            word, number = line.split()
            (acknowledged.add if word == "stored" else acknowledged.discard)(int(number))
            seen += 1
            if seen == lines:
                break
    finally:
        writer.kill()
        rest, _ = writer.communicate()
    for line in rest.splitlines():  # said between the last line read and the kill
        word, number = line.split()
        (acknowledged.add if word == "stored" else acknowledged.discard)(int(number))
    assert writer.returncode == -signal.SIGKILL
    return acknowledged


def _check(kind: Kind, path: Path, acknowledged: set[int]) -> None:
    store = Store.open(open_medium(kind, path), EXTENT_BYTES)
    try:
        before = store.statistics()
        assert before.free + before.stored == before.slots, before
        assert before.torn_records <= 1, before
        there = set(store.digests())
        expected = {n: digest_of(KEY, extent(n, EXTENT_BYTES)) for n in acknowledged}
        assert set(expected.values()) <= there
        target = scratch(EXTENT_BYTES)
        for number, digest in expected.items():
            length = store.read_into(digest, KEY, target)
            assert target[:length] == extent(number, EXTENT_BYTES)
        for digest in there - set(expected.values()):
            # Not acknowledged or released: it may have survived, but then it is what it says.
            length = store.read_into(digest, KEY, target)
            assert digest_of(KEY, target[:length]) == digest
        assert store.statistics().corruptions == 0
        for number in range(before.slots):  # every slot is usable again
            store.put(KEY, extent(-1 - number, EXTENT_BYTES))
        assert store.statistics().stored == before.slots
        assert store.statistics().retired == 0
    finally:
        store.close()
