"""The agent's signs of life, in the status of its MemNode.

Every few seconds it writes when it was last well, and whether pods can start here: the kubelet must
have registered the driver. Where no sign comes for a while the operator writes `Ready: Unknown`
instead, and places nothing new here. Both are written by one field manager of their own, so that
they neither wait for a report on the node nor undo one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from tierline_agent.admin.client import Agent
from tierline_agent.processes.lives import LONG_S, Lives
from tierline_api.objects.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find,
    updated,
)
from tierline_api.objects.memnode import MemNode
from tierline_kube.client import Kube
from tierline_kube.errors import NotFound
from tierline_kube.resource import MEMNODE, Json

_log = logging.getLogger(__name__)
PERIOD_S: Final = 10.0
MANAGER: Final = "tierline-agent-pulse"
_PATIENCE_S: Final = 20.0
"""The kubelet looks into its folder of plugins at once, and asks again every few seconds."""


class Pulse:
    """The state of the agent itself."""

    def __init__(
        self, kube: Kube, agent: Agent, node: str, registry_dir: str, lives: Lives
    ) -> None:
        self._kube = kube
        self._agent = agent
        self._node = node
        self._registry_dir = registry_dir
        self._began_s = time.monotonic()
        self._lives = lives
        self._registered = False
        self._news = asyncio.Event()
        self._refused = ""
        self._conditions: Sequence[Condition] = ()

    def registered(self, error: str) -> None:
        """The kubelet answered: it has registered the driver, or says why not."""
        self._registered, self._refused = not error, error
        self._news.set()

    async def pause(self) -> None:
        """Wait until the next sign of life is due."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), PERIOD_S)
        self._news.clear()

    async def beat(self) -> Json | None:
        """Give a sign of life; returns the MemNode the first time that pods cannot start here.

        Raises:
            AgentError, OSError: the agent does not answer, and gives none.
            KubeError: nor does the API server.
        """
        await self._agent.ask("node")
        now = datetime.now(UTC).replace(microsecond=0)
        status, reason, message = self.state()
        before = self._conditions = self._conditions or await self._said_before()
        conditions = updated(before, ConditionType.READY, status, reason, message, now=now)
        alive = MemNode.from_api(
            {
                "metadata": {"name": self._node},
                "status": {"lastSeen": now, "conditions": conditions},
            }
        )
        written = alive.to_api()["status"]
        body = {"lastSeen": written["lastSeen"], "conditions": written["conditions"]}
        metadata = {"name": self._node}
        try:
            node = await self._kube.apply(MEMNODE, {"metadata": metadata, "status": body}, "status")
        except NotFound:
            return None  # it has not been reported yet
        self._conditions = conditions
        new = not before or before[0].reason != reason.value
        if not new or reason is not Reason.KUBELET_NOT_REGISTERED:
            return None
        _log.warning("no pod can start on this node: %s", message)
        return node

    async def _said_before(self) -> Sequence[Condition]:
        """The last words of the agent before, or of the operator. Raises KubeError."""
        try:
            node = MemNode.from_stored(await self._kube.get(MEMNODE, "", self._node))
        except NotFound:
            return ()
        ready = find(node.status.conditions, ConditionType.READY)
        return (ready,) if ready else ()

    def state(self) -> tuple[ConditionStatus, Reason, str]:
        """Whether pods can start here."""
        if self._lives.crashing():
            what = (
                "the agent keeps ending soon after it has started; its pod's previous log says "
                f"why. Pods are placed here again when it has run for {LONG_S / 60:.0f} min, or "
                "in a new pod"
            )
            return ConditionStatus.FALSE, Reason.AGENT_CRASHING, what
        if self._registered:
            what = "the kubelet has registered the driver"
            return ConditionStatus.TRUE, Reason.REGISTERED, what
        if self._refused:
            what = f"the kubelet refuses the driver: {self._refused}"
            return ConditionStatus.FALSE, Reason.KUBELET_NOT_REGISTERED, what
        if time.monotonic() - self._began_s < _PATIENCE_S:
            what = "the agent has started, and waits for the kubelet to register the driver"
            return ConditionStatus.FALSE, Reason.AGENT_STARTING, what
        what = (
            f"the kubelet does not look for plugins in {self._registry_dir}; set the chart's value "
            "agent.kubeletDir to the kubelet's --root-dir"
        )
        return ConditionStatus.FALSE, Reason.KUBELET_NOT_REGISTERED, what
