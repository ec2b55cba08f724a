"""Who may take away what keeps a MemTask until its pods have ended."""

from __future__ import annotations

import pytest
from tests.integration.kubernetes.test_claim_notes import USER, editor
from tests.unit.api.api_objects import task

from tierline_api.objects.optin import FINALIZER
from tierline_cluster.api import Api, ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

__all__ = ["editor"]
OF_THE_USERS = "example.com/mine"


@pytest.fixture
def kept(opting_in: ControlPlane, anything: str, editor: Api) -> Manifest:
    """A MemTask with a pod that runs, of a person who may edit MemTasks."""
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "Role"}
    metadata = {"name": "tasks", "namespace": anything}
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    rules = [{"apiGroups": ["tierline.io"], "resources": ["memtasks"], "verbs": verbs}]
    subjects = [{"apiGroup": group, "kind": "User", "name": USER}]
    reference = {"apiGroup": group, "kind": "Role", "name": "tasks"}
    opting_in.api.apply({**role, "metadata": metadata, "rules": rules})
    bound = {**role, "kind": "RoleBinding", "metadata": metadata}
    opting_in.api.apply({**bound, "roleRef": reference, "subjects": subjects})

    def may_edit() -> bool:
        try:
            editor.list("tierline.io/v1alpha1", "MemTask", anything)
        except ApiError:
            return False
        return True

    wait_until("the person's rights are not at work", may_edit, opting_in.daemons)
    made = task()
    made["metadata"] = {"name": "camera", "namespace": anything}
    made.pop("status", None)
    created = editor.create(made)
    finalizers = {"metadata": {"finalizers": [FINALIZER, OF_THE_USERS]}}
    return opting_in.api.merge(created, finalizers)


def test_a_user_does_not_take_away_what_keeps_a_task(editor: Api, kept: Manifest) -> None:
    for left in (None, [OF_THE_USERS]):
        with pytest.raises(ApiError, match="keeps a MemTask until its pods have ended"):
            editor.merge(kept, {"metadata": {"finalizers": left}})

    own = editor.merge(kept, {"metadata": {"finalizers": [FINALIZER]}})
    assert own["metadata"]["finalizers"] == [FINALIZER]
    editor.merge(kept, {"metadata": {"labels": {"example.com/a": "b"}}})
    editor.delete(kept)
    with pytest.raises(ApiError, match="delete the pods"):
        editor.merge(kept, {"metadata": {"finalizers": None}})


def test_whoever_may_write_finalizers_of_tasks_does(
    opting_in: ControlPlane, editor: Api, kept: Manifest
) -> None:
    editor.delete(kept)
    opting_in.api.merge(kept, {"metadata": {"finalizers": None}})
    opting_in.api.wait_gone(kept)
