"""The `tierline` command: its subcommands, and the one place where errors become sentences."""

import sys
from typing import NoReturn

import click

from tierline_api.manifests import ManifestError
from tierline_cli import (
    admit,
    agent,
    completion,
    explain,
    inject,
    plan,
    profile,
    run,
    simulate,
    top,
)
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tierline")
def cli() -> None:
    """Run more DNN inference tasks than fit in a device's memory, and keep their deadlines."""


for command in (
    run.command,
    profile.command,
    admit.command,
    inject.command,
    plan.command,
    explain.command,
    simulate.command,
    agent.command,
    top.command,
    completion.command,
):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line; every mistake of a user ends as one sentence."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except ManifestError as error:
        click.echo(f"tierline: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except CommandError as error:
        click.echo(f"tierline: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
