"""`tierline completion SHELL`: the script that completes commands, options and file names."""

import click
from click.shell_completion import get_completion_class


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    For bash, say once:

    \b
      tierline completion bash >~/.local/share/bash-completion/completions/tierline
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"no completion for {shell}")
    root = context.find_root()
    click.echo(completion(root.command, {}, "tierline", "_TIERLINE_COMPLETE").source())
