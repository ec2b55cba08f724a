"""The Markdown pages of a repository: what they link to, what they say in code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True)
class Said:
    """One link's target, or one piece of code, and the line (from 1) where its paragraph begins."""

    text: str
    line: int


@dataclass
class Page:
    """One page: `path` is relative to the root of the repository."""

    path: PurePosixPath
    anchors: set[str] = field(default_factory=set)
    links: list[Said] = field(default_factory=list)
    code: list[Said] = field(default_factory=list)


@dataclass(frozen=True)
class Repository:
    """The files that git knows or would take, and their pages."""

    root: Path
    files: frozenset[PurePosixPath]
    pages: tuple[Page, ...]

    @classmethod
    def read(cls, root: Path) -> Repository:
        """Read all pages below `root`, the root of a git work tree."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        files = frozenset(PurePosixPath(name) for name in listed.split("\0") if name)
        present = sorted(path for path in files if (root / path).is_file())
        pages = (parse(path, (root / path).read_text()) for path in present if path.suffix == ".md")
        return cls(root, frozenset(present), tuple(pages))

    def folders(self) -> set[PurePosixPath]:
        """Return all folders that hold files, the root among them."""
        return {folder for path in self.files for folder in path.parents}


def parse(path: PurePosixPath, text: str) -> Page:
    """Parse one page; anchors are made as GitHub makes them."""
    page = Page(path)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for place, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "heading_open":
            page.anchors.add(_free(_anchor(tokens[place + 1].content), page.anchors))
        elif token.type in {"fence", "code_block"}:
            page.code.extend(_commands(token.content, line))
        for child in _inside(token):
            _say(page, child, line)
    return page


def _inside(token: Token) -> Iterator[Token]:
    for child in token.children or ():
        yield child
        yield from _inside(child)


def _say(page: Page, token: Token, line: int) -> None:
    target = token.attrs.get("href") or token.attrs.get("src")
    if target is not None:
        page.links.append(Said(str(target), line))
    elif token.type == "code_inline":
        page.code.append(Said(token.content, line))


def _commands(block: str, line: int) -> Iterator[Said]:
    for number, text in enumerate(block.splitlines(), line + 1):
        yield Said(text.removeprefix("$ ").strip(), number)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _free(anchor: str, taken: set[str]) -> str:
    names = [anchor, *(f"{anchor}-{number}" for number in range(1, len(taken) + 1))]
    return next(name for name in names if name not in taken)
