"""An include that points up, to no floor, or closes a circle is refused by `make verify`."""

from __future__ import annotations

import pytest
from tests.floors import FLOORS, faults, read


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return read()


def test_the_libraries_point_down(files: dict[str, str]) -> None:
    assert faults(files) == []


def test_no_floor_is_empty_and_none_is_left_out(files: dict[str, str]) -> None:
    assert {name.split("/")[0] for name in files} == set(FLOORS)


@pytest.mark.parametrize(
    ("file", "line", "sentence"),
    [
        (
            "link/request.c",
            '#include "gates/backend.h"',
            "link/request.c: includes gates/backend.h, which lies above it",
        ),
        (
            "driver/driver.c",
            "# include <budget/ledger.h>",
            "driver/driver.c: includes budget/ledger.h, which lies above it",
        ),
        (
            "memory/swap.c",
            '#include "lease/workspace.h"',
            "memory/swap.c: includes lease/workspace.h, which lies above it",
        ),
        (
            "jobs/job.c",
            '#include "job.h"',
            "jobs/job.c: includes job.h, which lies on no floor",
        ),
        ("attic/old.c", "", "attic/old.c: attic is no floor"),
    ],
    ids=["up", "up in other brackets", "from the interposer to the client", "no floor", "attic"],
)
def test_a_planted_include_is_refused(
    files: dict[str, str], file: str, line: str, sentence: str
) -> None:
    planted = files | {file: f"{files.get(file, '')}\n{line}\n"}
    assert sentence in faults(planted)


def test_a_planted_circle_on_one_floor_is_refused(files: dict[str, str]) -> None:
    planted = files | {"jobs/job.h": files["jobs/job.h"] + '\n#include "jobs/yields.h"\n'}
    (sentence,) = faults(planted)
    assert sentence.startswith("they include each other: ")
    assert {"jobs/job", "jobs/yields"} == set(sentence.split(": ")[1].split(" <- "))
