"""The admission policies of pods, and the DeviceClass.

All of it is evaluated inside the API server: nothing of Tierline need run. Policies look only at
what carries an annotation of tierline.io; everything else passes at the cost of one look.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tierline_api.objects.optin import DRIVER, TASK
from tierline_api.objects.pod import ANNOTATIONS_CEL, MEANT_CEL, Manifest
from tierline_api.pods.changes import CHANGES
from tierline_api.pods.inject import TEMPLATES
from tierline_api.pods.refusals import REFUSALS, WARNINGS
from tierline_api.schema.fields import is_label

API: Final = "admissionregistration.k8s.io/v1"
_WORKLOADS: Final = (
    ("apps", "v1", ("deployments", "statefulsets", "daemonsets", "replicasets")),
    ("batch", "v1", ("jobs",)),
    ("", "v1", ("replicationcontrollers",)),
)
_NAMED: Final = re.compile(r"\bvariables\.([a-z]+)")
_CRON_JOBS: Final = (("batch", "v1", ("cronjobs",)),)


def manifests() -> Iterator[Manifest]:
    """Yield every object."""
    yield _device_class()
    yield from _mutating()
    yield from _validating("tierline-pods", (("", "v1", ("pods",)),), "object", ("CREATE",))
    of_workload, of_cron_job = (
        ".".join(("object", *TEMPLATES[kind])) for kind in ("Deployment", "CronJob")
    )
    changes = ("CREATE", "UPDATE")
    yield from _validating("tierline-workloads", _WORKLOADS, of_workload, changes)
    yield from _validating("tierline-cronjobs", _CRON_JOBS, of_cron_job, changes)
    yield from _fixed_task()
    yield from _misplaced()


def named(kind: str, name: str, spec: dict[str, Any]) -> Manifest:
    """Return an object of the admission API."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def bound(name: str, *actions: str) -> Manifest:
    """Return the binding of the ValidatingAdmissionPolicy `name`."""
    spec = {"policyName": name, "validationActions": list(actions)}
    return named("ValidatingAdmissionPolicyBinding", name, spec)


def requests(
    resources: tuple[tuple[str, str, tuple[str, ...]], ...], operations: tuple[str, ...]
) -> dict[str, Any]:
    """Return the constraint that matches requests for `resources`: (group, version, names)."""
    return {
        "resourceRules": [
            {
                "apiGroups": [group],
                "apiVersions": [version],
                "operations": list(operations),
                "resources": list(names),
            }
            for group, version, names in resources
        ]
    }


def _annotations(of: str) -> str:
    """Return CEL: the annotations of what lies at `of`, none if it is not there.

    This is asked of every pod and workload of the cluster, so that it must not fail on any.
    """
    return f"{of.replace('.', '.?')}.?metadata.?annotations.orValue({{}})"


def _device_class() -> Manifest:
    """Return the DeviceClass: no device matches, so that only the operator ever allocates one."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": "false"}}]},
    }


def _variables(of: str) -> list[Manifest]:
    """Return what the rules' expressions name, of the pod or template `of`."""
    return [
        {"name": "metadata", "expression": f"{of}.metadata"},
        {"name": "spec", "expression": f"{of}.spec"},
        {"name": "annotations", "expression": ANNOTATIONS_CEL},
        {"name": "meant", "expression": MEANT_CEL},
    ]


def _mutating() -> Iterator[Manifest]:
    opted_in = f"'{TASK}' in {_annotations('object')}"
    # Patches may not mix types, and what an object holds has none until it is said.
    task = {"name": "task", "expression": f"string(object.metadata.annotations['{TASK}'])"}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": requests((("", "v1", ("pods",)),), ("CREATE",)),
        "matchConditions": [
            {"name": "opted-in", "expression": opted_in},
            # Of what is no name the server would complain where it is written; its rule says more.
            {
                "name": "names-a-task",
                "expression": is_label(f"object.metadata.annotations['{TASK}']"),
            },
        ],
        "variables": [*_variables("object"), task],
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": change.cel}}
            for change in CHANGES
        ],
    }
    yield named("MutatingAdmissionPolicy", "tierline", spec)
    yield named("MutatingAdmissionPolicyBinding", "tierline", {"policyName": "tierline"})


