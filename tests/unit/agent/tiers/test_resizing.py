"""A tier of another size: what must stay stays, or a sentence says why it was left."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from tests.unit.agent.tiers.media_models import content

from tierline_agent.tiers import (
    Digest,
    ForeignContent,
    MediumUnusable,
    Store,
    domain_key,
    open_medium,
    resizing,
)
from tierline_agent.tiers.media import Kind
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.resizing import Fitted, fit
from tierline_agent.tiers.volume import Volume

EXTENT_BYTES = 64 << 10
SMALL, LARGE = 1 << 20, 4 << 20
KEY = domain_key("perception")
MEMORY = Path("/dev/shm")  # noqa: S108 - a tmpfs
DISK = Path(__file__).parents[4] / "build"
LENGTHS = (EXTENT_BYTES, 5, EXTENT_BYTES - 1, 4096)


@pytest.fixture(params=["dram", "pmem", "nvme"])
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where a tier lies, named by its kind: in memory, or on a disk's file system."""
    where = DISK if request.param == "nvme" else MEMORY
    where.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder) / request.param


def kind_of(path: Path) -> Kind:
    return cast("Kind", path.name)


def fill(path: Path, size_bytes: int, count: int = len(LENGTHS)) -> list[Digest]:
    """Make a store with `count` contents."""
    with closing(Store.open(open_medium(kind_of(path), path, size_bytes), EXTENT_BYTES)) as store:
        return [store.put(KEY, content(n, LENGTHS[n % len(LENGTHS)])) for n in range(count)]


def draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.tierline-draft")


def about(path: Path) -> tuple[int, int, int]:
    """Which file it is, and how long, and when it was written."""
    found = path.lstat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def refit(
    path: Path, size_bytes: int, *, planned: int = 0, needed: Container[Digest] | None = None
) -> Fitted:
    return fit(
        *(kind_of(path), path, size_bytes, EXTENT_BYTES), planned_extents=planned, needed=needed
    )


def held(path: Path, size_bytes: int, digests: list[Digest]) -> tuple[int, int]:
    """How many slots there are, and how many contents, each of which is right."""
    with closing(Store.open(open_medium(kind_of(path), path, size_bytes), EXTENT_BYTES)) as store:
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
    draft_of(path).write_bytes(bytes(before))  # left by a crash
    slots, _ = held(path, before, digests)
    assert refit(path, after) == Fitted(after)
    assert path.stat().st_size == after
    now, found = held(path, after, digests)
    assert (now > slots) == (after > before)
    assert found == len(digests)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_only_what_is_needed_must_fit(path: Path) -> None:
    digests = fill(path, LARGE, 30)
    kept = digests[2:14]
    fitted = refit(path, SMALL, needed=frozenset(kept))
    others = 0 if path.name == "dram" else 1  # the newest, for which there is a slot
    assert (fitted.size_bytes, fitted.objection) == (SMALL, "")
    assert held(path, SMALL, [*digests])[1] == len(kept) + others
    with closing(Store.open(open_medium(kind_of(path), path, SMALL), EXTENT_BYTES)) as store:
        assert set(store.digests()) == {*kept, *digests[30 - others :]}


def test_content_that_nobody_uses_goes_for_want_of_room_alone(path: Path) -> None:
    digests = fill(path, LARGE, 30)
    fitted = refit(path, SMALL, needed=())
    assert (fitted.size_bytes, fitted.objection) == (SMALL, "")
    if path.name == "dram":
        assert (fitted.left, held(path, SMALL, digests)[1]) == ("", 0)
        return
    assert fitted.left == (
        f"the {path.name} tier {path} has {SMALL} bytes now instead of {LARGE}, and 17 of the 30 "
        "extents that it held are gone: no program that runs needs them, and others load them again"
    )
    assert held(path, SMALL, digests)[1] == 13
    assert refit(path, LARGE, needed=()) == Fitted(LARGE)
    assert held(path, LARGE, digests)[1] == 13, "growing keeps them"


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
        f"the {path.name} tier {path} keeps its {LARGE} bytes instead of {SMALL}: tasks of this "
        "node may need 30 extents of it, and 13 would fit; end tasks, then restart the agent"
    )
    assert held(path, fitted.size_bytes, digests)[1] == contents


