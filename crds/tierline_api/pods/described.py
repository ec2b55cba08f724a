"""The policy by which a MemTask that annotations of pods describe is changed in these pods alone.

The operator makes such a MemTask, marks it by a label, and has it say what the annotations say.
What somebody else applied over it would not hold, and nobody be told: so it is refused, unless the
one who applies it takes the mark away. From then on the MemTask is theirs, and the operator says at
the pods which of their annotations do not hold. Nobody else marks one either.
"""

from collections.abc import Iterator
from typing import Final

from tierline_api.objects.optin import MADE_BY, MANAGER
from tierline_api.objects.pod import Manifest
from tierline_api.pods.operators import MARKED, TASKS, is_operator
from tierline_api.pods.policies import bound, named, requests

_APPLIED: Final = (
    "{}.metadata.?annotations[?'kubectl.kubernetes.io/last-applied-configuration'].orValue('')"
)


def manifests() -> Iterator[Manifest]:
    """Yield the policy and its binding."""
    name = "tierline-task-described"
    applied, before = (_APPLIED.format(of) for of in ("object", "oldObject"))
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests((TASKS,), ("CREATE", "UPDATE")),
        "matchConditions": [
            {"name": "marked", "expression": MARKED.format("object")},
            {"name": "others", "expression": f"!({is_operator()})"},
        ],
        "validations": [
            {
                # A kubectl that applies what is there already means to own it as well.
                "expression": f"oldObject != null && {MARKED.format('oldObject')}"
                f" && object.spec == oldObject.spec && {applied} == {before}",
                "message": f"the label {MADE_BY}: {MANAGER} says that annotations of pods describe"
                " this MemTask, which would win over what is written here; change these"
                f" annotations, or write another value into metadata.labels['{MADE_BY}']: then the"
                " MemTask holds, and the annotations do not",
                "reason": "Forbidden",
            }
        ],
    }
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield bound(name, "Deny")
