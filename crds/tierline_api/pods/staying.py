"""The policy by which a MemTask stays until its pods have ended, whoever wants it gone.

A MemTask says what its pods may take. While a pod of it holds a claim the operator keeps it by a
finalizer; without it nobody could say what that claim takes. Who may edit a namespace may write the
metadata of its MemTasks, so the finalizer is the operator's alone to take away; an administrator
may as well (`update` of memtasks/finalizers).
"""

from collections.abc import Iterator
from typing import Final

from tierline_api.objects.optin import FINALIZER
from tierline_api.objects.pod import Manifest
from tierline_api.pods.operators import TASKS
from tierline_api.pods.policies import bound, named, requests
from tierline_api.schema.base import API_GROUP

_KEPT: Final = "'{0}' in {1}.metadata.?finalizers.orValue([])"
_MAY_FINALIZE: Final = (
    f"authorizer.group('{API_GROUP}').resource('memtasks').subresource('finalizers')"
    ".namespace(object.metadata.namespace).check('update').allowed()"
)


def manifests() -> Iterator[Manifest]:
    """Yield the policy and its binding."""
    name = "tierline-task-stays"
    before, now = (_KEPT.format(FINALIZER, of) for of in ("oldObject", "object"))
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests((TASKS,), ("UPDATE",)),
        "matchConditions": [{"name": "released", "expression": f"{before} && !({now})"}],
        "validations": [
            {
                "expression": _MAY_FINALIZE,
                "message": f"the finalizer {FINALIZER} keeps a MemTask until its pods have ended,"
                " and Tierline's operator removes it then; leave it in metadata.finalizers, and"
                " delete the pods",
                "reason": "Forbidden",
            }
        ],
    }
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield bound(name, "Deny")
