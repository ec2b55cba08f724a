"""Environment variables: those that the product names are those of one page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.documents.pages import Repository

PAGE = PurePosixPath("docs/reference/environment.md")
PRODUCT = ("nodeagent", "operator", "cli", "crds", "examples")
NAME = re.compile(r"\"(TIERLINE_[A-Z][A-Z0-9_]*[A-Z0-9])\"")
ROW = re.compile(r"^\| `(TIERLINE_[A-Z0-9_…]+)`", flags=re.MULTILINE)


def differences(repository: Repository) -> Iterator[str]:
    """Say each variable that only the code, or only the page, has."""
    documented = set(ROW.findall((repository.root / PAGE).read_text()))
    read = set(_read(repository))
    for name in sorted(read - documented):
        yield f"{PAGE}: {name}, which the product names, is not there"
    for name in sorted(documented - read):
        if not name.endswith("…"):  # a prefix
            yield f"{PAGE}: {name}: nothing in the product names it"


def _read(repository: Repository) -> Iterator[str]:
    for path in sorted(repository.files):
        if path.parts[0] in PRODUCT and path.suffix in {".py", ".c"}:
            yield from NAME.findall((repository.root / path).read_text())
