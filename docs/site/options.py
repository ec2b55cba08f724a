"""The page of all options, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tierline_cli.main import cli

PAGE = "options.md"
_HEAD = """# All options

What each command is for, and its exit codes: [the command line](cli.md).
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_sections(cli, "tierline"))


def _sections(command: click.Command, name: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for word, one in command.commands.items():
            if not one.hidden:
                yield from _sections(one, f"{name} {word}")
        return
    rows = [_row(one) for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if rows:
        yield f"\n## `{name}`\n\n| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    meaning = " ".join((option.help or "").split()).replace("|", "\\|")
    return f"| {names} | {meaning} |"