def _validating(
    name: str,
    resources: tuple[tuple[str, str, tuple[str, ...]], ...],
    of: str,
    operations: tuple[str, ...],
) -> Iterator[Manifest]:
    """Yield the policies of all refusals and warnings, for pods that lie at `of`."""
    carries = f"{_annotations(of)}.exists(k, k.startsWith('tierline.io/'))"
    changes = "UPDATE" in operations
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests(resources, operations),
        "matchConditions": [{"name": "opted-in", "expression": carries}],
        "variables": [*_variables(of), *(_before(of) if changes else ())],
    }
    for called, rules, action in ((name, REFUSALS, "Deny"), (f"{name}-hints", WARNINGS, "Warn")):
        validations = [
            {
                "expression": _newly(rule.cel) if changes else rule.cel,
                "message": rule.message,
                "reason": "Invalid",
            }
            for rule in rules
        ]
        yield named("ValidatingAdmissionPolicy", called, {**spec, "validations": validations})
        yield bound(called, action)


def _before(of: str) -> list[Manifest]:
    """Return what the rules name of the template as it was, and whether it means the same."""
    were = [
        {"name": _earlier(one["name"]), "expression": _as_it_was(one["expression"])}
        for one in _variables(of.replace("object", "oldObject", 1))
    ]
    now, then = "variables.annotations", f"variables.{_earlier('annotations')}"
    foreign = "!k.startsWith('tierline.io/')"
    same = (
        f"request.operation == 'UPDATE'"
        f" && {now}.all(k, {foreign} || (k in {then} && {then}[k] == {now}[k]))"
        f" && {then}.all(k, {foreign} || k in {now})"
    )
    return [*were, {"name": "kept", "expression": same}]


def _newly(cel: str) -> str:
    """Return CEL: the rule holds, or it did not hold before and no annotation of it has changed.

    What was stored before a release brought the rule stays as it is: whatever else is changed, such
    as the number of pods or an image, is not refused for it.
    """
    was = _as_it_was(cel)
    only_annotations = set(_NAMED.findall(cel)) == {"annotations"}
    return (
        f"variables.kept || ({cel})"
        if only_annotations
        else (f"({cel}) || (variables.kept && !({was}))")
    )


def _as_it_was(cel: str) -> str:
    """Return `cel` about the template before the change."""
    return _NAMED.sub(lambda name: f"variables.{_earlier(name[1])}", cel)


def _earlier(name: str) -> str:
    return f"old{name.capitalize()}"


def _fixed_task() -> Iterator[Manifest]:
    """Yield the policy by which a pod keeps the task that it was made with.

    The label says it to the operator: a pod without it would run unseen.
    """
    name = "tierline-pod-task"
    old, new = (f"{_annotations(of)}[?'{TASK}'].orValue('')" for of in ("oldObject", "object"))
    label = "{}.metadata.?labels[?'" + TASK + "'].orValue('')"
    before, now = label.format("oldObject"), label.format("object")
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": requests((("", "v1", ("pods",)),), ("UPDATE",)),
        "validations": [
            {
                "expression": f"{old} == {new}",
                "message": f"the annotation {TASK} is read when a pod is made; change the template"
                " of its Deployment, or delete the pod and make it again",
                "reason": "Invalid",
            },
            {
                "expression": f"{old} == '' || {before} == '' || {before} == {now}",
                "message": f"by the label {TASK} Tierline's operator sees the pod; leave it as it"
                " is while the pod runs, or delete the pod",
                "reason": "Invalid",
            },
        ],
    }
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield bound(name, "Deny")


def _misplaced() -> Iterator[Manifest]:
    """Yield the policy that warns of the annotation on a workload instead of on its pods."""
    name = "tierline-misplaced"
    template = ".".join(("object", *TEMPLATES["Deployment"]))
    own, pods = (_annotations(of) for of in ("object", template))
    spec = {
        "failurePolicy": "Ignore",
        "matchConstraints": requests(_WORKLOADS, ("CREATE", "UPDATE")),
        "validations": [
            {
                "expression": f"!('{TASK}' in {own}) || '{TASK}' in {pods}",
                "message": f"the annotation {TASK} is on the workload, where it does nothing; write"
                " it into the pods' template: spec.template.metadata.annotations",
            }
        ],
    }
    yield named("ValidatingAdmissionPolicy", name, spec)
    yield bound(name, "Warn")
