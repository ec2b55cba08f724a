"""The MemTask that pods bring along in their annotations (inline.py): made, kept up, given away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.optin import INLINE_NEEDED
from tierline_kube.client import Kube
from tierline_kube.errors import Ending, NotFound, Refused
from tierline_kube.resource import MEMTASK, REPLICASET, Json
from tierline_operator.cluster.decode import KnownPod, meta_of
from tierline_operator.cluster.resources import POD
from tierline_operator.cluster.state import View
from tierline_operator.controller.applying import Applying
from tierline_operator.controller.inline import (
    InlineError,
    contradicted,
    is_described,
    is_taken_over,
    memtask_of,
    without_lent,
)
from tierline_operator.controller.writer import Later, Stale
from tierline_operator.placement.books.seats import TaskKey

_MOST_OWNERS: Final = 64
_REMEMBERED: Final = 10_000


class Brought:
    """Has the MemTask of a name be what its newest pod says, as long as it is not a person's."""

    def __init__(self, kube: Kube, view: View, applying: Applying) -> None:
        self._kube = kube
        self._view = view
        self._applying = applying
        self._telling, self._hindrances = applying.telling, applying.hindrances
        self._above: dict[str, Json] = {}
        """Of ReplicaSets, by uid: what owns them."""

    async def bring(self, key: TaskKey) -> None:
        """A pod that brings its own MemTask along gets it; one whose task is missing is told so."""
        await self._keep_applied(key)
        pods = [pod for pod in self._view.pods_of(key) if not pod.meta.leaving]
        if not pods:
            self._hindrances.over(key, MEMTASK.kind)
            return
        # Before anything is made of annotations: a MemTask applied with its pods comes first.
        there = key in self._view.tasks or await self._is_there(key)
        known = self._view.tasks.get(key)
        if there and known is None:  # it cannot be read, and is left alone
            return
        newest = max(pods, key=lambda pod: (pod.meta.created, pod.meta.name))
        if not there and not newest.inline:
            await self._telling.once(
                key,
                POD,
                newest.meta,
                "MemTaskMissing",
                f"there is no MemTask/{key.name} in namespace {key.namespace}; create it, or "
                f"annotate the pod with {', '.join(INLINE_NEEDED)}",
            )
        applied = known is not None and not is_described(known[1])
        if known is not None and applied and newest.inline:
            await self._tell_contradicted(key, newest, known[0])
        if not newest.inline or applied:
            self._hindrances.over(key, MEMTASK.kind)
            return
        if known is not None and known[1].leaving:
            return
        owners = await self._owners(pods)
        try:
            wanted = memtask_of(newest, owners.values())
        except InlineError as error:
            await self._telling.once(key, POD, newest.meta, "AnnotationInvalid", str(error))
            self._hindrances.note(key, MEMTASK.kind, f"pod {newest.meta.name}: {error}")
            return
        if (
            known is None
            or not owners.keys() <= known[1].owners
            or known[0].spec != MemTask.from_api(wanted).spec
        ):
            if known is not None:  # somebody may make it theirs meanwhile
                wanted["metadata"]["resourceVersion"] = known[1].version
            fix = "correct the pod's annotations, or what forbids it (a quota, a policy)"
            await self._applying.apply(
                MEMTASK, wanted, POD, newest.meta, key, fix, str(newest.inline)
            )
        self._hindrances.over(key, MEMTASK.kind)

    async def _keep_applied(self, key: TaskKey) -> None:
        """A task that people took over from annotations stays when the makers of its pods go."""
        known = self._view.tasks.get(key)
        if known is None or not is_taken_over(known[1]):
            return
        try:
            body = await self._kube.get(MEMTASK, key.namespace, key.name)
        except NotFound as error:
            raise Stale(MEMTASK, key) from error
        if not is_taken_over(meta_of(body)):
            raise Stale(MEMTASK, key)
        try:
            await self._applying.writes.patch(MEMTASK, key, without_lent(body))
        except Ending:
            raise
        except Refused as error:  # no reason for its pods to wait
            refused = (
                f"MemTask/{key.name} was taken over, and would still go with the makers of its "
                "pods, as the API server refuses that its owners are taken out: take them out of "
                f"metadata.ownerReferences. The API server says: {error.message}"
            )
            await self._telling.once(key, MEMTASK, known[1], "OwnersRefused", refused)
            raise Later(str(error)) from error
        await self._telling.once(
            *(key, MEMTASK, known[1], "TakenOver"),
            f"MemTask/{key.name} was made of annotations of pods, and was taken over: it holds as "
            "it is written, and stays when its pods and what makes them are deleted",
            normal=True,
        )

    async def _tell_contradicted(self, key: TaskKey, pod: KnownPod, task: MemTask) -> None:
        """A pod runs by the terms of the task that it names: tell it where it says otherwise."""
        said = contradicted(pod, task)
        if said:
            await self._telling.once(
                *(key, POD, pod.meta, "AnnotationsIgnored"),
                f"MemTask/{key.name} was applied by itself, and its own terms hold: "
                f"{'; '.join(said)}; remove these annotations from the pod, or change the MemTask",
            )

    async def _is_there(self, key: TaskKey) -> bool:
        """Whether a task exists that no watch has shown yet."""
        try:
            self._view.take(MEMTASK, await self._kube.get(MEMTASK, key.namespace, key.name))
        except NotFound:
            return False
        return True

    async def _owners(self, pods: Iterable[KnownPod]) -> dict[str, Json]:
        """The makers of these pods, by uid: of the newest pods, if they are of many."""
        owners: dict[str, Json] = {}
        newest = sorted(pods, key=lambda pod: (pod.meta.created, pod.meta.name), reverse=True)
        for pod in newest:
            owner = await self._owner(pod)
            owners[owner["uid"]] = owner
            if len(owners) == _MOST_OWNERS:
                break
        return owners

    async def _owner(self, pod: KnownPod) -> Json:
        """The maker of the pods: the Deployment of a ReplicaSet, else the controller, else it."""
        owner = pod.meta.owner
        if owner is None:
            return POD.reference({"name": pod.meta.name, "uid": pod.meta.uid})
        if owner["kind"] != "ReplicaSet":
            return dict(owner)
        if owner["uid"] not in self._above:
            try:
                above = await self._kube.get(REPLICASET, pod.meta.namespace, owner["name"])
            except NotFound:
                return dict(owner)
            references = above["metadata"].get("ownerReferences") or ()
            if len(self._above) >= _REMEMBERED:
                self._above.clear()
            top = next((o for o in references if o.get("controller")), owner)
            self._above[owner["uid"]] = dict(top)
        return dict(self._above[owner["uid"]])
