"""The policy by which a node's agent writes only objects of its own node.

RBAC can allow an agent MemNodes, ResourceSlices and the status of claims, but only all of them. The
token of the agent's pod says on which node the pod runs (the API server puts that in), so that a
rule can hold the two against each other. A token that names no node writes nothing.

A MemProfile says which node's agent made it, and is of a device of that node (its MemNode is the
policy's parameter); an event says so, too, and comes from no other controller.
"""

from collections.abc import Iterator
from typing import Any, Final

from tierline_api.objects.optin import DRIVER, NODE_LABEL
from tierline_api.objects.pod import Manifest
from tierline_api.pods.policies import bound, named, requests
from tierline_api.schema.base import API_GROUP, API_VERSION, VERSION

SERVICE_ACCOUNT: Final = "tierline-agent"
"""The agents' service account, in whatever namespace Tierline is installed."""
_NODE: Final = "authentication.kubernetes.io/node-name"
_BEFORE_AND_AFTER: Final = "[object, oldObject].filter(o, o != null)"
_LONGEST_INSTANCE: Final = 128
"""Bytes of an event's reporting instance, as the API server has them."""
_NAMES_NODE: Final = f"o.metadata.?annotations[?'{NODE_LABEL}'].orValue('') == variables.node"
_NAMED: Final = ("variables.node != ''", "the agent's token names no node; use its pod's own")
_RULES: Final = {
    "nodes": (
        (API_GROUP, VERSION, ("memnodes", "memnodes/status")),
        f"{_BEFORE_AND_AFTER}.all(o, o.metadata.name == variables.node)",
        "an agent writes the MemNode of its own node only",
    ),
    "slices": (
        ("resource.k8s.io", "v1", ("resourceslices",)),
        f"{_BEFORE_AND_AFTER}.all(o, o.spec.?nodeName.orValue('') == variables.node"
        f" && o.spec.driver == '{DRIVER}' && o.spec.pool.name == variables.node"
        f" && o.metadata.name == variables.node + '-{DRIVER}')",
        f"an agent writes ResourceSlices of the driver {DRIVER} and of its own node only",
    ),
    "claims": (
        ("resource.k8s.io", "v1", ("resourceclaims", "resourceclaims/status")),
        f"request.subResource == 'status' && {_BEFORE_AND_AFTER}.all(o,"
        " o.?status.?allocation.?devices.?results.orValue([]).exists(r,"
        f" r.driver == '{DRIVER}' && r.pool == variables.node))",
        f"an agent writes the status of claims that have a device of {DRIVER} on its own node only",
    ),
    "events": (
        ("events.k8s.io", "v1", ("events",)),
        f"{_BEFORE_AND_AFTER}.all(o, o.?reportingController.orValue('') == '{DRIVER}/agent'"
        " && o.?reportingInstance.orValue('') == variables.node.substring(0,"
        f" size(variables.node) < {_LONGEST_INSTANCE} ? size(variables.node)"
        f" : {_LONGEST_INSTANCE})"
        " && (o.regarding.kind in ['ResourceClaim', 'Pod']"
        " || o.regarding.kind == 'MemNode' && o.regarding.?name.orValue('') == variables.node))",
        "an agent writes events of its own node, about it, claims and pods only",
    ),
    "profiles": (
        (API_GROUP, VERSION, ("memprofiles",)),
        f"{_BEFORE_AND_AFTER}.all(o, {_NAMES_NODE})",
        "an agent writes MemProfiles that name its own node only",
    ),
    "devices": (
        (API_GROUP, VERSION, ("memprofiles",)),
        # What names another node is refused by the rule before, and by that alone: the server tells
        # of whichever of several refusals it comes to first.
        f"params.metadata.name != variables.node || {_BEFORE_AND_AFTER}.all(o,"
        f" !({_NAMES_NODE}) || params.?status.?devices.orValue([])"
        ".exists(d, d.kind == o.spec.device.kind && d.product == o.spec.device.product))",
        "an agent writes MemProfiles of a device of its own node only",
    ),
}
"""What an agent writes: the resources, an expression that is true of its own, and what to say."""
_PARAMETERS: Final = {"devices": {"apiVersion": API_VERSION, "kind": "MemNode"}}
"""What a rule looks at in addition: each object of a kind. Where there is none the rule must allow:
the API server looks for them before it asks whether the request is an agent's."""


def manifests() -> Iterator[Manifest]:
    """Yield a policy and its binding for each kind of object that agents write."""
    account = f"^system:serviceaccount:[^:]+:{SERVICE_ACCOUNT}$"
    for what, (resources, expression, message) in _RULES.items():
        name = f"tierline-agents-{what}"
        spec: dict[str, Any] = {
            "failurePolicy": "Fail",
            "matchConstraints": requests((resources,), ("CREATE", "UPDATE", "DELETE")),
            "matchConditions": [
                {"name": "agent", "expression": f"request.userInfo.username.matches('{account}')"}
            ],
            "variables": [
                {
                    "name": "node",
                    "expression": f"request.userInfo.?extra[?'{_NODE}'].orValue([]).join('')",
                }
            ],
            "validations": [
                {"expression": rule, "message": sentence, "reason": "Forbidden"}
                for rule, sentence in (_NAMED, (expression, message))
            ],
        }
        binding = bound(name, "Deny")
        if what in _PARAMETERS:
            spec["paramKind"] = _PARAMETERS[what]
            binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
        yield named("ValidatingAdmissionPolicy", name, spec)
        yield binding
