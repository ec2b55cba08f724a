"""Objects that were stored before a release brought a rule that they break.

A server asks a rule over several fields of what a change touches alone, whatever else is changed:
so notes, finalizers and status are written as before. Operator and agents read such objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
import yaml
from tests.integration.conftest import install_crds, running
from tests.unit.api.api_objects import node, profile, task
from tests.unit.api.contradictions import Pair, pairs
from tests.unit.api.pods.pod_cases import copied

from tierline_api.objects.kinds import KINDS
from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY
from tierline_operator.cluster.decode import model_of

RULES: Final = "x-kubernetes-validations"
BROKEN: Final = tuple(pairs({"MemTask": task(), "MemProfile": profile(), "MemNode": node()}))
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
        install_crds(server)
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
