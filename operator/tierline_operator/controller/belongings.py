"""The claim template and the Deployment of a task: they have its name, and are what it says.

Invariant: what the operator made for a task belongs to it and says what it says, whatever others
change of it, for as long as the task is there; it goes with the task. What others made is left
alone, and the task says so for as long as that stands in its way (ownership.py).
"""

from __future__ import annotations

from tierline_api.objects.memtask import MemTask
from tierline_kube.client import STRATEGIC, Kube
from tierline_kube.errors import Conflict, NotFound, Refused
from tierline_kube.resource import MEMTASK, Json, Resource
from tierline_operator.cluster.decode import KnownPart, Meta, part_of
from tierline_operator.cluster.resources import DEPLOYMENT, TEMPLATE
from tierline_operator.cluster.state import View
from tierline_operator.controller.applying import Applying
from tierline_operator.controller.manifests import claim_template, deployment, says
from tierline_operator.controller.ownership import found, is_made, mend, taken
from tierline_operator.controller.writer import Later, Stale
from tierline_operator.placement.books.seats import TaskKey

GENERATION = "tierline.io/generation"
"""Annotation of a Deployment: by which MemTask, and which of its specs, it was applied."""


class Belongings:
    """Makes them, has them as they should be, and takes them away."""

    def __init__(self, kube: Kube, view: View, applying: Applying) -> None:
        self._kube = kube
        self._view = view
        self._applying = applying
        self._applied: dict[TaskKey, tuple[str, int]] = {}
        """Of each Deployment, by which spec it was applied, and which generation that made."""

    async def bring(self, key: TaskKey) -> None:
        """Have the objects of a task as it asks for them."""
        known = self._view.tasks.get(key)
        if known is None:
            return
        task, meta = known
        hindrances = self._applying.hindrances
        if meta.leaving:
            hindrances.forget(key)
            template = self._view.templates.get(key)
            if template is not None and is_made(TEMPLATE, template):
                await self._own(TEMPLATE, template, key, meta)
            await self._empty(key, meta)
            return
        await self._template(key, meta)
        hindrances.over(key, TEMPLATE.kind)
        if task.spec.template is not None:
            await self._deploy(key, task, meta)
        else:
            await self._empty(key, meta)
        hindrances.over(key, DEPLOYMENT.kind)

    def forget(self, key: TaskKey) -> None:
        """The task is gone."""
        self._applied.pop(key, None)

    async def _template(self, key: TaskKey, meta: Meta) -> None:
        there = self._view.templates.get(key)
        if there is None:
            try:
                await self._applying.writes.create(TEMPLATE, claim_template(meta))
            except Conflict as error:
                there = await self._look(TEMPLATE, key)
                if there is None:
                    raise Stale(TEMPLATE, key) from error
            else:
                return
        if not is_made(TEMPLATE, there):
            sentence = await self._tell_taken(TEMPLATE, there, key, meta)
            raise Refused(f"have {TEMPLATE.kind}/{key.name}", 409, "NameTaken", sentence)
        await self._own(TEMPLATE, there, key, meta)

    async def _deploy(self, key: TaskKey, task: MemTask, meta: Meta) -> None:
        there = self._view.deployments.get(key) or await self._look(DEPLOYMENT, key)
        if there is not None:
            if not is_made(DEPLOYMENT, there):
                raise Later(await self._tell_taken(DEPLOYMENT, there, key, meta))
            await self._own(DEPLOYMENT, there, key, meta)
        generation = f"{meta.uid}/{task.metadata.generation}"
        made = self._view.deployments.get(key)
        manifest = deployment(task, meta)
        manifest["metadata"]["annotations"] = {GENERATION: generation}
        if made is not None and made.meta.annotations.get(GENERATION) == generation:
            if self._applied.get(key) == (generation, made.generation):
                return
            if not says(made.spec, manifest["spec"]):
                await self._put_back(key, meta, manifest)
            self._note_applied(key, generation)
            return
        await self._apply(key, manifest, meta)
        self._note_applied(key, generation)

    async def _put_back(self, key: TaskKey, meta: Meta, manifest: Json) -> None:
        """Somebody changed the Deployment: what its MemTask says holds.

        Fields of which the MemTask says nothing stay as they are; they are no reason to apply it
        again and again.
        """
        await self._apply(key, manifest, meta)
        await self._applying.telling.series(
            *(key, MEMTASK, meta, "DeploymentPutBack"),
            f"Deployment/{key.name} was changed, and is as this MemTask says again; change the "
            "MemTask, or scale it (kubectl scale memtask, an autoscaler with it as its target)",
            topic=f"{DEPLOYMENT.kind} changed",
        )

    def _note_applied(self, key: TaskKey, generation: str) -> None:
        made = self._view.deployments.get(key)
        if made is not None:
            self._applied[key] = generation, made.generation

    async def _apply(self, key: TaskKey, manifest: Json, meta: Meta) -> None:
        fix = "correct the MemTask's template, or what forbids it (a quota, a policy)"
        tried = manifest["metadata"]["annotations"][GENERATION]
        await self._applying.apply(DEPLOYMENT, manifest, MEMTASK, meta, key, fix, tried)

    async def _empty(self, key: TaskKey, meta: Meta) -> None:
        """Let the pods go of the Deployment of a task that leaves, or has no template any more.

        The claims of its pods keep a task that leaves, and it them. The Deployment goes with it,
        also where it was to be orphaned: its pods would wait for a task that nobody has.
        """
        made = self._view.deployments.get(key)
        if made is None or not is_made(DEPLOYMENT, made):
            return
        await self._own(DEPLOYMENT, made, key, meta)
        made = self._view.deployments.get(key, made)
        emptied = {GENERATION: f"{meta.uid}/empty"}
        if emptied.items() <= made.meta.annotations.items() and made.spec.get("replicas") == 0:
            return
        metadata = {"resourceVersion": made.meta.version, "annotations": emptied}
        body = {"metadata": metadata, "spec": {"replicas": 0}}
        await self._applying.writes.patch(DEPLOYMENT, key, body)

    # Whose they are

    async def _look(self, kind: Resource, key: TaskKey) -> KnownPart | None:
        """The object of a task's name that no watch has shown: it may not have the task's label.

        What others made is not taken into the view: no watch would show how it goes.
        """
        try:
            body = await self._kube.get(kind, *key)
        except NotFound:
            return None
        there = part_of(body)
        if is_made(kind, there):
            self._view.take(kind, body)
        return there

    async def _own(self, kind: Resource, there: KnownPart, key: TaskKey, meta: Meta) -> None:
        """Have what the operator made belong to its task, and be watched."""
        patch = mend(there, meta)
        if patch is None:
            return
        await self._applying.writes.patch(kind, key, patch, how=STRATEGIC)
        await self._applying.telling.series(
            *(key, MEMTASK, meta, f"{kind.kind}PutBack", found(kind, there, meta)),
            topic=f"{kind.kind} owned",
            normal=True,
        )

    async def _tell_taken(self, kind: Resource, there: KnownPart, key: TaskKey, meta: Meta) -> str:
        """Only a person can help; returns the sentence."""
        sentence = taken(kind, there)
        self._applying.hindrances.note(key, kind.kind, sentence)
        await self._applying.telling.once(key, MEMTASK, meta, "NameTaken", sentence)
        return sentence
