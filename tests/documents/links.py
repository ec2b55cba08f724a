"""Links between pages and to files: each leads somewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from tests.documents.pages import Page, Repository


def dead(repository: Repository) -> Iterator[str]:
    """Say each link that leads nowhere, as `page:line: sentence`."""
    pages = {page.path: page for page in repository.pages}
    folders = repository.folders()
    for page in repository.pages:
        for link in page.links:
            parts = urlsplit(link.text)
            if parts.scheme or parts.netloc:
                continue
            target = _target(page, unquote(parts.path))
            if target not in repository.files and target not in folders:
                yield f"{page.path}:{link.line}: {link.text}: there is no {target}"
            elif parts.fragment and parts.fragment not in _anchors(pages, target):
                yield f"{page.path}:{link.line}: {link.text}: {target} has no such heading"


def _target(page: Page, path: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.path.parent / path)) if path else page.path


def _anchors(pages: dict[PurePosixPath, Page], target: PurePosixPath) -> set[str]:
    return pages[target].anchors if target in pages else set()
