from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierline_agent.identity import Process
from tierline_agent.state import BootFile, LeaseMark, read_json, write_json


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_json(path, [1], durable=durable)
    with path.open() as before:
        write_json(path, {"a": 2}, durable=durable)
        assert json.load(before) == [1]
    assert read_json(path) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_json_counts_as_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing") is None
    (tmp_path / "torn").write_text('{"a": ')
    assert read_json(tmp_path / "torn") is None


def test_a_boot_file_counts_in_its_boot_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    BootFile(path).write([1, 2])
    assert BootFile(path).read(list) == [1, 2]
    assert BootFile(path).read(lambda value: value["x"]) is None
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "boot": "another"}))
    assert BootFile(path).read(list) is None


def test_the_mark_of_the_lease_outlives_its_writer(tmp_path: Path) -> None:
    mark = LeaseMark(tmp_path / "mark")
    assert mark.read() is None
    mark.set(77, Process(3, 4))
    mark.close()
    again = LeaseMark(tmp_path / "mark")
    assert again.read() == (77, Process(3, 4))
    again.clear()
    assert again.read() is None
    again.close()
