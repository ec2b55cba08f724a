"""Who may note in a claim what it was granted."""

from __future__ import annotations

import pytest
from tests.integration.kubernetes.test_agent_rights import allocated_claim

from tierline_cluster.api import Api, ApiError
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

USER = "ann"


@pytest.fixture
def editor(opting_in: ControlPlane, anything: str) -> Api:
    """A person who may edit everything in the namespace."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "editors", "namespace": anything},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    opting_in.api.apply(binding)
    person = opting_in.api_for(USER)

    def may_edit() -> bool:
        try:
            person.list("resource.k8s.io/v1", "ResourceClaim", anything)
        except ApiError:
            return False
        return True

    wait_until("the person's rights are not at work", may_edit, opting_in.daemons)
    return person


def test_a_pods_owner_notes_nothing_in_its_claim(
    opting_in: ControlPlane, anything: str, editor: Api
) -> None:
    bare = allocated_claim(opting_in, anything, "node-here")
    claim = opting_in.api.merge(bare, {"metadata": {"labels": {"tierline.io/task": "task"}}})
    of_their_own = {"metadata": {"annotations": {"example.com/note": "mine"}}}
    assert editor.merge(claim, of_their_own)["metadata"]["annotations"] == {
        "example.com/note": "mine"
    }

    for metadata in (
        {"annotations": {"tierline.io/plan": "{}"}},
        {"annotations": {"tierline.io/standing": "Planned"}},
        {"annotations": {"tierline.io/terms": "{}"}},
        {"labels": {"tierline.io/node": "elsewhere"}},
        {"labels": {"tierline.io/task": None}},
        {"labels": {"tierline.io/task": "nobody"}},
    ):
        with pytest.raises(ApiError, match="noted in it by Tierline's operator alone"):
            editor.merge(claim, {"metadata": metadata})

    noted = {"metadata": {"annotations": {"tierline.io/order": "1"}}}
    after = opting_in.api.merge(claim, noted)  # an administrator may allocate
    with pytest.raises(ApiError, match="change the MemTask instead"):
        editor.merge(after, {"metadata": {"annotations": {"tierline.io/order": None}}})
