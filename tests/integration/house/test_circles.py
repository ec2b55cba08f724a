"""Files that import each other in a circle are refused by `make verify`, however they do it."""

from __future__ import annotations

import pytest
from tests.circles import faults, read

LOW, HIGH = "tierline_torch.calls", "tierline_torch.dispatch"


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    return read()


def test_no_files_import_each_other(modules: dict[str, str]) -> None:
    assert {"tierline_cli.main", "tierline_api.objects", LOW, HIGH} <= set(modules)
    assert faults(modules) == []


@pytest.mark.parametrize(
    "line",
    [
        "from tierline_torch import dispatch",
        "def late():\n    from tierline_torch.dispatch import prepare",
        "try:\n    import tierline_torch.dispatch\nexcept Exception:\n    pass",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import tierline_torch.dispatch",
    ],
    ids=["at the top", "in a function", "attempted", "not for types"],
)
def test_a_planted_circle_is_refused(modules: dict[str, str], line: str) -> None:
    (sentence,) = faults(modules | {LOW: f"{modules[LOW]}\n{line}\n"})
    assert sentence.startswith("they import each other: ")
    assert {LOW, HIGH} == set(sentence.split(": ")[1].split(" <- "))


def test_an_import_for_types_alone_closes_no_circle(modules: dict[str, str]) -> None:
    line = "if TYPE_CHECKING:\n    import tierline_torch.dispatch"
    assert faults(modules | {LOW: f"{modules[LOW]}\n{line}\n"}) == []
