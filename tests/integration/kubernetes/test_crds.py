"""The CRDs on a real API server: accepted, established, with their defaults, rules and columns."""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from typing import Any

import pytest
import yaml
from tests.integration.conftest import condition, install_crds
from tests.unit.api.api_objects import node, plan, profile, task
from tests.unit.api.editing import REMOVED

from tierline_api.objects.kinds import KINDS
from tierline_cluster.api import ApiError
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY

CRDS = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "crds").glob("*.yaml"))]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*/*.yaml"))


def mine(namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return `manifest` in `namespace`."""
    manifest["metadata"]["namespace"] = namespace
    return manifest


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["metadata"]["name"])
def test_a_crd_is_established_and_structural(api_server: ControlPlane, crd: dict[str, Any]) -> None:
    found = api_server.api.get(crd)

    assert condition(found, "NamesAccepted") == "True"
    assert condition(found, "Established") == "True"
    # The condition NonStructuralSchema is there only to say that a schema is not structural.
    assert condition(found, "NonStructuralSchema") == ""
    assert api_server.api.warnings == ()


def test_nothing_of_a_crd_is_changed_or_dropped_by_the_server(api_server: ControlPlane) -> None:
    for crd in CRDS:
        written = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        stored = api_server.api.get(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert in_floats(stored) == in_floats(written), crd["metadata"]["name"]


def in_floats(schema: object) -> Any:
    """Return `schema` with numbers as the server keeps them: bounds are floating-point there."""
    return json.loads(json.dumps(schema), parse_int=float)


def test_applying_the_crds_again_changes_nothing(api_server: ControlPlane) -> None:
    before = [api_server.api.get(crd)["metadata"] for crd in CRDS]
    install_crds(api_server)
    after = [api_server.api.get(crd)["metadata"] for crd in CRDS]

    for old, new in zip(before, after, strict=True):
        assert (old["uid"], old["generation"]) == (new["uid"], new["generation"])


def test_objects_survive_an_upgrade_of_their_crd(api_server: ControlPlane, namespace: str) -> None:
    api = api_server.api
    stored = api.create(mine(namespace, task()))
    crd = next(deepcopy(c) for c in CRDS if c["spec"]["names"]["kind"] == "MemTask")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["nextRelease"] = {"type": "string", "maxLength": 8, "default": "new"}
    try:
        api.apply(crd)
        upgraded = api.wait(stored, lambda found: "nextRelease" in found["spec"])
    finally:
        install_crds(api_server)
    downgraded = api.wait(stored, lambda found: "nextRelease" not in found["spec"])

    assert upgraded["spec"].pop("nextRelease") == "new"
    assert stored["spec"] == upgraded["spec"] == downgraded["spec"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_admitted(api_server: ControlPlane, path: Any) -> None:
    said = api_server.kubectl("apply", "-f", str(path))

    tasks = [d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == "MemTask"]
    assert tasks
    for manifest in tasks:
        assert f"memtask.tierline.io/{manifest['metadata']['name']} created" in said


def test_the_least_task_has_its_defaults_from_the_server(
    api_server: ControlPlane, namespace: str
) -> None:
    least = task(
        spec__realtime__deadline=REMOVED,
        spec__memory__reserved=REMOVED,
        spec__swap=REMOVED,
        spec__template=REMOVED,
    )
    stored = api_server.api.create(mine(namespace, least))

    assert stored["spec"] == {
        "realtime": {"period": "100ms", "criticality": "Hard"},
        "memory": {"budget": "1Gi", "reserved": 0},
        "swap": {
            "policy": "Auto",
            "tiers": ["dram"],
            "workspace": "Discard",
            "onBudgetExceeded": "Fail",
            "objects": [],
        },
        "device": {"kind": "cpu", "execution": "Direct"},
        "replicas": 1,
    }


def test_a_template_is_stored_as_it_was_written(api_server: ControlPlane, namespace: str) -> None:
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "containers": [{"name": "app", "image": "x", "env": [{"name": "A", "value": "1"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }
    stored = api_server.api.create(mine(namespace, task(spec__template=template)))

    assert stored["spec"]["template"] == template


def test_status_is_written_by_its_subresource_alone(
    api_server: ControlPlane, namespace: str
) -> None:
    api = api_server.api
    written = mine(namespace, task(status__phase="Running"))
    stored = api.create(written)
    assert "status" not in stored

    stored["status"] = {"phase": "Pending", "plan": plan()}
    stored["spec"]["replicas"] = 7
    reported = api.replace(stored, subresource="status")
    assert reported["status"]["plan"]["ringExtents"] == 2
    assert reported["spec"]["replicas"] == 1
    assert reported["metadata"]["generation"] == 1

    reported["spec"]["replicas"] = 2
    reported["status"]["phase"] = "Running"
    changed = api.replace(reported)
    assert changed["status"]["phase"] == "Pending"
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kubectl_knows_short_names_and_columns(
    api_server: ControlPlane, namespace: str, kind: Any
) -> None:
    manifests = {
        "MemTask": task(),
        "MemProfile": profile(),
        "MemNode": node(metadata__name="columns"),
    }
    if kind.name in manifests:
        manifest = manifests[kind.name]
        if kind.scope == "Namespaced":
            mine(namespace, manifest)
        api_server.api.apply(manifest)
    shown = api_server.kubectl("get", kind.short, "-A", "-o", "wide")

    if kind.name in manifests:
        assert [c.name.upper() for c in kind.columns] == [
            word for word in shown.splitlines()[0].split() if word not in {"NAMESPACE", "NAME"}
        ]
    assert api_server.kubectl("get", "tierline", "-A", "-o", "name") is not None


def test_kubectl_explains_each_field_of_a_task(api_server: ControlPlane) -> None:
    said = ""

    def described() -> bool:
        """The server describes kinds a moment after it serves them."""
        nonlocal said
        try:
            said = api_server.kubectl("explain", "memtasks.spec.realtime", "--recursive=false")
        except subprocess.CalledProcessError:
            return False
        return True

    wait_until("kubectl knows no fields", described, api_server.daemons)
    assert "Time between two releases of a job, such as 50ms." in said
    assert "deadline" in said


def test_a_node_can_be_reported_step_by_step(api_server: ControlPlane) -> None:
    api = api_server.api
    inventory = node(metadata__name="crd-node")
    status = inventory.pop("status")
    stored = api.apply(inventory)
    reported = api.apply(inventory | {"status": status}, subresource="status")

    assert stored["spec"] == {}
    assert reported["status"]["devices"][0]["health"] == "Healthy"
    with pytest.raises(ApiError, match="not found"):
        api.get(node(metadata__name="nobody"))
