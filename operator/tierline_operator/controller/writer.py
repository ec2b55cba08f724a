"""The leader's writes: each checked before, and each answer taken into the view after it.

Invariant: every write is preceded by `Leadership.check`, and every answer is taken into the view
before anything else is decided.
"""

from __future__ import annotations

from typing import Any

from tierline_kube.client import APPLY, JSON_PATCH, MERGE, Kube
from tierline_kube.errors import Conflict, NotFound, Refused
from tierline_kube.resource import Json, Resource
from tierline_operator.cluster.decode import Meta
from tierline_operator.cluster.state import Name, View
from tierline_operator.leadership.lease import Leadership


class Stale(Exception):  # noqa: N818 - a state, not a mistake
    """An object is not as it was seen: it must be read again."""

    def __init__(self, resource: Resource, name: Name) -> None:
        super().__init__(f"{resource.kind} {'/'.join(name)} has changed")
        self.resource, self.name = resource, name


class Later(Exception):  # noqa: N818 - a state, not a mistake
    """A step left something for later that no other step needs; the message says what and why."""


class Writes:
    """Writes while this replica leads; all raise NoLongerLeader, KubeError."""

    def __init__(self, kube: Kube, leadership: Leadership, view: View) -> None:
        self._kube = kube
        self._leadership = leadership
        self._view = view

    async def patch(
        self,
        resource: Resource,
        name: tuple[str, str],
        body: Any,
        *,
        how: str = MERGE,
        subresource: str = "",
    ) -> None:
        """Patch an object; raises Stale where it is not as it was seen."""
        self._leadership.check()
        try:
            answer = await self._kube.patch(resource, *name, body, how=how, subresource=subresource)
        except (Conflict, NotFound) as error:
            raise Stale(resource, (name[0], name[1])) from error
        except Refused as error:
            if how == JSON_PATCH:  # a test in the patch failed
                raise Stale(resource, (name[0], name[1])) from error
            raise
        self._view.take(resource, answer)

    async def apply(self, resource: Resource, name: tuple[str, str], body: Json) -> None:
        """Apply an object, made or changed; raises Stale like `patch`."""
        await self.patch(resource, name, body, how=APPLY)

    async def create(self, resource: Resource, body: Json) -> None:
        """Create an object; raises Conflict where there is one of its name."""
        self._leadership.check()
        self._view.take(resource, await self._kube.create(resource, body))

    async def finalizers(self, resource: Resource, meta: Meta, wanted: frozenset[str]) -> None:
        """Give an object these finalizers; raises Stale like `patch`."""
        body = {
            "metadata": {
                "resourceVersion": meta.version,
                "uid": meta.uid,
                "finalizers": sorted(wanted) or None,
            }
        }
        await self.patch(resource, (meta.namespace, meta.name), body)
