"""Input of the planning commands: the node and the profiles that go with tasks."""

from collections.abc import Sequence
from pathlib import Path

from tierline_api.manifests.files import Manifests, load_manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

_BANDWIDTHS = (100_000, 10**14)
"""Bytes a second, from a worn SD card to what no bus has; what is beyond is a slip of the pen."""


def manifests_with_tasks(files: Sequence[Path], purpose: str) -> Manifests:
    """The manifests in `files`, at least one MemTask among them; `purpose` is a verb.

    Raises:
        CommandError: there is no MemTask.
    """
    manifests = load_manifests([str(file) for file in files])
    if not manifests.tasks:
        raise CommandError(
            f"the files hold no MemTask; there is nothing to {purpose}", EXIT_BAD_INPUT
        )
    return manifests


def check_tasks(tasks: Sequence[MemTask]) -> None:
    """Tasks of one machine are told apart by their names alone, and are one program each.

    Raises:
        CommandError: two have one name, or one has replicas.
    """
    for task in tasks:
        if task.spec.replicas != 1:
            raise CommandError(
                f"MemTask/{task.name}: spec.replicas is {task.spec.replicas}, and on one machine a "
                "task is one program; write 1, and a task for each of them",
                EXIT_BAD_INPUT,
            )
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(
                f"two tasks are called {name}; on one machine their names must differ, "
                "also across namespaces",
                EXIT_BAD_INPUT,
            )


def check_none_trains(tasks: Sequence[MemTask], purpose: str) -> None:
    """See that all tasks have releases; `purpose` says what is done with these.

    Raises:
        CommandError: one trains.
    """
    for task in tasks:
        if task.spec.training is not None:
            raise CommandError(
                f"MemTask/{task.name}: spec.training: it has steps and no releases, which alone "
                f"are {purpose}; leave the task out (others wait for a section of it at most)",
                EXIT_BAD_INPUT,
            )


def tasks_named(manifests: Manifests, name: str | None) -> list[MemTask]:
    """The MemTask of that name, or all.

    Raises:
        CommandError: there is none.
    """
    chosen = [task for task in manifests.tasks if name in (None, task.name)]
    if not chosen:
        raise CommandError(
            f"the files hold no MemTask {name or ''}".rstrip() + "; name one that they hold",
            EXIT_BAD_INPUT,
        )
    return chosen


def one_node(manifests: Manifests, file: Path | None) -> MemNode:
    """The MemNode in `file`, or the only one in `manifests`.

    Raises:
        CommandError: there is none, or more than one, or its links are none.
    """
    nodes = load_manifests([str(file)]).nodes if file is not None else manifests.nodes
    if len(nodes) != 1:
        raise CommandError(
            f"found {len(nodes)} MemNodes and need one; name its file with --node "
            "(tierline run --node-file writes one, tierline top --run-dir DIR --node an agent's)",
            EXIT_BAD_INPUT,
        )
    for link in nodes[0].status.links:
        if not _BANDWIDTHS[0] <= link.bandwidth <= _BANDWIDTHS[1]:
            raise CommandError(
                f"MemNode/{nodes[0].name}: the link {link.name.value} of {link.device} moves "
                f"{link.bandwidth} bytes a second, which no link does; have the node's agent "
                "measure it, and write its MemNode again: tierline top --node",
                EXIT_BAD_INPUT,
            )
    return nodes[0]


def profiles_for(manifests: Manifests, tasks: Sequence[MemTask]) -> dict[str, MemProfile]:
    """Each task's profile by the task's name: the one it names, or the one with its own name.

    Raises:
        CommandError: a task has none, or two have one name.
    """
    check_tasks(tasks)
    by_name = {
        (profile.metadata.namespace, profile.name): profile for profile in manifests.profiles
    }
    found = {}
    for task in tasks:
        profile = by_name.get((task.domain, task.spec.profile or task.name))
        if profile is None:
            raise CommandError(
                f"MemTask/{task.name}: MemProfile/{task.spec.profile or task.name} is in none of "
                "the files; measure it with `tierline profile`",
                EXIT_BAD_INPUT,
            )
        found[task.name] = profile
    return found
