"""Inline annotations: a pod that brings its own MemTask along. Pure.

`tierline.io/task` names it; `tierline.io/period` and the others (tierline_api.objects.optin.INLINE)
say what stands in its spec. Pods of one Deployment say the same; the newest pod is believed.

Invariant: a MemTask says what annotations say as long as it bears the operator's mark, and what
people wrote otherwise. The mark is given when it is made, and never again; the API server's
policies (tierline_api.pods.described, operators) let nobody else write the spec of one with it, and
the operator that of no other. Who takes the mark away has the MemTask for their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from tierline_api.manifests.mistakes import first_mistake
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.optin import INLINE, TASK
from tierline_api.pods.inline_rules import spec_of
from tierline_api.pods.refusals import missing
from tierline_api.schema.base import API_VERSION
from tierline_kube.resource import Json
from tierline_operator.cluster.decode import KnownPod, Meta, meta_of
from tierline_operator.controller.manifests import MANAGED_BY

_FIELD_OF = {".".join(("spec", *path)): name for name, path in INLINE.items()}


class InlineError(ValueError):
    """The annotations make no MemTask; the sentence names the annotation and the fix."""


def memtask_of(pod: KnownPod, owners: Iterable[Mapping[str, Any]]) -> Json:
    """The MemTask that the pod's annotations mean, owned by `owners`; raises InlineError.

    It goes when the last of them has gone. An object has one controller at most, and it has none;
    nor does it keep an owner from going, whose kind may be any: to write that takes the right to
    set the owner's finalizers where OwnerReferencesPermissionEnforcement is on.
    """
    if lacks := missing(pod.inline):
        raise InlineError(
            f"the annotation {lacks[0]} is missing; with {next(iter(pod.inline))} it is needed"
        )
    manifest: Json = {
        "apiVersion": API_VERSION,
        "kind": "MemTask",
        "metadata": {
            "name": pod.task,
            "namespace": pod.meta.namespace,
            "labels": dict(MANAGED_BY),
            "ownerReferences": [_reference(owner) for owner in owners],
        },
        "spec": {"replicas": 1, **spec_of(pod.inline)},
    }
    try:
        MemTask.from_api(manifest)
    except ValidationError as error:
        mistake = first_mistake(MemTask, error)
        where = TASK if mistake.field == "metadata.name" else _annotation(mistake.field)
        raise InlineError(f"the annotation {where}: {mistake.problem}") from error
    return manifest


def is_described(task: Meta) -> bool:
    """Whether annotations of pods say what the task is."""
    return MANAGED_BY.items() <= task.labels.items()


def is_taken_over(task: Meta) -> bool:
    """Whether people took the task over, and it still has owners that the operator gave it."""
    lent = task.owners & task.lent
    return bool(lent) and not is_described(task) and not task.leaving


def without_lent(body: Json) -> Json:
    """The patch by which a task keeps only owners of others; fenced by its resourceVersion."""
    metadata, lent = body["metadata"], meta_of(body).lent
    left = [one for one in metadata["ownerReferences"] if one["uid"] not in lent]
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "uid": metadata["uid"],
            "ownerReferences": left or None,
        }
    }


def _reference(owner: Mapping[str, Any]) -> Json:
    named = {part: owner[part] for part in ("apiVersion", "kind", "name", "uid")}
    return {**named, "controller": False}


def contradicted(pod: KnownPod, task: MemTask) -> list[str]:
    """Clauses on annotations of a pod that say otherwise than the task that it names, which holds.

    That is one which somebody applied: of one that was made from annotations the newest are right.
    """
    try:
        says = MemTask.from_api(memtask_of(pod, ())).spec.to_api()
    except InlineError as error:
        return [str(error)]
    has = task.spec.to_api()
    return [
        f"{name} says {pod.inline[name]}, the task {_shown(_at(has, path))}"
        for name, path in INLINE.items()
        if name in pod.inline and _at(says, path) != _at(has, path)
    ]


def _at(spec: Any, path: Iterable[str]) -> Any:
    """A field of a spec; None if it is not there."""
    for part in path:
        spec = spec.get(part) if isinstance(spec, Mapping) else None
    return spec


def _shown(value: Any) -> str:
    """A field as its annotation writes it."""
    if value is None or isinstance(value, Mapping):
        return "nothing" if value is None else "true"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _annotation(field: str) -> str:
    """The annotation from which a field of the spec comes."""
    known = (name for path, name in _FIELD_OF.items() if field.startswith(path))
    return next(known, field)
