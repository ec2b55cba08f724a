"""The command line: ``python -m tierline_cluster --help``."""

import argparse
import sys

from .build import programs
from .errors import ClusterError
from .versions import CONTAINERD_BUILD, KUBERNETES_BUILD

_BUILDS = {build.name: build for build in (KUBERNETES_BUILD, CONTAINERD_BUILD)}


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tierline_cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build programs into .cache/cluster, once")
    build.add_argument("names", nargs="+", choices=_BUILDS, help="what to build")
    build.add_argument("--jobs", type=int, help="compilers at once (default: one for each core)")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            print(programs(_BUILDS[name], options.jobs))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
