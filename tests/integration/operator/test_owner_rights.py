"""The operator's owner references where OwnerReferencesPermissionEnforcement is on (OpenShift)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.chart.helm import SYSTEM, rights
from tests.integration.conftest import SPARING, install_crds
from tests.integration.kubernetes.test_agent_rights import token
from tests.integration.kubernetes.test_operator_rights import ACCOUNT, Operator
from tests.unit.api.api_objects import task

from tierline_api.objects.memtask import MemTask
from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import KUBERNETES_BUILD
from tierline_operator.cluster.decode import Meta, meta_of, pod_of
from tierline_operator.controller.inline import memtask_of
from tierline_operator.controller.manifests import claim_template, deployment

UID = "0b0b0b0b-0000-4000-8000-000000000000"
OWNERS = (
    "v1 Pod",
    "v1 ReplicationController",
    "apps/v1 Deployment",
    "apps/v1 StatefulSet",
    "batch/v1 Job",
    "argoproj.io/v1alpha1 Rollout",
)
"""Kinds that make pods; of the last the server knows nothing."""


class Enforcing(ControlPlane):
    """A control plane that asks who may set owner references."""

    def _apiserver_flags(self) -> list[str]:
        plugins = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
        return [*super()._apiserver_flags(), plugins]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    plane = Enforcing(built(KUBERNETES_BUILD), tmp_path_factory.mktemp("owners"), before=SPARING)
    try:
        plane.start()
        install_crds(plane)
        system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
        plane.api.apply(system)
        for manifest in rights("operator"):
            plane.api.apply(manifest)
        api = plane.api.with_token(token(plane, SYSTEM, ACCOUNT, None))
        made = Operator(api, plane.namespace(), plane)

        def may_write() -> bool:
            bare = claim_template(meta(made))
            del bare["metadata"]["ownerReferences"]
            try:
                api.create(bare, dry_run=True)
            except ApiError:
                return False
            return True

        wait_until("the operator's rights are not at work", may_write, plane.daemons)
        yield made
    finally:
        plane.stop()


def meta(operator: Operator) -> Meta:
    """The metadata of a MemTask."""
    metadata = {"name": "m", "namespace": operator.namespace, "uid": UID, "resourceVersion": "1"}
    return meta_of({"metadata": metadata})


def brought(operator: Operator, owner: Manifest) -> Manifest:
    """The MemTask of annotations of a pod with that owner."""
    said = {"task": "m", "period": "50ms", "budget": "1Gi", "device": "cpu"}
    metadata = {
        "name": "p",
        "namespace": operator.namespace,
        "uid": UID,
        "resourceVersion": "1",
        "annotations": {f"tierline.io/{name}": text for name, text in said.items()},
    }
    return memtask_of(pod_of({"metadata": metadata, "spec": {}}), [owner])


def test_what_it_makes_for_a_memtask_goes_with_it(operator: Operator) -> None:
    program = {"spec": {"containers": [{"name": "app", "image": "a", "command": ["python"]}]}}
    templated = MemTask.from_api(task(spec__template=program))
    for made in (claim_template(meta(operator)), deployment(templated, meta(operator))):

        def taken(made: Manifest = made) -> bool:
            try:
                operator.api.create(made, dry_run=True)
            except ApiError as error:
                if "cannot find RESTMapping" in str(error):  # the plugin looks now and then
                    return False
                raise
            return True

        wait_until("the plugin does not know MemTasks", taken, operator.plane.daemons)


@pytest.mark.parametrize("kind", OWNERS)
def test_a_task_of_annotations_goes_with_whatever_makes_its_pods(
    operator: Operator, kind: str
) -> None:
    version, _, word = kind.partition(" ")
    owner = {"apiVersion": version, "kind": word, "name": "o", "uid": UID, "controller": True}

    made = brought(operator, owner | {"blockOwnerDeletion": True})

    assert operator.api.create(made, dry_run=True)["metadata"]["ownerReferences"]
    # As the owner's own reference says it, the server does not take it.
    made["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = True
    with pytest.raises(ApiError, match="cannot set blockOwnerDeletion"):
        operator.api.create(made, dry_run=True)
