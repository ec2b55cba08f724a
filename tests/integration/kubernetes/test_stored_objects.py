"""Objects that were stored before a release brought a rule that they break.

A server asks a rule over several fields of what a change touches alone, whatever else is changed:
so notes, finalizers and status are written as before. Operator and agents read such objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial, reduce
from itertools import product
from typing import Any, Final

import pytest
import yaml
from tests.integration.conftest import install_crds, running
from tests.integration.kubernetes.refusal_cases import workload
from tests.integration.policies import apply_policies
from tests.unit.api.api_objects import node, profile, task
from tests.unit.api.contradictions import Pair, pairs
from tests.unit.api.pods.pod_cases import TASK, copied, pod
from tests.unit.api.pods.pod_cases import WRONG as WRONG_PODS

from tierline_api.objects.kinds import KINDS
from tierline_api.pods.inject import TEMPLATES
from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY
from tierline_operator.cluster.decode import model_of

RULES: Final = "x-kubernetes-validations"
BROKEN: Final = tuple(pairs({"MemTask": task(), "MemProfile": profile(), "MemNode": node()}))
WORKLOADS: Final = tuple(product(("Deployment", "CronJob"), WRONG_PODS))
LATER: Final[dict[str, dict[str, Any]]] = {
    "MemTask": {"phase": "Running"},
    "MemProfile": {"weights": "1Mi"},
    "MemNode": {"lastSeen": "2026-11-28T18:00:00Z"},
}
"""What operator and agents write while the object stays as it is."""


def without_rules(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without rules over several fields, each of which names one."""
    made = dict(schema)
    if RULES in made:
        made[RULES] = [rule for rule in made[RULES] if "fieldPath" not in rule]
    if "properties" in made:
        made["properties"] = {n: without_rules(one) for n, one in made["properties"].items()}
    if "items" in made:
        made["items"] = without_rules(made["items"])
    return made


def named(pair: Pair, number: int, namespace: str) -> Manifest:
    """The wrong object of a pair under a name of its own."""
    manifest = copied(pair.wrong, namespace)
    manifest["metadata"]["name"] = f"n{number}"
    return manifest


def write(server: ControlPlane, manifest: Manifest) -> Manifest:
    """Create an object, and report its status; returns it as it is stored."""
    status = manifest.get("status")
    made = server.api.create({key: part for key, part in manifest.items() if key != "status"})
    if status is None:
        return made
    return server.api.apply(manifest, subresource="status", manager="agent")


def is_taken(server: ControlPlane, manifest: Manifest) -> bool:
    """Store an object; returns whether the server takes it."""
    try:
        write(server, manifest)
    except ApiError:
        server.api.delete(manifest)
        return False
    return True


def deployed(kind: str, mistake: str, namespace: str) -> Manifest:
    """A workload whose pods have that mistake, under a name of its own."""
    manifest = copied(workload(kind, WRONG_PODS[mistake].pod), namespace)
    manifest["metadata"]["name"] = f"n{list(WRONG_PODS).index(mistake)}"
    return manifest


def in_template(kind: str, change: dict[str, Any]) -> dict[str, Any]:
    """A change of the template of pods."""
    return reduce(lambda inner, part: {part: inner}, reversed(TEMPLATES[kind]), change)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, str]]:
    """A server with an object for each rule that breaks it, and their namespace."""
    for server in running(tmp_path_factory.mktemp("stored"), controllers=False):
        for path in (REPOSITORY / "crds").glob("*.yaml"):
            crd = yaml.safe_load(path.read_text())
            schema = crd["spec"]["versions"][0]["schema"]
            schema["openAPIV3Schema"] = without_rules(schema["openAPIV3Schema"])
            server.api.apply(crd)
        namespace = server.namespace()

        for number, pair in enumerate(BROKEN):
            wait_until(
                f"{pair.id} is still refused",
                partial(is_taken, server, named(pair, number, namespace)),
                server.daemons,
            )
        for kind, mistake in WORKLOADS:
            server.api.create(deployed(kind, mistake, namespace))
        install_crds(server)
        apply_policies(server)
        yield server, namespace


@pytest.mark.parametrize("number", range(len(BROKEN)), ids=lambda number: BROKEN[number].id)
def test_a_stored_object_that_breaks_a_rule_is_kept_up(
    stored: tuple[ControlPlane, str], number: int
) -> None:
    server, namespace = stored
    manifest = named(BROKEN[number], number, namespace)
    other = named(BROKEN[number], number + 100, namespace)

    def is_refused() -> bool:
        taken = is_taken(server, other)
        server.api.delete(other)
        return not taken

    wait_until("the rule is not at work", is_refused, server.daemons)
    kind = manifest["kind"]
    for change in ({"labels": {"a": "b"}}, {"finalizers": ["a.b/c"]}, {"finalizers": None}):
        server.api.merge(manifest, {"metadata": change})
    bare = {key: manifest[key] for key in ("apiVersion", "kind", "metadata")}
    bare["metadata"].pop("labels", None)
    found = server.api.apply({**bare, "status": LATER[kind]}, subresource="status")
    assert LATER[kind].items() <= found["status"].items()

    (model,) = (one.model for one in KINDS if one.name == kind)
    assert model_of(model, server.api.get(manifest)) is not None


@pytest.mark.parametrize(("kind", "mistake"), WORKLOADS)
def test_a_stored_workload_that_breaks_a_rule_is_kept_up(
    stored: tuple[ControlPlane, str], kind: str, mistake: str
) -> None:
    server, namespace = stored
    manifest = deployed(kind, mistake, namespace)
    with pytest.raises(ApiError, match="denied request"):
        server.api.replace(server.api.get(manifest) | {"spec": changed_annotations(manifest, kind)})

    for change in (
        {"metadata": {"labels": {"a": "b"}}},
        in_template(kind, {"metadata": {"annotations": {"example.com/a": "b"}}}),
        in_template(kind, {"spec": {"terminationGracePeriodSeconds": 7}}),
    ):
        server.api.merge(manifest, change)


def changed_annotations(manifest: Manifest, kind: str) -> Any:
    """The spec with one annotation of Tierline more, which does not exist."""
    made = deepcopy(manifest)
    found = reduce(lambda at, part: at[part], TEMPLATES[kind], made)
    found["metadata"].setdefault("annotations", {})["tierline.io/none"] = "x"
    return made["spec"]


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_a_change_that_breaks_a_rule_is_refused(
    stored: tuple[ControlPlane, str], kind: str
) -> None:
    server, namespace = stored
    good = copied(workload(kind, pod()), namespace)
    good["metadata"]["name"] = "good"
    server.api.create(good)
    old = deployed(kind, "a deadline after the period", namespace)

    for manifest, change, says in (
        (good, {"spec": {"nodeName": "a"}}, "binds the pod to a node"),
        (good, {"metadata": {"annotations": {TASK: "Camera"}}}, "no name of a MemTask"),
        (old, {"spec": {"nodeName": "a"}}, "binds the pod to a node"),
        (old, {"metadata": {"annotations": {"tierline.io/deadline": "52ms"}}}, "deadline"),
    ):
        with pytest.raises(ApiError, match=says):
            server.api.merge(manifest, in_template(kind, change))
    right = {"metadata": {"annotations": {"tierline.io/deadline": "50ms"}}}
    server.api.merge(old, in_template(kind, right))
