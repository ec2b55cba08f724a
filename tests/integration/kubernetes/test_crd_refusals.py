"""What the CRDs refuse on a real API server: mistakes at their fields, rules by their sentences."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml
from tests.unit.api.api_objects import CLUSTER, WRONG, Wrong, node, plan, profile, task

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import REPOSITORY

REFUSED = [wrong for wrong in WRONG if wrong.refused_by == CLUSTER]
RULES = "x-kubernetes-validations"


def quota(**spec: Any) -> Manifest:
    return {
        "apiVersion": "tierline.io/v1alpha1",
        "kind": "MemQuota",
        "metadata": {"name": "all"},
        "spec": {"fastMemory": "8Gi", **spec},
    }


def refusal(plane: ControlPlane, namespace: str, manifest: Manifest) -> str:
    """Return what the server says of `manifest`, or of its status; fails if it takes it."""
    manifest = deepcopy(manifest)
    manifest["metadata"]["namespace"] = namespace
    reported = manifest.pop("status", None)
    if reported is None:
        with pytest.raises(ApiError) as refused:
            plane.api.create(manifest)
    else:
        plane.api.create(manifest)
        with pytest.raises(ApiError) as refused:
            plane.api.apply(manifest | {"status": reported}, subresource="status")
        plane.api.delete(manifest)
    assert refused.value.status in {400, 422}
    return refused.value.message


@pytest.mark.parametrize("wrong", REFUSED, ids=lambda wrong: wrong.id)
def test_the_server_refuses_it_at_its_field(
    api_server: ControlPlane, namespace: str, wrong: Wrong
) -> None:
    said = refusal(api_server, namespace, wrong.object)

    # A rule over several fields names the one to change; the reader of manifests names all of them.
    assert wrong.field.rpartition(".")[2] in said or wrong.field in said


def rules(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the sentence of each rule in a schema."""
    yield from (rule["message"] for rule in schema.get(RULES, ()))
    for field in schema.get("properties", {}).values():
        yield from rules(field)
    if "items" in schema:
        yield from rules(schema["items"])


def sentences() -> set[tuple[str, str]]:
    """Return the kind and the sentence of every rule in the CRDs."""
    found = set()
    for path in (REPOSITORY / "crds").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
        found |= {(spec["names"]["kind"], sentence) for sentence in rules(schema)}
    return found


BROKEN = [
    *(wrong.object for wrong in REFUSED),
    task(spec__realtime={"period": "1s", "executionTime": "2s"}),
    task(spec__memory__reserved="1GB"),
    task(status__plan=plan(ringExtents=6)),
    task(status__plan=plan(predictedJobTime="soon")),
    task(status__observed={"responseTimeWorst": "48h"}),
    task(status__granted={"realtime": {"period": "1s", "deadline": "2s"}}),
    profile(spec__workspace="12MB"),
    profile(metadata__name="camera.front"),
    node(metadata__name="slow-link", status__links__0__overhead="a while"),
    quota(fastMemory="8GB"),
    quota(tiers=[{"tier": "dram", "capacity": "1Gi"}] * 2),
    quota() | {"metadata": {"name": "for.all"}},
]


def test_every_rule_says_its_sentence(api_server: ControlPlane, namespace: str) -> None:
    wanted = sentences()
    assert len(wanted) > 15
    for manifest in BROKEN:
        said = refusal(api_server, namespace, manifest)
        wanted -= {(kind, s) for kind, s in wanted if kind == manifest["kind"] and s in said}
    assert wanted == set()
