"""The policies by which the operator's token does no more than its work needs.

RBAC lets it patch every pod and write every Deployment and claim, as it cannot say less. These
rules do: a pod keeps all but its gate, a MemTask of others its spec, a Deployment or a claim
template is a MemTask's of its namespace and name, an allocation is of Tierline's devices.

Invariant: what the operator writes is its own before and after. It is by the reference to its
controller, or, where somebody took that away, by marks that nobody gives an object by chance: its
name is that of the task in its labels and, where these cannot be changed any more, in the selector
of a Deployment or in the labels of a template's claims; and nobody but a MemTask controls it.
`tierline_operator.controller.ownership` decides by the same.
"""

from collections.abc import Iterator
from typing import Final

from tierline_api.objects.optin import DRIVER, GATE, MADE_BY, MANAGER, TASK
from tierline_api.objects.pod import Manifest
from tierline_api.pods.policies import bound, named, requests
from tierline_api.schema.base import API_GROUP, VERSION

SERVICE_ACCOUNT: Final = "tierline-operator"
"""The operator's service account, in whatever namespace Tierline is installed."""
TASKS: Final = (API_GROUP, VERSION, ("memtasks",))
MARKED: Final = "{}.metadata.?labels[?'" + MADE_BY + f"'].orValue('') == '{MANAGER}'"
"""What is true of a MemTask that annotations of pods describe, before or after a change."""
_GATES: Final = "{}.spec.?schedulingGates.orValue([]).map(g, g.name)"
_OLD, _NEW = (_GATES.format(of) for of in ("oldObject", "object"))
_SAME: Final = "object.{0} == oldObject.{0}"
_OPTIONAL: Final = "object.{0}.orValue({1}) == oldObject.{0}.orValue({1})"
_KEPT: Final = " && ".join(
    [
        _SAME.format("spec.containers"),
        _OPTIONAL.format("spec.?initContainers", "[]"),
        _OPTIONAL.format("spec.?ephemeralContainers", "[]"),
        _OPTIONAL.format("spec.?nodeSelector", "{}"),
        _OPTIONAL.format("spec.?tolerations", "[]"),
        _OPTIONAL.format("spec.?activeDeadlineSeconds", "0"),
        "object.spec.?affinity == oldObject.spec.?affinity",
        _OPTIONAL.format("metadata.?labels", "{}"),
        _OPTIONAL.format("metadata.?annotations", "{}"),
        _OPTIONAL.format("metadata.?finalizers", "[]"),
        _OPTIONAL.format("metadata.?ownerReferences", "[]"),
    ]
)
_CONTROLLERS: Final = (
    "o.metadata.?ownerReferences.orValue([]).filter(r, r.?controller.orValue(false))"
)
_MEMTASK: Final = f"r.kind == 'MemTask' && r.apiVersion.startsWith('{API_GROUP}/')"
_OWNED: Final = f"{_CONTROLLERS}.exists(r, {_MEMTASK} && r.name == o.metadata.name)"
_LABELLED: Final = (
    f"o.metadata.?labels[?'{TASK}'].orValue('') == o.metadata.name"
    f" && o.metadata.?labels[?'{MADE_BY}'].orValue('') == '{MANAGER}'"
    f" && {_CONTROLLERS}.all(r, {_MEMTASK})"
)
_SELECTS: Final = (
    f"o.spec.selector.?matchLabels.orValue({{}}) == {{'{TASK}': o.metadata.name}}"
    " && o.spec.selector.?matchExpressions.orValue([]).size() == 0"
)
_CLAIMS: Final = f"o.spec.?metadata.?labels[?'{TASK}'].orValue('') == o.metadata.name"
_OPTS_IN: Final = (
    f"object.spec.template.metadata.?annotations[?'{TASK}'].orValue('') == object.metadata.name"
)
_SAME_PODS: Final = (
    "[oldObject].filter(o, o != null).exists(o, o.spec.template == object.spec.template)"
)


def is_operator() -> str:
    """What is true of the operator's requests."""
    return f"request.userInfo.username.matches('^system:serviceaccount:[^:]+:{SERVICE_ACCOUNT}$')"


def _own(mark: str) -> str:
    """What is true where an object of a task's name is the operator's before and after."""
    return (
        f"[object].all(o, {_OWNED}) && [oldObject].filter(o, o != null)"
        f".all(o, ({_OWNED}) || ({_LABELLED} && {mark}))"
    )


_RULES: Final = {
    "tasks": (
        TASKS,
        ("UPDATE",),
        f"{MARKED.format('oldObject')}"
        f" || object.spec == oldObject.spec && !({MARKED.format('object')})",
        "the operator writes the spec of MemTasks that it made of annotations only",
    ),
    "pods": (
        ("", "v1", ("pods",)),
        ("UPDATE",),
        f"{_OLD}.filter(g, !(g in {_NEW})).all(g, g == '{GATE}')"
        f" && {_NEW}.all(g, g in {_OLD}) && {_KEPT}",
        f"the operator takes the gate {GATE} from a pod, and changes nothing else of it",
    ),
    "deployments": (
        ("apps", "v1", ("deployments",)),
        ("CREATE", "UPDATE"),
        f"{_own(_SELECTS)} && ({_OPTS_IN} || {_SAME_PODS})",
        "the operator writes Deployments of MemTasks of their namespace and name only",
    ),
    "templates": (
        ("resource.k8s.io", "v1", ("resourceclaimtemplates",)),
        ("CREATE", "UPDATE"),
        _own(_CLAIMS),
        "the operator writes ResourceClaimTemplates of MemTasks of their namespace and name only",
    ),
    "allocations": (
        ("resource.k8s.io", "v1", ("resourceclaims/status",)),
        ("UPDATE",),
        "object.?status.?allocation.?devices.?results.orValue([]).all(r,"
        f" r.driver == '{DRIVER}')"
        " && oldObject.?status.?allocation.?devices.?results.orValue([]).all(r,"
        f" r.driver == '{DRIVER}')",
        f"the operator allocates devices of {DRIVER} only",
    ),
}
"""What it writes: resources, operations, what is true of its own work, and what to say."""


def manifests() -> Iterator[Manifest]:
    """Yield a policy and its binding for each kind of object."""
    for what, (resources, operations, expression, message) in _RULES.items():
        name = f"tierline-operator-{what}"
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": requests((resources,), operations),
            "matchConditions": [{"name": "operator", "expression": is_operator()}],
            "validations": [{"expression": expression, "message": message, "reason": "Forbidden"}],
        }
        yield named("ValidatingAdmissionPolicy", name, spec)
        yield bound(name, "Deny")
