"""Reports of the node and its pods, written to the API server at a bounded rate.

The MemNode and the ResourceSlice are written when they differ from what was written last, and
looked at again from time to time, because others delete them (the kubelet does so with slices of a
driver that was away). A claim's observations are written at most once a period, and only if jobs
ended since.

Nothing here is the truth about anything: what was lost with a restart is measured again, except
the sums of a claim, which go on from what was written last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tierline_agent.admin.client import Agent
from tierline_agent.kubernetes import objects
from tierline_agent.kubernetes.grants import Grant
from tierline_agent.kubernetes.observing import Observation
from tierline_api.objects.conditions import Condition
from tierline_api.objects.memnode import Device, Health, MemNode
from tierline_api.schema.quantities import QuantityError, parse_quantity
from tierline_kube.client import Kube
from tierline_kube.errors import NotFound, Refused
from tierline_kube.resource import CLAIM, MEMNODE, NODE, SLICE, Json

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S: Final = 60.0
_NODE_PAUSE_S: Final = 5.0
"""Least time between two writes of the node."""
_JOBS_AT_ONCE: Final = 256
"""Job records that are asked for at once: the agent grants no lease while it writes them down."""


class NodeReport:
    """The MemNode and the ResourceSlice of this node."""

    def __init__(self, kube: Kube, agent: Agent, node: str, period_s: float) -> None:
        self._kube = kube
        self._agent = agent
        self._period_s = period_s
        self._node = node
        self._written: MemNode | None = None
        self._conditions: tuple[Condition, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._looked_at_s = -_LOOK_AGAIN_S
        self.devices: tuple[Device, ...] = ()
        """The node's devices as they were last."""

    @property
    def health(self) -> Mapping[str, str]:
        """The fault of each device; an empty text is none."""
        failed = "it has failed; the agent's log says why"
        return {d.name: failed if d.health is Health.FAILED else "" for d in self.devices}

    async def read(self) -> MemNode:
        """The node as the agent describes it now. Raises AgentError, OSError."""
        answer = await self._agent.ask("node")
        described = MemNode.from_api(answer["node"])
        self._notes = tuple(answer["notes"])
        self.devices = described.status.devices
        return described

    async def write(self, *, look_again: bool = False) -> None:
        """Write what has changed; `look_again` also looks whether it is there at all.

        Raises:
            AgentError, KubeError, OSError: agent or API server does not answer, or refuses.
        """
        described = await self.read()
        now = datetime.now(UTC).replace(microsecond=0)
        node = objects.with_condition(described, self._conditions, now, self._notes)
        since_s = time.monotonic() - self._looked_at_s
        changed = node != self._written and since_s > min(_NODE_PAUSE_S, self._period_s)
        if not (changed or look_again or since_s > _LOOK_AGAIN_S):
            return
        owner = objects.owned_by_node(await self._kube.get(NODE, "", self._node))
        metadata = {"name": self._node, "ownerReferences": owner}
        await self._kube.apply(MEMNODE, {"metadata": metadata, "spec": {}})
        status = {"metadata": {"name": self._node}, "status": node.to_api()["status"]}
        await self._kube.apply(MEMNODE, status, "status")
        await self._write_slice(node, owner)
        self._written, self._conditions = node, node.status.conditions
        self._looked_at_s = time.monotonic()

    async def _write_slice(self, node: MemNode, owner: list[Json]) -> None:
        name = objects.slice_name(self._node)
        generation = 1
        try:
            there = await self._kube.get(SLICE, "", name)
        except NotFound:
            pass
        else:
            generation = int(there["spec"]["pool"]["generation"])
            wanted = objects.slice_spec(self._node, node.status.devices, generation)
            if same_devices(there["spec"].get("devices") or [], wanted["devices"]):
                return
            generation += 1
        spec = objects.slice_spec(self._node, node.status.devices, generation)
        metadata = {"name": name, "ownerReferences": owner}
        await self._kube.apply(SLICE, {"metadata": metadata, "spec": spec})
        _log.info("published %d devices in ResourceSlice %s", len(spec["devices"]), name)


def same_devices(there: list[Json], wanted: list[Json]) -> bool:
    """Whether two lists of devices say the same; 134217728000 is read back as 134217728k."""
    return [_flat(device) for device in there] == [_flat(device) for device in wanted]


def _flat(device: Mapping[str, Any]) -> tuple[Any, ...]:
    """A device's name, attributes and capacities."""
    attributes = device.get("attributes") or {}
    capacity = device.get("capacity") or {}
    return (
        device["name"],
        {name: tuple(value.items()) for name, value in attributes.items()},
        {name: _amount(value["value"]) for name, value in capacity.items()},
    )


def _amount(quantity: str) -> int | str:
    """The value of a quantity; one that nobody here has written, as it is."""
    try:
        return parse_quantity(quantity)
    except QuantityError:
        return quantity


class ClaimReports:
    """Observations of each pod."""

    def __init__(self, kube: Kube, agent: Agent, period_s: float) -> None:
        self._kube = kube
        self._agent = agent
        self._period_s = period_s
        self._cursor = 0
        self._seen: dict[str, Observation] = {}
        self._written: dict[str, tuple[int, float]] = {}
        """By claim: its jobs when it was written, and when that was."""

    async def write(self, grants: Mapping[str, Grant | None]) -> None:
        """Write what is due of the claims in `grants`.

        Raises:
            AgentError, KubeError, OSError: agent or API server does not answer, or refuses.
        """
        await self._read_jobs(grants)
        for uid in set(self._seen) - set(grants):
            del self._seen[uid]
            self._written.pop(uid, None)
        for uid, seen in self._seen.items():
            grant = grants[uid]
            jobs, at_s = self._written.get(uid, (0, 0.0))
            now_s = time.monotonic()
            if grant is None or seen.jobs == jobs or (jobs and now_s - at_s < self._period_s):
                continue
            observed = seen.observed(datetime.now(UTC).replace(microsecond=0))
            try:
                await self._kube.apply(CLAIM, objects.observed_status(grant, observed), "status")
            except Refused as error:  # it went meanwhile, or is refused: the others are not
                _log.warning("cannot report on claim %s: %s", grant.claim, error)
            self._written[uid] = (seen.jobs, now_s)

    async def _read_jobs(self, grants: Mapping[str, Grant | None]) -> None:
        more = True
        while more:
            answer = await self._agent.ask("jobs", since=self._cursor, most=_JOBS_AT_ONCE)
            self._cursor, more = answer["cursor"], answer["more"]
            for record in answer["jobs"]:
                grant = grants.get(record["task"])
                if grant is not None:
                    if grant.uid not in self._seen:
                        trains = grant.terms.training is not None
                        self._seen[grant.uid] = Observation(grant.observed, trains=trains)
                    self._seen[grant.uid].add(record)
