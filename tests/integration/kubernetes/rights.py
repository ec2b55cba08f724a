"""What each token of the chart may do, as the API server says: `kubectl auth can-i --list`.

`python -m tests.integration.kubernetes.rights` starts a server and writes the page.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chart.helm import SYSTEM, objects
from tests.integration.conftest import running
from tests.integration.kubernetes.test_agent_rights import token

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

TABLE = Path(__file__).parents[3] / "docs" / "operations" / "rights.md"
_ELSEWHERE = "default"
_RBAC = "rbac.authorization.k8s.io"
_HEAD = """# What each token may do

As `kubectl auth can-i --list` says of each service account of the chart, in Tierline's own
namespace and in any other one; what everybody may who has a token is left out. Generated from a
real API server by `python -m tests.integration.kubernetes.rights`, and held by a test. RBAC can say
no more than this; what the [admission policies](../../charts/tierline/files/admission.yaml) narrow
stands in [SECURITY.md](../../SECURITY.md).
"""
Row = tuple[str, str, str]


def _accounts() -> list[str]:
    return sorted(one["metadata"]["name"] for one in _manifests("ServiceAccount"))


def _manifests(*kinds: str) -> list[Manifest]:
    return [one for one in objects() if one["kind"] in kinds]


def table(plane: ControlPlane) -> str:
    """The table; applies the chart's accounts and roles to the server."""
    plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    rbac = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    for manifest in _manifests(*rbac):
        plane.api.apply(manifest)
    plain = {"metadata": {"name": "tierline-nobody", "namespace": SYSTEM}}
    plane.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", **plain})
    nothing = {where: _rows(plane, "tierline-nobody", where) for where in (SYSTEM, _ELSEWHERE)}
    text = _HEAD
    for name in _accounts():
        everywhere = _rows(plane, name, _ELSEWHERE) - nothing[_ELSEWHERE]
        own = _rows(plane, name, SYSTEM) - nothing[SYSTEM] - everywhere
        text += f"\n## {name}\n\n| where | resource | names | verbs |\n|---|---|---|---|\n"
        text += _lines("every namespace", everywhere) + _lines("its own", own)
    return text


def _lines(where: str, rows: Iterable[Row]) -> str:
    return "".join(
        f"| {where} | {resource} | {names} | {verbs} |\n" for resource, names, verbs in sorted(rows)
    )


def _rows(plane: ControlPlane, account: str, namespace: str) -> set[Row]:
    """What a token may do: resource, names, verbs."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    api = plane.api.with_token(token(plane, SYSTEM, account, None))
    address = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status: dict[str, Any] = api.request("POST", address, review)["status"]
    assert not status["incomplete"], status
    may: dict[tuple[str, str], set[str]] = {}
    for rule in status["resourceRules"]:
        names = ", ".join(rule.get("resourceNames", ()))
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                full = f"{resource}.{group}" if group else resource
                may.setdefault((full, names), set()).update(rule["verbs"])
    return {(full, names, " ".join(sorted(verbs))) for (full, names), verbs in may.items()}


def settled(plane: ControlPlane) -> str:
    """The table, once two in a row are the same: the server takes roles from a watch."""
    tables = [table(plane)]

    def is_settled() -> bool:
        tables.append(table(plane))
        return tables[-1] == tables[-2] and all(f"## {name}" in tables[-1] for name in _accounts())

    wait_until("the rights are not at work", is_settled, plane.daemons)
    return tables[-1]


def main() -> int:
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder:
        for plane in running(Path(folder), controllers=False):
            TABLE.write_text(settled(plane))
    return 0


if __name__ == "__main__":
    sys.exit(main())
