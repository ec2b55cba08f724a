"""Options as kubectl has them, and completion of names from the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

import click

from tierline_cli.cluster.access import Cluster, Scope
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

Command = TypeVar("Command", bound=Callable[..., Any])

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json is for programs; its names do not change.",
)


def cluster_options(command: Command) -> Command:
    """Add the options that choose cluster and namespace; the command gets them as `scope`."""
    for option in reversed(
        (
            click.option("-n", "--namespace", help="Namespace; else that of the context."),
            click.option(
                "-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces."
            ),
            click.option("--context", help="Context of the kubeconfig; else the current one."),
            click.option("--kubeconfig", type=click.Path(), help="File; else KUBECONFIG."),
            click.option(
                *("--as", "user"),
                expose_value=False,
                callback=_keep,
                help="Ask as this user; else as the kubeconfig says.",
            ),
            click.option(
                *("--as-group", "groups"),
                multiple=True,
                expose_value=False,
                callback=_keep,
                help="And as a member of this group; may be given several times.",
            ),
        )
    ):
        command = option(command)
    return command


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Keep what only `scope_of` needs out of each command's signature."""
    context.meta[f"{__name__}.{parameter.name}"] = value
    return value


def scope_of(
    namespace: str | None,
    everywhere: bool,
    context: str | None,
    kubeconfig: str | None,
    *,
    name: str | None = None,
) -> Scope:
    """Return where to look; a `name` is of one namespace.

    Raises:
        CommandError: the options contradict each other.
    """
    if everywhere and namespace:
        raise CommandError("-n and -A contradict each other; write one of them", EXIT_BAD_INPUT)
    if everywhere and name:
        raise CommandError(
            f"a name such as {name} is of one namespace; write -n instead of -A", EXIT_BAD_INPUT
        )
    kept = click.get_current_context().meta
    user, groups = kept.get(f"{__name__}.user"), kept.get(f"{__name__}.groups", ())
    if groups and not user:
        raise CommandError("--as-group needs --as; name the user as well", EXIT_BAD_INPUT)
    return Scope(namespace, everywhere, context, kubeconfig, user, tuple(groups))


def complete_task(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of MemTasks that begin so; none if the cluster cannot be asked."""
    given = {
        name: context.params.get(name)
        for name in ("namespace", "everywhere", "context", "kubeconfig")
    }
    scope = Scope(given["namespace"], False, given["context"], given["kubeconfig"])
    try:
        with Cluster(scope) as cluster:
            names = [task["metadata"]["name"] for task in cluster.tasks()]
    except CommandError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def print_json(value: object) -> None:
    """Print dataclasses, and lists and mappings of them, as one JSON value."""
    click.echo(json.dumps(_plain(value), indent=2))


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
