from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.agent.tiers.media_models import content

from tierline_agent.tiers import (
    Durability,
    Kind,
    MediumFailure,
    MediumUnusable,
    NoSpace,
    map_early,
    open_medium,
)
from tierline_agent.tiers.files import PIECE_BYTES
from tierline_agent.tiers.medium import BLOCK_BYTES

SIZE_BYTES = 16 << 20
MEMORY, DISK = "memory", "disk"
REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def folders() -> Iterator[dict[str, Path]]:
    """A folder on a tmpfs, and one on a disk's file system (where O_DIRECT works)."""
    build = REPOSITORY / "build"
    build.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(dir=build) as disk,
    ):
        yield {MEMORY: Path(memory), DISK: Path(disk)}


CASES = [
    pytest.param("dram", MEMORY, "mapped tmpfs", Durability.PROCESS, id="dram"),
    pytest.param("pmem", MEMORY, "mapped tmpfs", Durability.PROCESS, id="pmem on tmpfs"),
    pytest.param("pmem", DISK, "buffered", Durability.POWER_LOSS, id="pmem on a file"),
    pytest.param("nvme", DISK, "O_DIRECT", Durability.POWER_LOSS, id="nvme"),
    pytest.param("nvme", MEMORY, "buffered", Durability.PROCESS, id="nvme on tmpfs"),
]


@pytest.mark.parametrize(("kind", "where", "mode", "durability"), CASES)
def test_a_medium_says_how_it_is_reached_and_keeps_what_is_written(
    folders: dict[str, Path], kind: Kind, where: str, mode: str, durability: Durability
) -> None:
    path = folders[where] / "medium"
    medium = open_medium(kind, path, SIZE_BYTES)
    assert (medium.mode, medium.durability) == (mode, durability)
    assert medium.size_bytes == SIZE_BYTES == path.stat().st_blocks * 512
    assert path.stat().st_mode & 0o777 == 0o600
    # Whole and partial blocks, smaller and larger than what goes in one request.
    written = {
        0: content(1, 3 * PIECE_BYTES + BLOCK_BYTES + 5),
        8 << 20: content(2, 100),
        12 << 20: content(3, PIECE_BYTES),
    }
    for offset, data in written.items():
        medium.write_from(offset, data.toreadonly())
        medium.flush(offset, data.nbytes)
    medium.close()
    medium.close()
    medium = open_medium(kind, path)
    assert medium.size_bytes == SIZE_BYTES
    for offset, data in written.items():
        target = content(9, data.nbytes)
        medium.read_into(offset, target)
        assert target == data
    padding = content(9, BLOCK_BYTES)
    medium.read_into(8 << 20, padding)
    assert not any(padding[100:])
    medium.close()


def test_direct_input_goes_into_the_callers_memory_and_needs_it_aligned(
    folders: dict[str, Path],
) -> None:
    medium = open_medium("nvme", folders[DISK] / "medium", SIZE_BYTES)
    pages = memoryview(mmap.mmap(-1, 2 * BLOCK_BYTES))
    with pytest.raises(ValueError, match="page boundary"):
        medium.read_into(0, pages[1 : BLOCK_BYTES + 1])
    with pytest.raises(ValueError, match="page boundary"):
        medium.write_from(0, pages[512 : BLOCK_BYTES + 512])
    medium.close()


@pytest.mark.parametrize(
    ("offset", "size_bytes"), [(SIZE_BYTES, 1), (-4096, 1), (1, 1), (SIZE_BYTES - 4096, 4097)]
)
@pytest.mark.parametrize("kind", ["dram", "nvme"])
def test_no_byte_outside_is_touched(
    folders: dict[str, Path], kind: Kind, offset: int, size_bytes: int
) -> None:
    medium = open_medium(kind, folders[MEMORY] / "medium", SIZE_BYTES)
    data = content(1, size_bytes)
    for call in (medium.read_into, medium.write_from):
        with pytest.raises(ValueError, match="outside, or not at a multiple of 4096"):
            call(offset, data)
    medium.close()


@pytest.mark.parametrize("kind", ["pmem", "nvme"])
def test_a_file_cut_short_is_an_error_not_a_signal(folders: dict[str, Path], kind: Kind) -> None:
    path = folders[DISK] / "medium"
    medium = open_medium(kind, path, SIZE_BYTES)
    os.truncate(path, PIECE_BYTES)
    with pytest.raises(MediumFailure, match=r"the file ends there; another program has cut it"):
        medium.read_into(0, content(1, 4 * PIECE_BYTES))
    medium.close()


