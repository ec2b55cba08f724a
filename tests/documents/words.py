"""Words for which the field has others: none is left, in sentences or within names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.documents.pages import Repository

# Written so that this line is none of them.
OLD = re.compile(r"\w*(?:be(?:hind|side(?!s))|(?<![a-z])a(?:new))\w*", re.IGNORECASE)
WRITTEN = {".c", ".cu", ".h", ".md", ".py", ".sh", ".toml", ".tpl", ".yaml"}


def old(repository: Repository) -> Iterator[str]:
    """Say each of them, as `file:line: sentence`."""
    for path in sorted(repository.files):
        if path.suffix not in WRITTEN:
            continue
        for number, line in enumerate((repository.root / path).read_text().splitlines(), 1):
            for word in OLD.findall(line):
                yield f"{path}:{number}: {word}: write after, during, in addition to, or again"
