"""Pods that opted in while no admission policy was in force, and run outside of Tierline.

Policies give a pod its label, gate and claim when it is made, and never afterwards: one that was
made between an uninstallation and the next installation has none, and nobody watches it. The
annotation cannot be selected by, so all pods are listed for it: their metadata, page by page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container

from tierline_api.objects.optin import TASK
from tierline_kube.client import Kube
from tierline_kube.errors import NotFound
from tierline_kube.resource import POD
from tierline_operator.cluster import resources
from tierline_operator.cluster.decode import KnownPod, pod_of


async def unseen(kube: Kube, but: Container[str] = ()) -> AsyncIterator[KnownPod]:
    """Yield pods that are annotated and have no label, so that the operator sees nothing of them.

    Those with a uid in `but` are left out. Raises KubeError.
    """
    for metadata in await kube.list_metadata(POD):
        annotated = TASK in (metadata.get("annotations") or {})
        if not annotated or TASK in (metadata.get("labels") or {}) or metadata["uid"] in but:
            continue
        try:
            yield pod_of(await kube.get(POD, metadata["namespace"], metadata["name"]))
        except NotFound:
            continue


async def outside(kube: Kube) -> list[KnownPod]:
    """All pods that opted in, have not ended, and have neither gate nor claim. Raises KubeError."""
    labelled = (await kube.list_all(resources.POD)).items
    found = [pod async for pod in unseen(kube)] + [pod_of(body) for body in labelled]
    return [pod for pod in found if pod.outside]
