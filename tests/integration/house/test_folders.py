"""A folder that is too large to be looked through is refused by `make verify`."""

from __future__ import annotations

from tests.folders import MOST, faults, tracked

FILES = [f"attic/thing{number}.py" for number in range(MOST)]


def test_all_folders_can_be_looked_through() -> None:
    assert faults(tracked()) == []


def test_one_file_more_is_refused() -> None:
    counted_as_none = ["attic/__init__.py", "attic/thing_pb2.py", "attic/data.json"]
    assert faults(FILES + counted_as_none) == []
    (sentence,) = faults([*FILES, "attic/more.c", "attic/more.h"])
    assert sentence == "attic: 16 files, and no README.md that says why"


def test_a_reason_is_enough() -> None:
    assert faults([*FILES, "attic/more.c", "attic/README.md"]) == []
