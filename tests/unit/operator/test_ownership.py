"""What the operator made is a task's, whatever others do to its metadata; nothing else ever is."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.test_objects import body
from tests.unit.placement.fleets import task

from tierline_api.objects.memtask import MemTask
from tierline_kube.resource import Json, Resource
from tierline_operator.cluster.decode import KnownPart, meta_of, part_of
from tierline_operator.cluster.resources import DEPLOYMENT, TEMPLATE
from tierline_operator.controller.manifests import claim_template, deployment
from tierline_operator.controller.ownership import found, is_made, mend, taken

TASK = meta_of(body("m", metadata={"uid": "of-m"}))
KINDS = (DEPLOYMENT, TEMPLATE)
MEMTASK = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemTask", "controller": True}
OWN = {**MEMTASK, "name": "m", "uid": "of-m", "blockOwnerDeletion": True}
EARLIER = {**OWN, "uid": "of-m-before"}
ANOTHER = {**OWN, "name": "n", "uid": "of-n"}
FOREIGN = {**OWN, "apiVersion": "example.com/v1", "kind": "App", "uid": "of-app"}
NAMESAKE = {**FOREIGN, "kind": "MemTask"}
SECOND = {**FOREIGN, "controller": False}
MARKS = {"tierline.io/task": "m", "app.kubernetes.io/managed-by": "tierline"}
NAMES_IT = {DEPLOYMENT.kind: "selector", TEMPLATE.kind: "metadata"}


def made(kind: Resource) -> Json:
    """The object as the operator makes it."""
    manifest = task("m").to_api()
    manifest["spec"]["template"] = {"spec": {"containers": [{"name": "c"}]}}
    if kind == DEPLOYMENT:
        return deployment(MemTask.from_api(manifest), TASK)
    return claim_template(TASK)


def there(kind: Resource, owners: list[Json], labels: Json, **spec: Any) -> KnownPart:
    """The object as others left it."""
    found_ = made(kind)
    metadata = {"uid": "u", "resourceVersion": "7", "ownerReferences": owners, "labels": labels}
    return part_of({"metadata": {**found_["metadata"], **metadata}, "spec": found_["spec"] | spec})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("owners", [[], [OWN], [EARLIER], [ANOTHER], [SECOND], [SECOND, OWN]])
def test_what_bears_the_marks_is_adopted_from_nobody_and_from_memtasks(
    kind: Resource, owners: list[Json]
) -> None:
    part = there(kind, owners, {**MARKS, "more": "labels"})

    assert is_made(kind, part)
    patch = mend(part, TASK)
    assert (patch is None) == (OWN in owners)
    if patch is not None:
        assert patch["metadata"]["resourceVersion"] == "7"
        assert after(part, owners, patch) == [*(o for o in owners if o == SECOND), OWN]
        assert f"{kind.kind}/m " in found(kind, part, TASK)


def after(part: KnownPart, owners: list[Json], patch: Json) -> list[Json]:
    """The owners that a strategic merge patch leaves."""
    kept = {owner["uid"]: owner for owner in owners}
    for reference in patch["metadata"]["ownerReferences"]:
        if reference.get("$patch") == "delete":
            del kept[reference["uid"]]
        else:
            kept[reference["uid"]] = kept.get(reference["uid"], {}) | reference
    assert sum(bool(owner["controller"]) for owner in kept.values()) == 1, part
    return list(kept.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_reference_that_others_changed_is_put_right(kind: Resource) -> None:
    for change in ({"controller": False}, {"blockOwnerDeletion": False}):
        part = there(kind, [OWN | change], MARKS)
        patch = mend(part, TASK)
        assert patch is not None
        assert after(part, [OWN | change], patch) == [OWN]
    patch = mend(there(kind, [OWN], {"tierline.io/task": "m"}), TASK)
    assert patch is not None, "else it could not be told when its owner is cut"
    assert patch["metadata"]["labels"] == MARKS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("owners", [[FOREIGN], [NAMESAKE]])
def test_what_others_control_is_never_taken(kind: Resource, owners: list[Json]) -> None:
    part = there(kind, owners, MARKS)

    assert not is_made(kind, part)
    assert f"its owner is {owners[0]['kind']}/m" in taken(kind, part)


@given(
    st.sampled_from(KINDS),
    st.sampled_from([[], [ANOTHER], [SECOND]]),
    st.sets(st.sampled_from(sorted(MARKS))),
    st.booleans(),
)
def test_of_marks_all_are_needed(
    kind: Resource, owners: list[Json], marks: set[str], named: bool
) -> None:
    """Who labels an object by chance gives nothing away."""
    labels = {mark: MARKS[mark] for mark in marks}
    other: Json = {"matchLabels": {"app": "m"}} if kind == DEPLOYMENT else {}
    part = there(kind, owners, labels, **({} if named else {NAMES_IT[kind.kind]: other}))

    assert is_made(kind, part) == (labels == MARKS and named)


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"tierline.io/task": "m", "app": "m"}},
        {"matchLabels": {"tierline.io/task": "n"}},
        {
            "matchLabels": {"tierline.io/task": "m"},
            "matchExpressions": [{"key": "a", "operator": "Exists"}],
        },
    ],
)
def test_a_deployment_of_other_pods_is_not_the_operators(selector: Json) -> None:
    assert not is_made(DEPLOYMENT, there(DEPLOYMENT, [], MARKS, selector=selector))


def test_who_has_a_name_says_what_is_missing() -> None:
    for kind, labels in product(KINDS, ({}, {"tierline.io/task": "m"})):
        sentence = taken(kind, there(kind, [], labels))
        assert sentence.startswith(f"{kind.kind}/m exists and is not Tierline's: it has no owner")
        assert "app.kubernetes.io/managed-by=tierline" in sentence
        assert "delete it, or give it or the MemTask another name" in sentence
