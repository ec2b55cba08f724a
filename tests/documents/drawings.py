"""Drawings that GitHub would not draw: in a sequence `;` and `#` end a statement."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.documents.pages import Repository

SEQUENCE = re.compile(r"^```mermaid\n(sequenceDiagram\n.*?)^```", re.MULTILINE | re.DOTALL)


def broken(repository: Repository) -> Iterator[str]:
    """Say each line that ends too early, as `page:line: sentence`."""
    for page in repository.pages:
        text = (repository.root / page.path).read_text()
        for drawing in SEQUENCE.finditer(text):
            first = text.count("\n", 0, drawing.start(1)) + 1
            for number, line in enumerate(drawing[1].splitlines(), first):
                if re.search("[;#]", line):
                    yield f"{page.path}:{number}: {line.strip()}: ; and # end a statement"
