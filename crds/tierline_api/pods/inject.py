"""Writes into manifests what the admission policy writes into pods.

For clusters whose API server has no such policy, and for people who want to see what becomes of
their pods. Manifests that hold no opted-in pod stay as they are.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Final

from tierline_api.objects.pod import Manifest, Pod, items, mapping
from tierline_api.pods.changes import CHANGES
from tierline_api.pods.refusals import first, warnings

TEMPLATES: Final = {
    "DaemonSet": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "Job": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where kinds have their pods' template."""


class RefusedError(ValueError):
    """A pod that opts in cannot work; the message says why and what to write."""


def injected(manifest: Manifest) -> Manifest:
    """Return `manifest` with its opted-in pods changed; raises RefusedError.

    A list of objects is changed item by item. What opts in and cannot work is refused with the
    sentence that the API server would say.
    """
    changed = deepcopy(manifest)
    for name, pod in _pods(changed):
        if pod.unquoted:
            raise RefusedError(
                f"{name}: the annotation {pod.unquoted[0]} is no text, as annotations are; put its "
                "value in quotes"
            )
        refusal = first(pod)
        if refusal is not None:
            raise RefusedError(f"{name}: {refusal.message}")
        if pod.opted_in:
            for change in CHANGES:
                change.apply(pod)
    return changed


def warned(manifest: Manifest) -> list[str]:
    """Return what the API server would warn of, for the opted-in pods of `manifest`."""
    return [f"{name}: {sentence}" for name, pod in _pods(manifest) for sentence in warnings(pod)]


def _pods(manifest: Manifest) -> Iterator[tuple[str, Pod]]:
    """Yield the pod or template in `manifest`, and those of its items, with a name for people."""
    kind = str(manifest.get("kind", ""))
    if kind.endswith("List"):
        for item in items(manifest.get("items")):
            yield from _pods(item)
        return
    found: Manifest | None = manifest if kind == "Pod" else None
    if kind in TEMPLATES:
        found = manifest
        for part in TEMPLATES[kind]:
            found = mapping(found.get(part))
    if found:
        yield f"{kind} {mapping(manifest.get('metadata')).get('name', '')}", Pod(found)
