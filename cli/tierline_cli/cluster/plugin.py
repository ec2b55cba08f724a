"""`kubectl-tierline`, which kubectl runs as `kubectl tierline`, and its completion.

For `kubectl tierline <TAB>` kubectl runs `kubectl_complete-tierline` with the words so far, and
reads one completion a line, then a colon with a number: 4 says that file names are none.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
from click.shell_completion import ShellComplete

from tierline_cli.cluster import check, explain, top, why_pending
from tierline_cli.errors import run
from tierline_cli.output import tell_of_output

_NO_FILES = ":4"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tierline")
def group() -> None:
    """Show what happens to MemTasks on a cluster, with your rights; only check makes anything."""


for command in (top.command, explain.command, why_pending.command, check.command):
    group.add_command(command)


def main() -> NoReturn:
    """Run the plugin."""
    tell_of_output()
    run(group, "kubectl tierline")


def complete() -> None:
    """Print how the words of the command line may go on."""
    tell_of_output()
    *words, incomplete = sys.argv[1:] or [""]
    for item in ShellComplete(group, {}, "kubectl tierline", "").get_completions(words, incomplete):
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)
