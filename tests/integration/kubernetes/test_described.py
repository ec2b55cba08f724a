"""Who changes a MemTask that annotations of pods describe, and who takes it over."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.kubernetes.test_operator_rights import Operator, operator
from tests.unit.api.api_objects import task

from tierline_api.objects.optin import MADE_BY, MANAGER
from tierline_cluster.api import ApiError, Manifest

__all__ = ["operator"]
MARK = {MADE_BY: MANAGER}
MORE = {"memory": {"budget": "3Gi"}}
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
THEIRS = "annotations of pods describe this MemTask"


def made(namespace: str, labels: dict[str, str]) -> Manifest:
    manifest = task()
    manifest.pop("status", None)
    manifest["metadata"] = {"name": "robot", "namespace": namespace, "labels": labels}
    return manifest


@pytest.fixture
def described(operator: Operator) -> Manifest:
    """A MemTask as the operator makes it of annotations."""
    return operator.api.create(made(operator.namespace, MARK))


@pytest.mark.parametrize(
    "change",
    [{"spec": MORE}, {"metadata": {"annotations": {APPLIED: "{}"}}}],
    ids=["its spec", "applied as it is"],
)
def test_nobody_else_writes_what_annotations_describe(
    operator: Operator, described: Manifest, change: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match=THEIRS) as refused:
        operator.plane.api.merge(described, change)

    assert f"write another value into metadata.labels['{MADE_BY}']" in str(refused.value)
    if "spec" in change:
        with pytest.raises(ApiError, match=THEIRS):
            operator.plane.api.apply(made(operator.namespace, {}) | change)


def test_nobody_else_marks_a_task_as_described(operator: Operator) -> None:
    with pytest.raises(ApiError, match=THEIRS):
        operator.plane.api.create(made(operator.namespace, MARK))
    own = operator.plane.api.create(made(operator.namespace, {}))
    with pytest.raises(ApiError, match=THEIRS):
        operator.plane.api.merge(own, {"metadata": {"labels": MARK}})


def test_the_rest_of_it_is_everybodys(operator: Operator, described: Manifest) -> None:
    for metadata in (
        {"labels": {"example.com/a": "b"}},
        {"annotations": {"example.com/a": "b"}},
        {"finalizers": ["example.com/mine"]},
        {"finalizers": None},
    ):
        operator.plane.api.merge(described, {"metadata": metadata})


@pytest.mark.parametrize("other", ["kubectl", None])
def test_who_takes_the_mark_away_has_it(
    operator: Operator, described: Manifest, other: str | None
) -> None:
    mine = {"metadata": {"labels": {MADE_BY: other}}, "spec": MORE}
    taken = operator.plane.api.merge(described, mine)
    assert taken["spec"]["memory"]["budget"] == "3Gi"

    for change in ({"spec": {"memory": {"budget": "1Gi"}}}, {"metadata": {"labels": MARK}}):
        with pytest.raises(ApiError, match="MemTasks that it made of annotations only"):
            operator.api.merge(taken, change)
    operator.api.merge(taken, {"metadata": {"finalizers": ["tierline.io/admission"]}})


def test_the_operator_writes_what_annotations_describe(
    operator: Operator, described: Manifest
) -> None:
    assert operator.api.merge(described, {"spec": MORE})["spec"]["memory"]["budget"] == "3Gi"
