"""Tells pods that run outside of Tierline so: the only way for them is to be made again."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tierline_api.objects.conditions import Reason
from tierline_kube.client import Kube
from tierline_kube.errors import KubeError
from tierline_kube.resource import POD
from tierline_operator.cluster.outside import unseen
from tierline_operator.controller.events import Telling
from tierline_operator.controller.status import without_claim

log = logging.getLogger(__name__)
_LOOK_S: Final = 300.0
"""From one look at all pods of the cluster to the next."""
_MOST_A_LOOK: Final = 100
"""Pods that are looked at one by one; the others in the next look."""


class Outside:
    """Looks for such pods while this replica leads."""

    def __init__(self, kube: Kube, telling: Telling) -> None:
        self._kube = kube
        self._telling = telling
        self._known: set[str] = set()
        """Uids of pods that were looked at: what a pod asks for never changes."""

    async def watch(self) -> None:
        """Look now and then, for ever."""
        while True:
            try:
                await self.look()
            except KubeError as error:
                log.warning("cannot look for pods without a claim: %s", error)
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Tell each pod that has not been told. Raises KubeError."""
        looked_at = 0
        async for pod in unseen(self._kube, self._known):
            self._known.add(pod.meta.uid)
            if pod.outside:
                why = without_claim([pod])
                await self._telling.tell(POD, pod.meta, Reason.NO_CLAIM, why, normal=False)
            looked_at += 1
            if looked_at == _MOST_A_LOOK:
                break
