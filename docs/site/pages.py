"""Pages of the site: the documents and pictures that the repository keeps, where they lie.

    python docs/site/pages.py FOLDER

brings them together; MkDocs calls `on_page_markdown`.

A link to anything else of the repository (a source file, a folder) becomes its plain text: that is
not part of the site. That such links lead somewhere is checked by `make verify`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")


def bring_together(pages: Path) -> None:
    """Copy them into an empty folder."""
    shutil.rmtree(pages, ignore_errors=True)
    command = ["git", "-C", str(_ROOT), "ls-files", "*.md", "docs/*.png"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in listed.splitlines():
        if not name.startswith("tests/"):
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_ROOT / name, pages / name)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Keep the links that lead to other pages, pictures and sites."""
    folder = PurePosixPath(page.file.src_uri).parent

    def kept(link: re.Match[str]) -> str:
        target = urlsplit(link["target"])
        if target.scheme or not target.path:
            return link[0]
        path = (Path(config.docs_dir) / folder / target.path).resolve()
        return link[0] if path.is_file() else link["text"]

    return _LINK.sub(kept, markdown)


if __name__ == "__main__":
    bring_together(Path(sys.argv[1]))
