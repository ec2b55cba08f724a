"""Uninstalling leaves no object, process or mount; the last test of this folder, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chart.helm import SYSTEM
from tests.e2e.product.release import PATIENCE_S, Release
from tests.e2e.product.tasks import Tasks
from tests.integration.operator.running import until

from tierline_api.objects.optin import DRIVER
from tierline_cluster.api import Api
from tierline_cluster.node import CDI
from tierline_cluster.processes import processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PASSING = {"Event", "Lease", "ControllerRevision", "ReplicaSet", "EndpointSlice", "Endpoints"}
"""Kinds of objects that others make, and that end by themselves or with the namespace."""


def objects(api: Api) -> set[str]:
    """Everything in the cluster that is labelled as Tierline's."""
    found = set()
    groups = ["/api/v1"]
    groups += [
        f"/apis/{group['preferredVersion']['groupVersion']}"
        for group in api.request("GET", "/apis")["groups"]
    ]
    for group in groups:
        for kind in api.request("GET", group)["resources"]:
            if "list" not in kind["verbs"] or kind["kind"] in PASSING:
                continue
            items = api.request(
                "GET", f"{group}/{kind['name']}", labelSelector="app.kubernetes.io/name=tierline"
            )["items"]
            found |= {f"{kind['kind']} {item['metadata']['name']}" for item in items}
    return found


def mounts(group: str) -> list[str]:
    """The mounts that any process of a cluster sees below the folders of Tierline's agents."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"/{group}/" not in (process / "cgroup").read_text():
                continue
            lines = (process / "mountinfo").read_text().splitlines()
        except OSError:
            continue
        # The cluster itself binds the two folders, and nothing below them.
        places = [line.split()[4] for line in lines]
        found |= {p for p in places if p.startswith(("/var/lib/tierline/", "/run/tierline/"))}
    return sorted(found)


def test_nothing_is_left(release: Release, namespace: str) -> None:
    api, tasks = release.api, Tasks(release, namespace)
    tasks.apply_with_pods("camera")
    tasks.wait("camera", Ready="Running")
    tasks.wait_jobs("camera")
    assert len(objects(api)) > 10
    tasks.remove_all()
    release.uninstall()

    until(f"objects are left: {objects(api)}", lambda: not objects(api), PATIENCE_S)
    slices = "resource.k8s.io/v1", "ResourceSlice"
    until(
        "a ResourceSlice is left",
        lambda: DRIVER not in {one["spec"]["driver"] for one in api.list(*slices)},
        PATIENCE_S,
    )
    assert (
        api.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"] == []
    )
    node = release.cluster.node
    assert processes_of("tierline_agent", node.group) == []
    assert processes_of("tierline_operator", node.group) == []
    assert mounts(node.group) == []
    assert [*node.outside(CDI).glob(f"{DRIVER}-*")] == []
    secrets = [one["metadata"]["name"] for one in api.list("v1", "Secret", SYSTEM)]
    assert not secrets
