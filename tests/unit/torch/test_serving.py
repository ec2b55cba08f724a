"""In which programs the plugin serves."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_builds import ROOT

from tierline_torch.serving import reason_against

OWN = ("tierline", "tierline_torch", "tierline_client", "tierline_steps")
LOADED = (*OWN, "tierline_api/layout.py", "tierline_api/schema/quantities.py")
"""What is loaded into a program."""
ALLOWED = {*sys.stdlib_module_names, "torch", *OWN}
OF_API = {"tierline_api.layout", "tierline_api.schema.quantities"}
OPTIONAL = "highspy"
"""For a bound of plans, where somebody asks for one."""


def sources() -> Iterator[Path]:
    for name in LOADED:
        found = ROOT / ("crds" if name.startswith("tierline_api") else "nodeagent") / name
        yield from found.rglob("*.py") if found.is_dir() else [found]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module or ""


def test_it_imports_pytorch_the_standard_library_and_itself() -> None:
    found = {(path.name, name) for path in sources() for name in imported(path)}
    assert len(found) > 100
    others = {one for one in found if one[1].partition(".")[0] not in ALLOWED}
    assert {name for _, name in others} == OF_API | {OPTIONAL}


@pytest.mark.parametrize(
    ("python", "torch", "locked", "told"),
    [
        ((3, 10), "2.6.0+cu124", True, None),
        ((3, 12), "2.6.0a0+df5bbc09d1.nv24.12", True, None),
        ((3, 14), "2.15.0", True, None),
        ((3, 14), "3.0.0.dev20270101", True, None),
        (
            (3, 9),
            "2.6.0",
            True,
            "Python 3.9 cannot be managed: the plugin runs in Python 3.10 to 3",
        ),
        ((3, 15), "2.20.0", True, "Python 3.15 cannot be managed"),
        ((3, 14), "2.15.0", False, "free-threaded"),
        ((3, 10), "2.5.1+cpu", True, "PyTorch 2.5.1+cpu cannot be managed: the plugin takes"),
        ((3, 10), "1.13", True, "PyTorch 2.6 and later"),
        ((3, 10), "of no known version", True, "PyTorch of no known version"),
    ],
)
def test_what_is_promised(
    python: tuple[int, int], torch: str, locked: bool, told: str | None
) -> None:
    reason = reason_against(python, torch, locked=locked)
    assert (told or "None") in str(reason)