def test_one_process_at_a_time(folders: dict[str, Path]) -> None:
    path = folders[MEMORY] / "medium"
    program = (
        "import sys; from tierline_agent.tiers import open_medium\n"
        "medium = open_medium('dram', sys.argv[1], 1 << 20); print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(MediumUnusable, match="another process has it"):
            open_medium("dram", path)
    finally:
        other.kill()
        other.communicate()
    open_medium("dram", path).close()  # the lock went with its process


HAS_IT_AND_LEAVES_A_CHILD = """
import os, sys
from tierline_agent.tiers import open_medium
medium = open_medium('dram', sys.argv[1], 1 << 20)
if os.fork() == 0:
    print('left', flush=True)
sys.stdin.read()
"""


@contextmanager
def dead_and_not_gone(path: Path) -> Iterator[None]:
    """A process that was killed, and whose lock is kept by what is left of it."""
    with subprocess.Popen(
        [sys.executable, "-c", HAS_IT_AND_LEAVES_A_CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == b"left\n"
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        with path.open() as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
        owner.stdin.close()


def is_refused_to_another(path: Path) -> bool:
    program = (
        "import sys; from tierline_agent.tiers import open_medium as o; o('dram', sys.argv[1])"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return "another process has it" in done.stderr


def test_a_dead_process_has_no_medium(folders: dict[str, Path]) -> None:
    path = folders[MEMORY] / "medium"
    with dead_and_not_gone(path):
        medium = open_medium("dram", path)
        assert is_refused_to_another(path)
    try:
        assert is_refused_to_another(path), "also when nothing is left of the dead one"
    finally:
        medium.close()
    assert not is_refused_to_another(path)


def test_a_medium_is_taken_from_any_number_of_the_dead(folders: dict[str, Path]) -> None:
    path = folders[MEMORY] / "medium"
    with dead_and_not_gone(path), dead_and_not_gone(path):
        open_medium("dram", path).close()


@pytest.mark.parametrize("where", [MEMORY, DISK])
def test_more_than_there_is_leaves_nothing(folders: dict[str, Path], where: str) -> None:
    path = folders[where] / "medium"
    kind: Kind = "dram" if where == MEMORY else "nvme"
    with pytest.raises(NoSpace, match=r"cannot allocate \d+ bytes .* configure a smaller tier"):
        open_medium(kind, path, 1 << 43)
    assert path.stat().st_size == 0


@pytest.mark.parametrize(
    ("kind", "path", "message"),
    [
        pytest.param("dram", "{disk}/medium", "not on a tmpfs", id="dram on a disk"),
        pytest.param("dram", "{memory}/no/folder", "create its folder", id="no folder"),
        pytest.param("nvme", "{disk}", "not the folder", id="a folder"),
        pytest.param("pmem", "/dev/null", "no devdax", id="a character device"),
        pytest.param("nvme", "/dev/zero", "neither a file nor a device for it", id="no drive"),
    ],
)
def test_what_cannot_be_a_tier_is_refused_in_a_sentence(
    folders: dict[str, Path], kind: Kind, path: str, message: str
) -> None:
    path = path.format(memory=folders[MEMORY], disk=folders[DISK])
    with pytest.raises(MediumUnusable, match=message) as caught:
        open_medium(kind, path, SIZE_BYTES)
    assert path in str(caught.value)


def test_a_file_of_another_size_is_refused(folders: dict[str, Path]) -> None:
    path = folders[DISK] / "medium"
    path.write_bytes(bytes(SIZE_BYTES))
    with pytest.raises(MediumUnusable, match="it has 16777216 bytes; configure that size"):
        open_medium("nvme", path, SIZE_BYTES // 2)
    open_medium("nvme", path, SIZE_BYTES * 2).close()
    assert path.stat().st_size == SIZE_BYTES * 2


def test_a_new_file_needs_a_size(folders: dict[str, Path]) -> None:
    with pytest.raises(MediumUnusable, match="configure a size for it"):
        open_medium("nvme", folders[DISK] / "medium")


def test_an_unknown_kind_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="dram, pmem, nvme"):
        open_medium("tape", "/dev/null")  # type: ignore[arg-type]  # what a configuration may say


def test_what_another_one_has_is_mapped_early_and_claimed_when_it_is_free(
    folders: dict[str, Path],
) -> None:
    path = folders[MEMORY] / "medium"
    other = open_medium("dram", path, SIZE_BYTES)
    early = map_early("dram", path, SIZE_BYTES)
    assert early is not None
    assert early.size_bytes == SIZE_BYTES
    with pytest.raises(MediumUnusable, match="another process has it"):
        open_medium("dram", path, SIZE_BYTES, early=early)
    other.close()
    opened = open_medium("dram", path, SIZE_BYTES, early=early)
    assert opened is early
    with pytest.raises(MediumUnusable, match="another process has it"):
        open_medium("dram", path)
    opened.write_from(0, content(1, BLOCK_BYTES))
    opened.close()
    assert path.read_bytes()[:BLOCK_BYTES] == content(1, BLOCK_BYTES)


def test_what_was_mapped_early_and_is_another_medium_now_is_not_claimed(
    folders: dict[str, Path],
) -> None:
    path = folders[MEMORY] / "medium"
    open_medium("dram", path, SIZE_BYTES).close()
    early = map_early("dram", path)
    assert early is not None
    open_medium("dram", path.with_name("new"), SIZE_BYTES).close()
    assert early.is_in_place()
    path.with_name("new").replace(path)
    assert not early.is_in_place()
    opened = open_medium("dram", path, early=early)
    assert opened is not early
    path.unlink()
    assert not early.is_in_place()
    for medium in (opened, early):
        medium.close()


def test_nothing_is_mapped_early_that_is_not_memory_of_that_size(folders: dict[str, Path]) -> None:
    path = folders[MEMORY] / "medium"
    assert map_early("dram", path, SIZE_BYTES) is None
    assert not path.exists()
    path.touch()
    assert map_early("dram", path) is None
    with path.open("r+b") as holes:
        holes.truncate(SIZE_BYTES)
    assert map_early("dram", path, SIZE_BYTES) is None
    assert path.stat().st_blocks == 0
    open_medium("dram", path, SIZE_BYTES).close()
    assert map_early("dram", path, 2 * SIZE_BYTES) is None
    assert map_early("nvme", path, SIZE_BYTES) is None
    path = folders[DISK] / "medium"
    open_medium("pmem", path, SIZE_BYTES).close()
    assert map_early("pmem", path, SIZE_BYTES) is None


@pytest.mark.parametrize("kind", ["dram", "pmem", "nvme"])
def test_no_file_is_made_among_devices(kind: Kind, tmp_path: Path) -> None:
    missing = Path("/dev/tierline-of-a-test")
    link = tmp_path / "link"
    link.symlink_to(missing)
    for path in (missing, link):
        with pytest.raises(MediumUnusable, match="there is no such device"):
            open_medium(kind, path, SIZE_BYTES)
    assert not missing.exists()