def test_room_for_both_sizes_must_be_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(path, SMALL)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(resizing, "_MEMORY", tmp_path / "meminfo")
    much = LARGE if path.name == "dram" else 1 << 50
    fitted = refit(path, much)
    assert fitted.size_bytes == SMALL
    assert f"takes {much} bytes more, and " in fitted.objection
    assert held(path, SMALL, digests)[1] == len(digests)
    assert refit(path, LARGE, needed=()).size_bytes == LARGE


@pytest.mark.parametrize("step", ["write_content", "write_record"])
@pytest.mark.parametrize("path", ["pmem", "nvme"], indirect=True)
def test_an_agent_that_ends_at_any_step_leaves_all_content(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(path, SMALL)
    does = getattr(Volume, step)
    left = 0

    def until_it_ends(self: Volume, *args: object) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt  # no cleaning up, as in a process that is killed
        left -= 1
        does(self, *args)

    for done in range(len(digests)):
        left = done
        with monkeypatch.context() as dying:
            dying.setattr(Volume, step, until_it_ends)
            with pytest.raises(KeyboardInterrupt):
                refit(path, LARGE)
        assert held(path, SMALL, digests)[1] == len(digests)
    assert refit(path, SMALL) == Fitted(SMALL)
    assert [one.name for one in path.parent.iterdir()] == [path.name], "the draft is gone"
    assert refit(path, LARGE) == Fitted(LARGE)
    assert held(path, LARGE, digests)[1] == len(digests)


def test_a_file_that_was_only_made_longer_is_used_whole(path: Path) -> None:
    digests = fill(path, SMALL)
    open_medium(kind_of(path), path, LARGE).close()
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


@pytest.mark.parametrize("times", [1, 4096], ids=["less than a block", "more"])
def test_what_is_no_store_is_left_alone(path: Path, times: int) -> None:
    path.write_bytes(b"a thesis" * times)
    with pytest.raises(ForeignContent):
        open_medium(kind_of(path), path, refit(path, LARGE, needed=()).size_bytes)
    assert path.read_bytes() == b"a thesis" * times


def test_another_store_next_to_it_is_left_alone(path: Path) -> None:
    fill(path, SMALL)
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(path.read_bytes())
    for size_bytes in (0, SMALL, LARGE):
        assert refit(path, size_bytes) == Fitted(size_bytes)
    assert other.stat().st_size == SMALL


def test_a_link_leads_to_the_store_of_the_new_size(path: Path) -> None:
    place = path.parent / "drive" / "store"
    place.parent.mkdir()
    path.symlink_to(place)
    digests = fill(path, SMALL)
    assert refit(path, LARGE) == Fitted(LARGE)
    assert held(path, LARGE, digests)[1] == len(digests)
    assert path.readlink() == place
    assert [one.name for one in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize("what", ["text", "much text", "folder", "link"])
def test_what_has_the_name_of_a_draft_and_is_none_is_left_alone(path: Path, what: str) -> None:
    digests = fill(path, SMALL)
    there = draft_of(path)
    if what == "folder":
        there.mkdir()
    elif what == "link":
        there.symlink_to(path)
    else:
        there.write_bytes(b"a thesis" * (1 if what == "text" else 4096))
    before = about(there)
    fitted = refit(path, LARGE)
    assert fitted.size_bytes == SMALL
    assert fitted.objection == (
        f"the {path.name} tier {path} keeps its {SMALL} bytes instead of {LARGE}: it would be "
        f"copied to {there}, and what is there is none of Tierline's; move that file away, then "
        "restart the agent"
    )
    assert about(there) == before
    assert held(path, SMALL, digests)[1] == len(digests)


@pytest.mark.parametrize("size_bytes", [0, SMALL], ids=["all there is", "the same"])
def test_a_draft_that_holds_nothing_yet_is_removed(path: Path, size_bytes: int) -> None:
    digests = fill(path, SMALL)
    for length in (0, 100, LARGE):
        draft_of(path).write_bytes(bytes(length))
        assert refit(path, size_bytes) == Fitted(size_bytes)
        assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert held(path, SMALL, digests)[1] == len(digests)


def test_a_draft_is_not_removed_while_another_agent_makes_it(path: Path) -> None:
    fill(path, SMALL)
    draft_of(path).touch()
    with (
        closing(open_medium(kind_of(path), path)),
        pytest.raises(MediumUnusable, match="another process has it"),
    ):
        refit(path, SMALL)
    assert draft_of(path).exists()
