"""`kubectl tierline check`: whether an installation works, as `helm test` says it."""

from __future__ import annotations

import asyncio

import click

from tierline_cli.cluster.access import Cluster
from tierline_cli.cluster.options import cluster_options, scope_of
from tierline_cli.errors import EXIT_BAD_INPUT, EXIT_FAILED, CommandError

NAMESPACE = "tierline-system"


@click.command(name="check")
@cluster_options
@click.option("--no-tasks", is_flag=True, help="Only look; run no task.")
def command(
    namespace: str | None,
    everywhere: bool,
    context: str | None,
    kubeconfig: str | None,
    no_tasks: bool,
) -> None:
    """Check the installation: an operator leads, policies are in force, agents are ready, and on
    each pool of nodes a task is admitted and runs.

    The namespace is that of the release, else tierline-system. For its tasks it makes a MemTask, a
    MemProfile and a pod there, and deletes them.
    """
    if everywhere:
        raise CommandError("-A has no meaning here; give the release by -n", EXIT_BAD_INPUT)
    scope = scope_of(namespace or NAMESPACE, everywhere, context, kubeconfig)
    # The asynchronous client takes a second to import.
    from tierline_kube.client import Kube, Login  # noqa: PLC0415
    from tierline_kube.errors import KubeError, NoCluster  # noqa: PLC0415
    from tierline_operator.check.__main__ import run  # noqa: PLC0415
    from tierline_operator.check.steps import MANAGER  # noqa: PLC0415

    with Cluster(scope) as cluster:
        login = Login(kubeconfig, context, tuple(cluster.impersonation()))
    try:
        ended = asyncio.run(run(Kube(MANAGER, login=login), cluster.namespace, tasks=not no_tasks))
    except NoCluster as error:
        raise CommandError(str(error), EXIT_BAD_INPUT) from error
    except KubeError as error:
        raise CommandError(f"cannot check: {error}", EXIT_FAILED) from error
    if ended:
        raise CommandError("the installation does not work", EXIT_FAILED)
