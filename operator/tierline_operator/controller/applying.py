"""Applies objects of a task's name, and tells what the API server refuses of them."""

from __future__ import annotations

from tierline_kube.errors import Ending, Refused
from tierline_kube.resource import Json, Resource
from tierline_operator.cluster.decode import Meta
from tierline_operator.controller.events import Telling
from tierline_operator.controller.hindrances import Hindrances
from tierline_operator.controller.writer import Later, Writes
from tierline_operator.placement.books.seats import TaskKey


class Applying:
    """Writes what a task asks for; what hinders that is told at its source, and in its status."""

    def __init__(self, writes: Writes, telling: Telling, hindrances: Hindrances) -> None:
        self.writes = writes
        self.telling = telling
        self.hindrances = hindrances

    async def apply(
        self,
        resource: Resource,
        body: Json,
        source: Resource,
        meta: Meta,
        key: TaskKey,
        fix: str,
        tried: str,
    ) -> None:
        """Apply the object of a task's name that people describe in `source`, with `meta`.

        What the API server refuses is told there, once of what was `tried`, and raises Later: pods
        that are there are not to wait for it.
        """
        try:
            await self.writes.apply(resource, key, body)
        except Ending:
            raise
        except Refused as error:
            refused = (
                f"{resource.kind}/{key.name} is refused; {fix}; it is tried again. The API server "
                f"says: {error.message}"
            )
            self.hindrances.note(key, resource.kind, refused)
            await self.telling.once(
                *(key, source, meta, f"{resource.kind}Refused", refused),
                topic=f"{tried} {error.reason}",  # the message may have figures that change often
            )
            raise Later(str(error)) from error
