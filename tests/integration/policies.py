"""The chart's admission policies, applied to a server and at work there.

An API server takes policies from watches, a moment after it stored them, and no status says
when. What this module relies on: a watch delivers objects in the order in which they were
stored, and a server rebuilds its rules from all that it has been told. So a canary that is
applied last, and answers, proves that every policy before it is at work, too. Validating and
mutating policies are watched apart: there is a canary of each. Its name is never used again, as
a deleted canary sings on for a moment.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import yaml

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY

POLICIES = REPOSITORY / "charts" / "tierline" / "files" / "admission.yaml"

GROUP = "admissionregistration.k8s.io/v1"
SUNG = "the canary sings"
SINGS = {
    "patchType": "ApplyConfiguration",
    "applyConfiguration": {
        "expression": f"Object{{metadata: Object.metadata{{annotations: {{'canary': '{SUNG}'}}}}}}"
    },
}


def policies() -> list[Manifest]:
    """Return what the chart installs for admission: DeviceClass, policies, bindings."""
    return list(yaml.safe_load_all(POLICIES.read_text()))


def apply_policies(plane: ControlPlane) -> None:
    """Apply the policies, and return when all of them are at work."""
    for manifest in policies():
        plane.api.apply(manifest)
    for kind, what, at_work in (
        ("Validating", {"validations": [{"expression": "false", "message": SUNG}]}, refuses),
        ("Mutating", {"mutations": [SINGS], "reinvocationPolicy": "Never"}, annotates),
    ):
        name = f"canary-{uuid.uuid4().hex}"
        last = canary(kind, name, what)
        for manifest in last:
            plane.api.apply(manifest)
        wait_until(
            f"the {kind.lower()} policies are not at work",
            partial(at_work, plane, name),
            plane.daemons,
        )
        for manifest in last:
            plane.api.delete(manifest)


def canary(kind: str, name: str, what: dict[str, Any]) -> list[Manifest]:
    """Return a policy that answers to the ConfigMap of its name, and the policy's binding."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        "resourceNames": [name],
    }
    policy = {
        "apiVersion": GROUP,
        "kind": f"{kind}AdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "failurePolicy": "Fail"} | what,
    }
    bound: dict[str, Any] = {"policyName": name}
    if kind == "Validating":
        bound["validationActions"] = ["Deny"]
    binding = policy | {"kind": f"{kind}AdmissionPolicyBinding", "spec": bound}
    return [policy, binding]


def provoked(plane: ControlPlane, name: str) -> Manifest:
    """Return what the server makes of the ConfigMap that a canary answers to."""
    metadata = {"name": name, "namespace": "default"}
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return plane.api.create(probe, dry_run=True)


def refuses(plane: ControlPlane, name: str) -> bool:
    """Tell whether the validating canary is at work."""
    try:
        provoked(plane, name)
    except ApiError as refusal:
        if SUNG in str(refusal):
            return True
        raise
    return False


def annotates(plane: ControlPlane, name: str) -> bool:
    """Tell whether the mutating canary is at work."""
    return "annotations" in provoked(plane, name)["metadata"]
