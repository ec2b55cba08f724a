"""The policy about pods that run as root, which on the node is the agent's own user.

What protects the agent's files and processes from other users does not hold for them. A process
of that user can open ring slots, which it was lent for reading, again for writing. An administrator
who shares a domain among programs that do not trust each other has them run as other users, or in
user namespaces, and refuses the rest (the chart's value `rootPods`).
"""

from collections.abc import Iterator
from typing import Final

from tierline_api.objects.optin import TASK
from tierline_api.objects.pod import ALL_CONTAINERS_CEL, ANNOTATIONS_CEL, MEANT_CEL, Manifest
from tierline_api.pods.policies import bound, named, requests

_NAME: Final = "tierline-root"
_OF_POD: Final = "variables.spec.?securityContext"
_USER: Final = f"c.?securityContext.?runAsUser.orValue({_OF_POD}.?runAsUser.orValue(0))"
_NOT_ROOT: Final = (
    f"c.?securityContext.?runAsNonRoot.orValue({_OF_POD}.?runAsNonRoot.orValue(false))"
)


def manifests() -> Iterator[Manifest]:
    """Yield the policy, and a binding whose action the chart's value replaces."""
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests((("", "v1", ("pods",)),), ("CREATE",)),
        "matchConditions": [
            {
                "name": "opted-in",
                "expression": f"'{TASK}' in object.?metadata.?annotations.orValue({{}})",
            }
        ],
        "variables": [
            {"name": "metadata", "expression": "object.metadata"},
            {"name": "spec", "expression": "object.spec"},
            {"name": "annotations", "expression": ANNOTATIONS_CEL},
            {"name": "meant", "expression": MEANT_CEL},
        ],
        "validations": [
            {
                "expression": "!variables.spec.?hostUsers.orValue(true) || "
                f"{ALL_CONTAINERS_CEL}.all(c, !(c.name in variables.meant)"
                f" || {_NOT_ROOT} || {_USER} > 0)",
                "message": "a container may run as root, which is the node agent's own user and can"
                " write to weights that it should only read; set securityContext.runAsNonRoot or"
                " runAsUser, or hostUsers: false in the pod",
                "reason": "Forbidden",
            }
        ],
    }
    yield named("ValidatingAdmissionPolicy", _NAME, spec)
    yield bound(_NAME, "Warn")
