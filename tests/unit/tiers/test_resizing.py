"""A tier in memory of another size: what must stay stays, or a sentence says why it was left."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.tiers.media_models import content

from tierline_agent.tiers import Digest, ForeignContent, Store, domain_key, open_medium, resizing
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.resizing import Fitted, fit

EXTENT_BYTES = 64 << 10
SMALL, LARGE = 1 << 20, 4 << 20
KEY = domain_key("perception")
LENGTHS = (EXTENT_BYTES, 5, EXTENT_BYTES - 1, 4096)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "dram"


def fill(path: Path, size_bytes: int, count: int = len(LENGTHS)) -> list[Digest]:
    """Make a store with `count` contents."""
    with closing(Store.open(open_medium("dram", path, size_bytes), EXTENT_BYTES)) as store:
        return [store.put(KEY, content(n, LENGTHS[n % len(LENGTHS)])) for n in range(count)]


def refit(
    path: Path, size_bytes: int, *, planned: int = 0, needed: Container[Digest] | None = None
) -> Fitted:
    return fit(path, size_bytes, EXTENT_BYTES, planned_extents=planned, needed=needed)


def held(path: Path, size_bytes: int, digests: list[Digest]) -> tuple[int, int]:
    """How many slots there are, and how many contents, each of which is right."""
    with closing(Store.open(open_medium("dram", path, size_bytes), EXTENT_BYTES)) as store:
        there = set(store.digests())
        target = scratch(EXTENT_BYTES)
        for number, digest in enumerate(digests):
            if digest in there:
                length = store.read_into(digest, KEY, target)
                assert bytes(target[:length]) == bytes(content(number, LENGTHS[number % 4]))
        return store.statistics().slots, len(there)


@pytest.mark.parametrize(("before", "after"), [(SMALL, LARGE), (LARGE, SMALL)], ids=["up", "down"])
def test_content_in_use_moves_to_a_store_of_the_new_size(
    path: Path, before: int, after: int
) -> None:
    digests = fill(path, before)
    path.with_name("dram.new").write_bytes(b"left by a crash")
    slots, _ = held(path, before, digests)
    assert refit(path, after) == Fitted(after)
    assert path.stat().st_size == after
    now, found = held(path, after, digests)
    assert (now > slots) == (after > before)
    assert found == len(digests)
    assert [one.name for one in path.parent.iterdir()] == ["dram"]


def test_only_what_is_needed_must_fit(path: Path) -> None:
    digests = fill(path, LARGE, 30)
    kept = digests[2:14]
    assert refit(path, SMALL, needed=frozenset(kept)) == Fitted(SMALL)
    assert held(path, SMALL, digests)[1] == len(kept)


def test_content_that_nobody_uses_goes(path: Path) -> None:
    digests = fill(path, LARGE, 30)
    assert refit(path, SMALL, needed=()) == Fitted(SMALL)
    assert held(path, SMALL, digests)[1] == 0


@pytest.mark.parametrize(
    ("contents", "planned", "needed"),
    [(30, 0, None), (1, 30, None), (0, 30, ())],
    ids=["stored", "planned", "planned, nobody runs"],
)
def test_what_does_not_fit_keeps_the_old_size(
    path: Path, contents: int, planned: int, needed: Container[Digest] | None
) -> None:
    digests = fill(path, LARGE, contents)
    fitted = refit(path, SMALL, planned=planned, needed=needed)
    assert fitted.size_bytes == LARGE
    assert fitted.objection == (
        f"the dram tier {path} keeps its {LARGE} bytes instead of {SMALL}: tasks of this node may "
        "need 30 extents of it, and 13 would fit; end tasks, then restart the agent"
    )
    assert held(path, fitted.size_bytes, digests)[1] == contents


def test_memory_for_both_sizes_must_be_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(path, SMALL)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(resizing, "_MEMORY", tmp_path / "meminfo")
    fitted = refit(path, LARGE)
    assert fitted.size_bytes == SMALL
    assert "takes 4194304 bytes more, and the machine has 1024000 bytes" in fitted.objection
    assert held(path, SMALL, digests)[1] == len(digests)
    assert refit(path, LARGE, needed=()) == Fitted(LARGE)


def test_a_file_that_was_only_made_longer_is_used_whole(path: Path) -> None:
    digests = fill(path, SMALL)
    open_medium("dram", path, LARGE).close()
    assert refit(path, LARGE) == Fitted(LARGE)
    slots, found = held(path, LARGE, digests)
    assert slots > LARGE // EXTENT_BYTES // 2
    assert found == len(digests)


@pytest.mark.parametrize("size_bytes", [0, SMALL], ids=["all there is", "the same"])
def test_the_same_size_touches_nothing(path: Path, size_bytes: int) -> None:
    assert refit(path, size_bytes) == Fitted(size_bytes)
    fill(path, SMALL)
    before = path.stat()
    assert refit(path, size_bytes) == Fitted(size_bytes)
    assert path.stat().st_ino == before.st_ino


def test_what_is_no_store_is_left_alone(path: Path) -> None:
    path.write_bytes(b"a thesis" * 4096)
    with pytest.raises(ForeignContent):
        refit(path, LARGE, needed=())
    assert path.read_bytes()[:8] == b"a thesis"
