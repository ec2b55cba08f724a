"""`python -m tierline_operator.check`: what `helm test` runs, in a pod of the release's namespace.

    python -m tierline_operator.check NAMESPACE

Ends with 1 if something does not work.
"""

from __future__ import annotations

import asyncio
import sys

from tierline_kube.client import Kube
from tierline_kube.errors import KubeError, NoCluster
from tierline_operator.check.steps import MANAGER, Finding, check


async def run(kube: Kube, namespace: str, *, tasks: bool = True) -> int:
    """Check an installation, and tell; returns the exit status."""
    wrong = 0
    async with kube:
        async for finding in check(kube, namespace, tasks=tasks):
            wrong += bool(finding.wrong)
            tell(finding)
    return 1 if wrong else 0


def tell(finding: Finding) -> None:
    """Print a line."""
    said = (
        f"NOT OK  {finding.what}: {finding.wrong}" if finding.wrong else f"ok      {finding.what}"
    )
    print(said, flush=True)


def main() -> int:
    """Check the installation in the namespace that is named."""
    if len(sys.argv) != 2:
        print("usage: python -m tierline_operator.check NAMESPACE", file=sys.stderr)
        return 2
    try:
        return asyncio.run(run(Kube(MANAGER), sys.argv[1]))
    except (KubeError, NoCluster) as error:
        print(f"cannot check: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
