"""Writes generated YAML, or checks that what is checked in is what would be written."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


class PlainDumper(yaml.SafeDumper):
    """Writes a list that occurs twice twice: anchors confuse readers."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Whatever it is, write it out."""
        return True


def as_yaml(module: str, folder: str, documents: Iterable[Mapping[str, Any]]) -> str:
    """Return `documents` as YAML under a line that says what wrote it; equal input, equal bytes."""
    header = f"# Generated from tierline_api by `python -m {module} --write {folder}/`.\n"
    return header + yaml.dump_all(
        documents, Dumper=PlainDumper, sort_keys=False, width=100, allow_unicode=True
    )


def write_or_check(
    module: str, files: Iterable[tuple[str, str]], arguments: list[str] | None
) -> int:
    """Do what the command line of the generator `module` says with its `files`: (name, text).

    Returns 1 when a checked file is not what would be written.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="fail if they are out of date")
    parser.add_argument("folder", type=Path, help="the folder that holds them")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in files:
        path: Path = options.folder / name
        if options.write:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path))
    if stale:
        print(
            f"{', '.join(stale)} differ from the models;"
            f" run python -m {module} --write {options.folder}",
            file=sys.stderr,
        )
    return 1 if stale else 0
