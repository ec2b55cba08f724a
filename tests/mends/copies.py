"""A copy of the agent's source without a mend, and how a test runs with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.mends.mends import Mend

SOURCE = Path(__file__).parents[2] / "nodeagent" / "tierline_agent"
_FIRST = """
import sys
from importlib.machinery import PathFinder


class First:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "tierline_agent":
            return PathFinder.find_spec(name, path or [FOLDER])
        return None


sys.meta_path.insert(0, First)
"""
"""The environment's own finder knows where the agent's modules lie, and asks no path."""


class DoesNotApplyError(Exception):
    """The source is no longer as the patch says."""


def patched(mend: Mend) -> dict[Path, str]:
    """The text of each file that is another without the mend. Raises DoesNotApplyError."""
    texts: dict[Path, str] = {}
    for patch in mend.patches:
        path = SOURCE / patch.file
        text = texts.get(path) or path.read_text()
        if text.count(patch.text) != 1:
            raise DoesNotApplyError(
                f"the patch of {mend.name} fits {text.count(patch.text)} times into {patch.file}; "
                "look whether the mend is still there, and write the patch again"
            )
        texts[path] = text.replace(patch.text, patch.before)
    for path, text in texts.items():
        compile(text, path, "exec")
    return texts


def copy_without(mend: Mend | None, folder: Path) -> Mapping[str, str]:
    """The environment of programs of an agent without the mend; None gives that of a plain copy."""
    shutil.copytree(SOURCE, folder / SOURCE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in (patched(mend) if mend else {}).items():
        (folder / SOURCE.name / path.relative_to(SOURCE)).write_text(text)
    (folder / "sitecustomize.py").write_text(_FIRST.replace("FOLDER", repr(str(folder))))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
