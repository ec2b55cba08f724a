"""`tierline inject`: writes into manifests what the admission policy writes into pods."""

import sys
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tierline_api.generated import PlainDumper
from tierline_api.manifests.documents import DocumentError, read_documents
from tierline_api.pods.inject import RefusedError, injected, warned
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Texts that some readers of YAML take for something else."""


@click.command(name="inject")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
def command(files: tuple[Path, ...]) -> None:
    """Print the manifests in FILES (- is the standard input) with their opted-in pods changed.

    For clusters without Tierline's admission policy: pods and templates of pods that carry the
    annotation tierline.io/task get the gate, the claim and the library that the policy would add;
    everything else is printed as it is. Pipe it into: kubectl apply -f -
    """
    manifests = [manifest for file in files for manifest in _read(file)]
    # Nothing is printed unless all can be: half of a file must not reach a cluster.
    click.echo(
        yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100),
        nl=False,
    )


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the changed manifests of `file`; raises CommandError."""
    stdin = str(file) == "-"
    source = "standard input" if stdin else str(file)
    try:
        text = sys.stdin.read() if stdin else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{source}: not UTF-8, as manifests are", EXIT_BAD_INPUT) from error
    try:
        documents = list(read_documents(text))
    except DocumentError as error:
        raise CommandError(f"{source}: {error}", EXIT_BAD_INPUT) from error
    changed = []
    for document in documents:
        if document.value is None:
            continue
        if not isinstance(document.value, dict):
            raise CommandError(
                f"{source}: line {document.line}: not an object of Kubernetes; write a mapping"
                " with apiVersion and kind",
                EXIT_BAD_INPUT,
            )
        try:
            changed.append(injected(document.value))
            for sentence in warned(document.value):
                click.echo(f"Warning: {source}: {sentence}", err=True)
        except RefusedError as error:
            raise CommandError(f"{source}: {error}", EXIT_BAD_INPUT) from error
    return changed


class _Dumper(PlainDumper):
    """Writes texts so that every reader of YAML takes them for texts."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Return `value` in quotes where a reader could take it for a number or a truth value."""
    plain = value[:1].isalpha() or value.startswith("/")
    style = None if plain and value.lower() not in _WORDS else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, "|" if "\n" in value else style)


_Dumper.add_representer(str, _text)
