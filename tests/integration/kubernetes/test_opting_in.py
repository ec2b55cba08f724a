"""Pods that opt in, on a real API server; and `tierline inject`, which must write the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.policies import policies
from tests.unit.api.pods.pod_cases import GOOD, LIBRARY, Manifest, container, copied, pod, templated

from tierline_api.pods.inject import injected
from tierline_cluster.api import ApiError
from tierline_cluster.control_plane import ControlPlane

NAMES = list(GOOD)
UNRESTRICTED = {"the host's network", "the host's processes"}


def admitted(plane: ControlPlane, manifest: Manifest) -> Manifest:
    """Return what the server would make of `manifest`."""
    return plane.api.create(manifest, dry_run=True)


def told(made: Manifest) -> Any:
    """Return what users write of a pod: everything but what the server numbers and dates."""
    metadata = {key: made["metadata"].get(key) for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": made["spec"]}


@pytest.fixture(scope="module")
def nvidia(opting_in: ControlPlane) -> None:
    """The runtime class that one of the pods names."""
    opting_in.api.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize("name", NAMES)
def test_the_policy_and_inject_write_the_same(
    opting_in: ControlPlane, anything: str, name: str
) -> None:
    written = copied(GOOD[name], anything)
    plain = copied(GOOD[name], anything)
    plain["metadata"]["annotations"] = {}
    with_defaults = admitted(opting_in, plain)
    with_defaults["metadata"]["annotations"] = written["metadata"]["annotations"]

    by_policy = told(admitted(opting_in, written))

    assert by_policy == told(injected(with_defaults))
    assert by_policy == told(admitted(opting_in, injected(written)))


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNRESTRICTED])
def test_a_restricted_namespace_admits_it(opting_in: ControlPlane, robots: str, name: str) -> None:
    made = admitted(opting_in, copied(GOOD[name], robots))

    assert {"name": "tierline.io/admission"} in made["spec"]["schedulingGates"]


def test_a_pod_without_the_annotation_is_not_touched(opting_in: ControlPlane, robots: str) -> None:
    plain = pod(container(env=[{"name": "A", "value": "1"}]), annotations={"example.com/a": "b"})
    made = admitted(opting_in, copied(plain, robots))

    assert "schedulingGates" not in made["spec"]
    assert "resourceClaims" not in made["spec"]
    assert "labels" not in made["metadata"]
    assert made["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert made["spec"]["containers"][0]["resources"] == {}


@pytest.mark.parametrize("kind", ["Deployment", "CronJob", "Job"])
def test_workloads_without_any_metadata_are_not_touched(
    opting_in: ControlPlane, anything: str, kind: str
) -> None:
    plain = copied(templated("CronJob" if kind == "CronJob" else "Deployment", pod()), anything)
    template = plain["spec"]["template" if kind != "CronJob" else "jobTemplate"]
    template.get("metadata", {}).pop("annotations", None)
    if kind == "CronJob":
        del template["spec"]["template"]["metadata"]
    if kind == "Job":
        del template["metadata"]
        template["spec"]["restartPolicy"] = "Never"
        plain |= {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}}
    admitted(opting_in, plain)

    assert opting_in.api.warnings == ()


def test_a_container_that_another_policy_adds_gets_the_library_as_well(
    opting_in: ControlPlane, anything: str
) -> None:
    api = opting_in.api
    api_version = "admissionregistration.k8s.io/v1"
    mesh = "{'name': 'mesh', 'image': 'example.local/mesh:1'}"
    add = f"[JSONPatch{{op: 'add', path: '/spec/containers/-', value: {mesh}}}]"
    wanted = "object.metadata.?labels.orValue({}).exists(k, k == 'mesh')"
    unmeshed = "!object.spec.containers.exists(c, c.name == 'mesh')"
    policy = {
        "apiVersion": api_version,
        "kind": "MutatingAdmissionPolicy",
        # Later in the alphabet than Tierline's, and so after it.
        "metadata": {"name": "zz-mesh"},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [
                {"name": "wanted", "expression": wanted},
                {"name": "unmeshed", "expression": unmeshed},
            ],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": add}}],
        },
    }
    binding = {
        "apiVersion": api_version,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "zz-mesh"},
        "spec": {"policyName": "zz-mesh"},
    }
    api.apply(policy)
    api.apply(binding)
    meshed = copied(pod(labels={"mesh": "yes"}), anything)

    def containers() -> Any:
        return admitted(opting_in, meshed)["spec"]["containers"]

    api.wait(binding, lambda _: len(containers()) == 2)
    assert [c["env"] for c in containers()] == [[{"name": "LD_PRELOAD", "value": LIBRARY}]] * 2
    assert [c["resources"]["claims"] for c in containers()] == [[{"name": "tierline"}]] * 2
    api.delete(binding)
    api.delete(policy)


def test_what_is_added_reads_as_expected(opting_in: ControlPlane, robots: str) -> None:
    own = container(env=[{"name": "LD_PRELOAD", "value": "/a.so"}])
    made = admitted(opting_in, copied(pod(own), robots))

    assert made["metadata"]["labels"] == {"tierline.io/task": "camera"}
    assert made["spec"]["schedulingGates"] == [{"name": "tierline.io/admission"}]
    claim = {"name": "tierline", "resourceClaimTemplateName": "camera"}
    assert made["spec"]["resourceClaims"] == [claim]
    (app,) = made["spec"]["containers"]
    assert app["env"] == [{"name": "LD_PRELOAD", "value": f"{LIBRARY} /a.so"}]
    assert app["resources"] == {"claims": [{"name": "tierline"}]}


def test_the_pods_of_a_deployment_wait_with_claims_of_their_own(
    opting_in: ControlPlane, robots: str
) -> None:
    api = opting_in.api
    deployment = copied(templated("Deployment", pod()), robots)
    deployment["spec"]["replicas"] = 2
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "camera", "namespace": robots},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    api.create(template)
    api.create(deployment)

    def waiting() -> list[Manifest]:
        pods = api.list("v1", "Pod", robots)
        return [p for p in pods if p["status"].get("resourceClaimStatuses")]

    api.wait(deployment, lambda _: len(waiting()) == 2)
    claims = {
        c["metadata"]["name"] for c in api.list("resource.k8s.io/v1", "ResourceClaim", robots)
    }
    reasons = {c["reason"] for p in waiting() for c in p["status"]["conditions"]}

    assert len(claims) == 2
    assert "SchedulingGated" in reasons


def test_the_task_of_a_pod_does_not_change(opting_in: ControlPlane, robots: str) -> None:
    made = opting_in.api.create(copied(pod(), robots))
    annotations = {"tierline.io/task": "other"}
    with pytest.raises(ApiError, match="read when a pod is made"):
        opting_in.api.merge(made, {"metadata": {"annotations": annotations}})

    for label in (None, "other"):
        with pytest.raises(ApiError, match="leave it as it is while the pod runs"):
            opting_in.api.merge(made, {"metadata": {"labels": {"tierline.io/task": label}}})

    opting_in.api.merge(made, {"metadata": {"annotations": {"example.com/a": "b"}}})
    opting_in.api.merge(made, {"metadata": {"labels": {"example.com/a": "b"}}})
    gone = {"spec": {"schedulingGates": None}}
    assert "schedulingGates" not in opting_in.api.merge(made, gone)["spec"]


def test_an_annotation_in_the_wrong_place_is_warned_of(
    opting_in: ControlPlane, robots: str
) -> None:
    misplaced = copied(templated("Deployment", pod(annotations={})), robots)
    misplaced["metadata"]["annotations"] = {"tierline.io/task": "camera"}
    admitted(opting_in, misplaced)

    (warning,) = opting_in.api.warnings
    assert "write it into the pods' template: spec.template.metadata.annotations" in warning


def test_the_scheduler_allocates_no_device_by_itself(
    opting_in: ControlPlane, anything: str
) -> None:
    api = opting_in.api
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-of-claims"}}
    room = {"cpu": "8", "memory": "8Gi", "pods": "8"}
    api.apply(node)
    api.merge(node, {"status": {"capacity": room, "allocatable": room}}, subresource="status")
    api.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "node-of-claims"},
            "spec": {
                "driver": "tierline.io",
                "nodeName": "node-of-claims",
                "pool": {"name": "node-of-claims", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "cpu", "allowMultipleAllocations": True}],
            },
        }
    )
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "mine", "namespace": anything},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    claiming = pod(
        container(resources={"claims": [{"name": "mine"}]}),
        annotations={},
        resourceClaims=[{"name": "mine", "resourceClaimName": "mine"}],
        tolerations=[{"operator": "Exists"}],
        nodeSelector={"kubernetes.io/hostname": "node-of-claims"},
    )
    api.merge(node, {"metadata": {"labels": {"kubernetes.io/hostname": "node-of-claims"}}})
    api.create(copied(claiming, anything))

    waiting = api.wait(
        copied(claiming, anything),
        lambda found: "allocate" in str(found["status"].get("conditions")),
    )
    (condition,) = waiting["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert "cannot allocate all claims" in condition["message"]
    api.delete(node)


def test_the_server_finds_nothing_wrong_in_the_policies(opting_in: ControlPlane) -> None:
    kind = "ValidatingAdmissionPolicy"
    api_version = "admissionregistration.k8s.io/v1"
    stored = opting_in.api.list(api_version, kind)
    written = [one for one in policies() if one["kind"] == kind]
    names = [sorted(one["metadata"]["name"] for one in some) for some in (stored, written)]
    assert names[0] == names[1]
    for policy in stored:
        named = {"apiVersion": api_version, "kind": kind, "metadata": policy["metadata"]}
        checked = opting_in.api.wait(named, lambda found: "typeChecking" in found["status"])
        assert checked["status"]["typeChecking"] == {}
