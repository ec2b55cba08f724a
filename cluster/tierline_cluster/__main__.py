"""Builds, starts and removes a real Kubernetes on this machine.

``up`` and ``down`` need root, because pods run in namespaces, control groups and on a bridge; see
`make cluster` and `make cluster-down`, which also bring the Debian packages they need.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from .build import ProgramFolders, programs
from .cluster import Cluster
from .errors import ClusterError
from .node import SOCKET
from .versions import CONTAINERD_BUILD, HELM_BUILD, KUBERNETES_BUILD, REPOSITORY

_BUILDS: Final = {build.name: build for build in (KUBERNETES_BUILD, CONTAINERD_BUILD, HELM_BUILD)}
_FOLDER: Final = REPOSITORY / "build" / "cluster"


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "build":
            for name in options.names:
                print(programs(_BUILDS[name], options.jobs))
            return 0
        cluster = Cluster(options.folder)
        if options.command == "down":
            if options.after is not None:
                cluster.down_after(options.after)
                return 0
            cluster.down()
            print(f"nothing of the cluster in {cluster.folder} is left", file=sys.stderr)
        else:
            _up(cluster)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tierline_cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build programs into the cache, once a machine")
    build.add_argument("names", nargs="+", choices=_BUILDS, help="what to build")
    build.add_argument("--jobs", type=int, help="compilers at once (default: one for each core)")
    for name, what in (
        ("up", "start control plane and node; does nothing if they run"),
        ("down", "end every process and remove every trace"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "--folder", type=Path, default=_FOLDER, help="where it lives (default: %(default)s)"
        )
        if name == "down":
            after = "once process PID has ended, if that has started it; the logs stay"
            command.add_argument("--after", type=int, metavar="PID", help=after)
    return parser


def _up(cluster: Cluster) -> None:
    """Start `cluster` unless it runs; of one that does not come up the logs stay to be read."""
    folders = ProgramFolders(programs(KUBERNETES_BUILD), programs(CONTAINERD_BUILD))
    if cluster.is_up():
        print("it is up; remove it with: make cluster-down")
    else:
        try:
            cluster.up(folders)
        except BaseException:
            cluster.down(keep_logs=True)
            print(f"logs: {cluster.folder / 'logs'}", file=sys.stderr)
            raise
    print(_use(cluster, folders))


def _use(cluster: Cluster, folders: ProgramFolders) -> str:
    return (
        f"export KUBECONFIG={cluster.kubeconfig}"
        f" PATH={folders.kubernetes}:{programs(HELM_BUILD)}:$PATH\n"
        "kubectl get nodes\n"
        f"# an image of yours, as an archive: {folders.containerd / 'ctr'}"
        f" --address {cluster.folder / SOCKET} --namespace k8s.io images import FILE\n"
        "# Tierline, once the images that `make images` builds have been imported:\n"
        f"{helm_install(cluster.kubelet_root)}\n"
        f"# logs: {cluster.folder / 'logs'}"
    )


def helm_install(kubelet_root: Path) -> str:
    """The line that installs Tierline on the cluster, after `make images` and their import."""
    return (
        f"helm install tierline {REPOSITORY / 'charts' / 'tierline'} --namespace tierline-system"
        " --create-namespace --set operator.image.pullPolicy=Never"
        f" --set agent.image.pullPolicy=Never --set agent.kubeletDir={kubelet_root}"
    )


if __name__ == "__main__":
    sys.exit(main())
