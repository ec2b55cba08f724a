"""The policy by which only users that may allocate claims note what the claims were granted.

A pod's owner may edit its claim, as a claim is an ordinary object of the namespace. The notes in it
are what the node's agent gives the pod memory and leases by, so they are the operator's alone; and
so is the label that says of which task it is, by which what it holds is counted. What
somebody notes before the allocation does no harm: the operator writes its own first.
"""

from collections.abc import Iterator
from typing import Final

from tierline_api.objects.optin import NODE_LABEL, ORDER, PLAN, STANDING, TASK, TERMS
from tierline_api.objects.pod import Manifest
from tierline_api.pods.policies import bound, named, requests

_CLAIMS: Final = ("resource.k8s.io", "v1", ("resourceclaims",))
_MAY_ALLOCATE: Final = (
    "authorizer.group('resource.k8s.io').resource('resourceclaims').subresource('binding')"
    ".namespace(object.metadata.namespace).check('update').allowed()"
)


def _changed(field: str, names: tuple[str, ...]) -> str:
    old, new = (f"{of}.metadata.?{field}[?n].orValue('')" for of in ("oldObject", "object"))
    listed = ", ".join(f"'{name}'" for name in names)
    return f"[{listed}].exists(n, {old} != {new})"


def manifests() -> Iterator[Manifest]:
    """Yield the policy and its binding."""
    name = "tierline-notes"
    notes = _changed("annotations", (PLAN, TERMS, STANDING, ORDER))
    # By the task's label the operator sees the claim at all: without it a pod would run unseen.
    labels = _changed("labels", (TASK, NODE_LABEL))
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests((_CLAIMS,), ("UPDATE",)),
        "matchConditions": [{"name": "noted", "expression": f"{notes} || {labels}"}],
        "validations": [
            {
                "expression": _MAY_ALLOCATE,
                "message": "what a claim was granted is noted in it by Tierline's operator alone;"
                " change the MemTask instead",
                "reason": "Forbidden",
            }
        ],
    }
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield bound(name, "Deny")
