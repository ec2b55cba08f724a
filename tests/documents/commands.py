"""Commands and files that pages name in code: each exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

import click
from tests.documents.pages import Repository, Said

from tierline_cli.main import cli

SOURCES = ("", "crds", "operator", "nodeagent", "cli", "examples", "cluster", "charts")
"""Folders from which Python packages are imported."""
MAKE = re.compile(r"^make ([a-z][a-z0-9-]*)$")
MODULE = re.compile(r"python -m ((?:tests|tierline)[\w.]*)")
TIERLINE = re.compile(r"^(?:(kubectl) |\S*/)?tierline ([a-z].*)")
FILE = re.compile(r"^[\w.*{},-]+(?:/[\w.*{},-]+)+\.(?:py|c|h|toml|yaml|sh|md|json|tpl)$")
CHANGES = PurePosixPath("CHANGELOG.md")
"""Names what there was, too."""


def unknown(repository: Repository) -> Iterator[str]:
    """Say each command and file that is not there, as `page:line: sentence`."""
    targets = _targets(repository)
    for page in repository.pages:
        for said in page.code:
            for sentence in _wrong(repository, targets, said, files=page.path != CHANGES):
                yield f"{page.path}:{said.line}: {sentence}"


def _wrong(repository: Repository, targets: set[str], said: Said, *, files: bool) -> Iterator[str]:
    for target in MAKE.findall(said.text):
        if target not in targets:
            yield f"make {target}: the Makefile has no such target"
    for module in MODULE.findall(said.text):
        if not _is_module(repository, module):
            yield f"python -m {module}: there is no such module"
    if files and FILE.match(said.text) and not _is_file(repository, said.text):
        yield f"{said.text}: there is no such file"
    for plugin, words in TIERLINE.findall(said.text):
        yield from _command(words, in_cluster=bool(plugin))


def _targets(repository: Repository) -> set[str]:
    text = (repository.root / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, flags=re.MULTILINE))


def _is_module(repository: Repository, module: str) -> bool:
    path = PurePosixPath(module.rstrip(".").replace(".", "/"))
    return any(
        PurePosixPath(source) / candidate in repository.files
        for source in SOURCES
        for candidate in (path.with_suffix(".py"), path / "__main__.py")
    )


def _is_file(repository: Repository, name: str) -> bool:
    """Whether a file's path ends so: pages name a file by as much of its path as tells it."""
    first, brace, rest = name.partition("{")
    if brace:
        choices, _, end = rest.partition("}")
        return all(_is_file(repository, first + one + end) for one in choices.split(","))
    return any(path.match(name) for path in repository.files) or name.startswith("build/")


def _command(words: str, *, in_cluster: bool) -> Iterator[str]:
    command: click.Command = cli.commands["cluster"] if in_cluster else cli
    try:
        given = shlex.split(words.replace("[", " ").replace("]", " "))
    except ValueError:
        return  # prose that begins like a command
    context = click.Context(cli)
    for word in given:
        if isinstance(command, click.Group):
            if word.startswith("-"):
                continue
            found = command.get_command(context, word.rstrip(",.;:`"))
            if found is None:
                yield f"tierline {words}: there is no command {word}"
                return
            command = found
        elif word.startswith("--") and not _has(command, word):
            yield f"tierline {words}: {command.name} has no option {word}"


def _has(command: click.Command, word: str) -> bool:
    option = word.partition("=")[0].rstrip(",.;:")
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return option in names | {"--help"}
