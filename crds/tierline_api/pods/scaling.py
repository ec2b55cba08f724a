"""The policy by which only a MemTask with a template is scaled.

Without a template somebody else makes its pods: `replicas` then says only how many places are kept
free for them, and the subresource `scale`, by which people and autoscalers ask for pods, would be
answered, and no pod made. The MemTasks of the namespace are the policy's parameters, as a request
for the subresource shows nothing of its object.
"""

from collections.abc import Iterator

from tierline_api.objects.pod import Manifest
from tierline_api.pods.policies import bound, named, requests
from tierline_api.schema.base import API_GROUP, API_VERSION, VERSION

_SCALES = (API_GROUP, VERSION, ("memtasks/scale",))


def manifests() -> Iterator[Manifest]:
    """Yield the policy and its binding."""
    name = "tierline-scaled"
    spec = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": API_VERSION, "kind": "MemTask"},
        "matchConstraints": requests((_SCALES,), ("UPDATE",)),
        "validations": [
            {
                "expression": "params.metadata.name != object.metadata.name"
                " || has(params.spec.template)"
                " || object.spec.?replicas.orValue(0) == oldObject.spec.?replicas.orValue(0)",
                "message": "the MemTask has no template, so that it makes no pods; scale what makes"
                " them (such as their Deployment), or write spec.template",
                "reason": "Invalid",
            }
        ],
    }
    binding = bound(name, "Deny")
    binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield binding
