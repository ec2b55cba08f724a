from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tierline_agent.processes.identity import Process
from tierline_agent.processes.state import BootFile, LeaseMark, read_json, write_json
from tierline_agent.processes.state_files import make_folder
from tierline_agent.scheduling.cached_lease import close_all


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_json(path, [1])
    with path.open() as before:
        write_json(path, {"a": 2})
        assert json.load(before) == [1]
    assert read_json(path) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_json_counts_as_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing") is None
    (tmp_path / "torn").write_text('{"a": ')
    assert read_json(tmp_path / "torn") is None


def foreign(path: Path) -> None:
    path.touch()
    os.chown(path, 65534, 65534)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "pipe": ("a pipe", os.mkfifo),
    "folder": ("a folder", Path.mkdir),
    "device": ("a device", lambda path: os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))),
    "link to a device": ("a link", lambda path: path.symlink_to("/dev/zero")),
    "link to nothing": ("a link", lambda path: path.symlink_to("nothing")),
    "of another user": ("a file of user 65534", foreign),
    "sparse": ("a file of 1099511627776 bytes", sparse),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_file_of_ours_is_put_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = tmp_path / "file"
    kind, make = KINDS[name]
    make(path)
    assert (read_json(path), read_json(path)) == (None, None)
    assert [record.message for record in caplog.records] == [
        f"{path} is {kind}, which no agent made; put aside as file.odd"
    ]
    assert os.path.lexists(tmp_path / "file.odd")
    make(tmp_path / "file.new")  # in the way of writing
    write_json(path, [1])
    assert read_json(path) == [1]
    LeaseMark(path).close()


def lent(path: Path) -> None:
    path.mkdir()
    os.chown(path, 65534, 65534)


def to_a_folder(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(exist_ok=True)
    (path.parent / "elsewhere" / "1.1.1.1").touch()
    path.symlink_to("elsewhere")


NO_FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "pipe": ("a pipe", os.mkfifo),
    "file": ("a file", Path.touch),
    "link to a folder": ("a link", to_a_folder),
    "link to nothing": ("a link", lambda path: path.symlink_to("nothing")),
    "of another user": ("a folder of user 65534", lent),
}


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_what_is_no_folder_of_ours_is_put_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = tmp_path / "folder"
    kind, make = NO_FOLDERS[name]
    make(path)
    for _ in range(2):
        make_folder(path, 0o700)
    assert [record.message for record in caplog.records] == [
        f"{path} is {kind}, which no agent made; put aside as folder.odd"
    ]
    assert path.lstat().st_mode == stat.S_IFDIR | 0o700
    assert [*path.iterdir()] == []


def test_leases_are_closed_in_no_folder_of_somebody_else(tmp_path: Path) -> None:
    to_a_folder(tmp_path / "leases")
    mark = LeaseMark(tmp_path / "mark")
    close_all(tmp_path / "leases", mark)
    mark.close()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["1.1.1.1"]
    assert (tmp_path / "leases.odd").is_symlink()


def test_a_file_on_which_a_process_has_a_lease_is_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("[1]")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which its holder is sent
    with path.open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert read_json(path) is None
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    (said,) = (record.message for record in caplog.records)
    assert "a file on which a process has a lease" in said
    assert (tmp_path / "file.odd").read_text() == "[1]"


def test_what_was_put_aside_before_stays_if_it_has_to(tmp_path: Path) -> None:
    (tmp_path / "file.odd" / "inside").mkdir(parents=True)
    os.mkfifo(tmp_path / "file")
    assert read_json(tmp_path / "file") is None
    assert (tmp_path / "file.odd1").is_fifo()
    assert (tmp_path / "file.odd" / "inside").is_dir()


def test_a_failure_to_write_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "file"))):
        write_json(tmp_path / "file", [1])


def test_a_boot_file_counts_in_its_boot_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    BootFile(path).write([1, 2])
    assert BootFile(path).read(list) == [1, 2]
    assert BootFile(path).read(lambda value: value["x"]) is None
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "boot": "another"}))
    assert BootFile(path).read(list) is None


def test_a_boot_file_has_room_for_twice_its_value_before_it_needs_it(tmp_path: Path) -> None:
    """Written in turns into two files: neither grows, nor is made, as long as the value fits."""
    file = BootFile(tmp_path / "file")
    seen = set()
    for number in range(6):
        file.write([number] * 10_000)
        assert BootFile(tmp_path / "file").read(list) == [number] * 10_000
        seen.add(
            frozenset((path.stat().st_ino, path.stat().st_size) for path in tmp_path.iterdir())
        )
    (both,) = seen
    assert len(both) == 2
    assert all(size >= 40_000 for _, size in both)
    file.write([1] * 30_000)
    assert BootFile(tmp_path / "file").read(list) == [1] * 30_000
    assert all(path.stat().st_size >= 120_000 for path in tmp_path.iterdir())


def test_the_mark_of_the_lease_outlives_its_writer(tmp_path: Path) -> None:
    mark = LeaseMark(tmp_path / "mark")
    assert mark.read() is None
    mark.set(77, Process(3, 4), "name")
    mark.close()
    again = LeaseMark(tmp_path / "mark")
    assert (again.read(), again.task) == ((77, Process(3, 4)), "name")
    again.clear()
    assert again.read() is None
    again.close()
