"""Whose an object is that has the name of a task: Tierline's, or somebody else's. Pure.

Invariant: what the operator made for a task is the task's, whatever others do to its metadata, and
what others made never becomes it. It was made by the operator where its controller is a MemTask of
its name; or where it bears all marks of that and nothing but a MemTask controls it: the labels, and
what nobody can change afterwards (the selector of a Deployment, the labels that a template gives to
claims). The API server's policies have the same rule (tierline_api.pods.operators), so that the
operator's token can do no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tierline_api.objects.optin import TASK
from tierline_api.schema.base import API_GROUP
from tierline_kube.resource import Json, Resource
from tierline_operator.cluster.decode import KnownPart, Meta
from tierline_operator.cluster.resources import DEPLOYMENT
from tierline_operator.controller.manifests import MANAGED_BY, owned_by, says

_SELECTS: Final = {"matchLabels", "matchExpressions"}


def is_made(kind: Resource, there: KnownPart) -> bool:
    """Whether the operator made an object, for the task of its name."""
    owner = there.meta.owner
    if owner is not None and not _is_memtask(owner):
        return False
    if owner is not None and owner["name"] == there.meta.name:
        return True
    return _marks(there.meta).items() <= there.meta.labels.items() and _is_for(kind, there)


def mend(there: KnownPart, task: Meta) -> Json | None:
    """The patch by which an object that the operator made is a task's; None if it is.

    It is fenced by the object's resourceVersion, and strategic: other owners and labels stay, but
    for another controller.
    """
    [reference] = owned_by(task)
    owner = there.meta.owner
    marked = _marks(there.meta).items() <= there.meta.labels.items()
    if marked and says(owner, reference):
        return None
    references = [reference]
    if owner is not None and owner["uid"] != task.uid:
        references.append({"$patch": "delete", "uid": owner["uid"]})
    return {
        "metadata": {
            "resourceVersion": there.meta.version,
            "labels": _marks(there.meta),
            "ownerReferences": references,
        }
    }


def found(kind: Resource, there: KnownPart, task: Meta) -> str:
    """The sentence on what is mended, and how it was found."""
    owner = there.meta.owner
    named = f"{kind.kind}/{there.meta.name}"
    if owner is None:
        was = "had lost its owner"
    elif owner["uid"] != task.uid:
        of_name = " of an earlier time" if owner["name"] == task.name else ""
        was = f"had {owner['kind']}/{owner['name']}{of_name} as its owner"
    else:
        was = "had lost labels, or parts of the reference to its owner"
    return f"{named} {was}, and is this MemTask's again: it goes when this MemTask is deleted"


def taken(kind: Resource, there: KnownPart) -> str:
    """The sentence on an object that is somebody else's, and on what to do."""
    owner = there.meta.owner
    marks = ", ".join(f"{name}={value}" for name, value in _marks(there.meta).items())
    of = (
        f"its owner is {owner['kind']}/{owner['name']}"
        if owner is not None
        else f"it has no owner, and not the marks of what Tierline makes ({marks})"
    )
    also = "" if kind == DEPLOYMENT else ", and delete the pods that were made meanwhile"
    return (
        f"{kind.kind}/{there.meta.name} exists and is not Tierline's: {of}; delete it, or give it "
        f"or the MemTask another name{also}"
    )


def _is_memtask(owner: Mapping[str, Any]) -> bool:
    group, _, _ = str(owner["apiVersion"]).partition("/")
    return owner["kind"] == "MemTask" and group == API_GROUP


def _marks(meta: Meta) -> dict[str, str]:
    return {TASK: meta.name, **MANAGED_BY}


def _is_for(kind: Resource, there: KnownPart) -> bool:
    """Whether what cannot be changed of it names its own task, and nothing else."""
    wanted = {TASK: there.meta.name}
    if kind == DEPLOYMENT:
        selector = there.spec.get("selector") or {}
        return {name: selector[name] for name in _SELECTS & selector.keys()} == {
            "matchLabels": wanted
        }
    labels = (there.spec.get("metadata") or {}).get("labels") or {}
    return wanted.items() <= labels.items()
