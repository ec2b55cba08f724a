"""The objects that the agent writes about its node and its claims: pure builders.

A MemNode is what `reporting.snapshot.describe_node` says; here it becomes two writes, because
status is written apart. A ResourceSlice shows users and schedulers the node's devices; what is free
on them is the operator's knowledge alone, so its capacities are those of the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tierline_agent.kubernetes.grants import Grant
from tierline_api.objects.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    updated,
)
from tierline_api.objects.memnode import Device, Health, MemNode
from tierline_api.objects.memtask_status import Observed
from tierline_api.objects.optin import DRIVER, FAST_MEMORY
from tierline_kube.resource import NODE, POD, Json

_LONGEST_ATTRIBUTE: Final = 64
_ALL_WELL: Final = "devices, tiers and links are as they were measured"


def owned_by_node(node: Mapping[str, Any]) -> list[Json]:
    """References by which an object goes with its Node."""
    return [NODE.reference(node["metadata"])]


def pod_of(claim: Mapping[str, Any]) -> Json | None:
    """A reference to the pod of the claim with this metadata: its controller; None without one."""
    owners = claim.get("ownerReferences") or ()
    owner = next((o for o in owners if o["kind"] == "Pod" and o.get("controller")), None)
    return POD.reference({**owner, "namespace": claim["namespace"]}) if owner else None


def slice_name(node: str) -> str:
    """The name of a node's ResourceSlice."""
    return f"{node}-{DRIVER}"


def slice_spec(node: str, devices: Sequence[Device], generation: int) -> Json:
    """The spec of a node's ResourceSlice; `generation` counts its changes."""
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [_device(device) for device in devices],
    }


def _device(device: Device) -> Json:
    attributes: Json = {
        "kind": {"string": device.kind.value},
        "product": {"string": device.product[:_LONGEST_ATTRIBUTE]},
        "extentBytes": {"int": device.extent_bytes},
    }
    if device.uuid:
        attributes["uuid"] = {"string": device.uuid[:_LONGEST_ATTRIBUTE]}
    capacity: Json = {FAST_MEMORY: {"value": str(device.fast_bytes)}}
    if device.memory_bytes:
        capacity["memory"] = {"value": str(device.memory_bytes)}
    return {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": capacity,
    }


def with_condition(
    node: MemNode, before: Sequence[Condition], now: datetime, notes: Sequence[str] = ()
) -> MemNode:
    """A node with its condition Healthy; `before` are those that were written last.

    `notes` say what is well, but not as it was configured.
    """
    status = node.status
    faults = [
        *(
            (Reason.DEVICE_FAILED, f"device {device.name} has failed")
            for device in status.devices
            if device.health is not Health.HEALTHY
        ),
        *(
            (Reason.TIER_FAILED, f"tier {tier.name} is {tier.health}")
            for tier in status.tiers
            if tier.health is not Health.HEALTHY
        ),
        *(
            (
                Reason.LINK_DEGRADED,
                f"link {link.name} of {link.device} is slower than plans were made with",
            )
            for link in status.links
            if link.health is not Health.HEALTHY
        ),
    ]
    conditions = updated(
        before,
        ConditionType.HEALTHY,
        ConditionStatus.FALSE if faults else ConditionStatus.TRUE,
        faults[0][0] if faults else Reason.NOT_AS_CONFIGURED if notes else Reason.ALL_WELL,
        "; ".join([fault for _, fault in faults] or [_ALL_WELL, *notes]),
        now=now,
    )
    update = {"status": status.model_copy(update={"conditions": tuple(conditions)})}
    return node.model_copy(update=update)


def observed_status(grant: Grant, observed: Observed) -> Json:
    """The status of a claim with what was observed of its pod."""
    device: Json = {
        "driver": DRIVER,
        "pool": grant.pool,
        "device": grant.device,
        "data": {"observed": observed.to_api()},
    }
    if grant.share_id is not None:
        device["shareID"] = grant.share_id
    return {
        "metadata": {"namespace": grant.namespace, "name": grant.claim},
        "status": {"devices": [device]},
    }
