"""The `tierline` command and its subcommands."""

from typing import Final, NoReturn

import click

from tierline_api.manifests.files import ManifestError
from tierline_cli.cluster import plugin
from tierline_cli.commands import (
    admit,
    agent,
    completion,
    explain,
    fit,
    init,
    inject,
    plan,
    profile,
    run,
    simulate,
    top,
    verify,
)
from tierline_cli.errors import run as run_command
from tierline_cli.output import tell_of_output
from tierline_operator.planning.from_api import QuestionError

BAD_INPUT: Final = (ManifestError, QuestionError)
"""Errors whose sentence is about what a user wrote."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tierline")
def cli() -> None:
    """Run more DNN inference tasks than fit in a device's memory, and keep their deadlines."""


for command in (
    init.command,
    run.command,
    verify.command,
    profile.command,
    admit.command,
    inject.command,
    plan.command,
    explain.command,
    simulate.command,
    fit.command,
    agent.command,
    top.command,
    completion.command,
):
    cli.add_command(command)
cli.add_command(plugin.group, "cluster")


def main() -> NoReturn:
    """Run the command line."""
    tell_of_output()
    run_command(cli, "tierline", bad_input=BAD_INPUT)
