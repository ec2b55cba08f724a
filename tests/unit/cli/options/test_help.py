"""What the command line says of itself: help, completion, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tierline_cli.main import cli
from tierline_operator.__main__ import run

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "cli.md"


def commands(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*above, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)


ALL = dict(commands(cli))
each = pytest.mark.parametrize("words", ALL, ids=" ".join)


@each
def test_help_says_what_each_option_is(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli, [*words, "--help"])
    assert said.exit_code == 0, said.output
    assert ALL[words].help
    # What speaks for itself needs no words: which namespaces, how often, how many.
    silent = {"--all-namespaces", "--interval"}
    options = [one for one in ALL[words].params if isinstance(one, click.Option)]
    assert not {name for one in options if not one.help for name in one.opts[-1:]} - silent


@each
def test_options_and_subcommands_are_completed(words: tuple[str, ...]) -> None:
    command = ALL[words]
    completion = ShellComplete(cli, {}, "tierline", "_TIERLINE_COMPLETE")
    offered = {one.value for one in completion.get_completions([*words], "--")}
    assert {name for one in command.params for name in one.opts if name[:2] == "--"} <= offered
    if isinstance(command, click.Group):
        below = {one.value for one in completion.get_completions([*words], "")}
        assert below == set(command.commands)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    said = CliRunner().invoke(cli, ["completion", shell])
    assert said.exit_code == 0
    assert "_TIERLINE_COMPLETE" in said.output


def test_the_path_of_the_script_can_be_copied() -> None:
    said = CliRunner().invoke(cli, ["completion", "--help"])
    assert "~/.local/share/bash-completion/completions/tierline\n" in said.output


def test_the_page_names_every_command() -> None:
    text = PAGE.read_text()
    for words in ALL:
        way = ("kubectl", "tierline", *words[1:]) if words[0] == "cluster" else ("tierline", *words)
        if words != ("cluster",):
            assert f"| `{' '.join(way)}" in text, words


def test_the_operators_options_say_what_they_are() -> None:
    said = CliRunner().invoke(run, ["--help"])
    assert said.exit_code == 0
    assert "[default: 9402]" in said.output
    assert all(one.help for one in run.params if isinstance(one, click.Option))
