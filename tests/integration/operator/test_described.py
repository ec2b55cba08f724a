"""A MemTask is its pods' annotations, or a person's: never one, and then the other again."""

from __future__ import annotations

import pytest
from tests.integration.operator.running import User, until
from tests.integration.operator.test_admission import INLINE
from tests.unit.placement.fleets import node, profile

from tierline_api.objects.optin import MADE_BY
from tierline_cluster.api import ApiError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]


def test_what_is_applied_over_annotations_is_refused_or_holds(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.pod("one", "mine", **INLINE)
    user.wait_placed("one")
    made = user.api.get(user.task("mine"))
    assert made["metadata"]["ownerReferences"]
    spec = made["spec"]
    mine = user.task("mine") | {"spec": spec | {"memory": spec["memory"] | {"budget": "2Gi"}}}

    with pytest.raises(ApiError, match=f"another value into metadata.labels\\['{MADE_BY}'\\]"):
        user.api.apply(mine)
    mine["metadata"]["labels"] = {MADE_BY: "kubectl"}
    user.api.apply(mine)

    user.api.wait(user.task("mine"), lambda one: not one["metadata"].get("ownerReferences"))
    until("the pod is told", lambda: "AnnotationsIgnored" in dict(user.events("one")))
    said = dict(user.events("one"))["AnnotationsIgnored"]
    assert "tierline.io/budget says 1Gi, the task 2Gi" in said
    until("the task is told", lambda: "TakenOver" in dict(user.events("mine")))

    # It outlives the pod that brought it: the next one gets its place by it.
    user.delete_pod("one")
    user.pod("two", "mine")
    user.wait_placed("two")
    found = user.api.get(user.task("mine"))
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["spec"]["memory"]["budget"] == "2Gi"
    assert found["metadata"]["labels"][MADE_BY] == "kubectl"
