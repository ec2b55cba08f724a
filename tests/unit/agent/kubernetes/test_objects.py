"""The objects that the agent writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.dra.claims import NODE, claim
from tests.unit.api.api_objects import node as inventory

from tierline_agent.kubernetes import objects
from tierline_agent.kubernetes.grants import grant_of
from tierline_agent.kubernetes.reporting import same_devices
from tierline_api.objects.memnode import Health, MemNode
from tierline_api.objects.memtask_status import Observed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def test_a_slice_shows_whole_devices_that_claims_share() -> None:
    node = MemNode.from_api(inventory())
    made = objects.slice_spec(NODE, node.status.devices, 3)

    assert made["pool"] == {"name": NODE, "generation": 3, "resourceSliceCount": 1}
    for device, of in zip(made["devices"], node.status.devices, strict=True):
        assert device["name"] == of.name
        assert device["allowMultipleAllocations"]
        assert device["capacity"]["fastMemory"] == {"value": str(of.fast_bytes)}
        assert device["attributes"]["kind"] == {"string": of.kind.value}


def test_a_slice_is_the_same_however_the_api_server_writes_its_quantities() -> None:
    def devices(quantity: str) -> list[dict[str, Any]]:
        return [{"name": "gpu-0", "capacity": {"fastMemory": {"value": quantity}}}]

    assert same_devices(devices("134217728k"), devices("134217728000"))
    assert not same_devices(devices("134217729k"), devices("134217728000"))
    assert not same_devices(devices("much"), devices("134217728000"))


def test_the_condition_says_what_is_wrong_and_since_when() -> None:
    node = MemNode.from_api(inventory())
    well = objects.with_condition(node, (), NOW)
    (condition,) = well.status.conditions
    assert (condition.status, condition.reason) == ("True", "AllWell")
    again = objects.with_condition(node, well.status.conditions, LATER)
    assert again.status.conditions == well.status.conditions

    kept = objects.with_condition(well, (), NOW, ["the dram tier keeps its size"])
    (condition,) = kept.status.conditions
    assert (condition.status, condition.reason) == ("True", "NotAsConfigured")
    assert condition.message.endswith("as they were measured; the dram tier keeps its size")

    link = node.status.links[0].model_copy(update={"health": Health.DEGRADED})
    slow = node.model_copy(update={"status": node.status.model_copy(update={"links": (link,)})})
    (condition,) = objects.with_condition(slow, well.status.conditions, LATER).status.conditions
    assert (condition.status, condition.reason) == ("False", "LinkDegraded")
    assert f"link {link.name}" in condition.message
    assert condition.last_transition_time == LATER

    failed = node.status.devices[0].model_copy(update={"health": Health.FAILED})
    lost = slow.model_copy(update={"status": slow.status.model_copy(update={"devices": (failed,)})})
    (condition,) = objects.with_condition(lost, (), NOW).status.conditions
    assert condition.reason == "DeviceFailed"
    assert f"device {failed.name} has failed; link" in condition.message


def test_a_claims_status_names_the_device_that_it_is_about() -> None:
    grant = grant_of(claim(), NODE)
    (device,) = objects.observed_status(grant, Observed(jobs=3))["status"]["devices"]

    assert device["shareID"] == grant.share_id
    assert device["data"] == {"observed": Observed(jobs=3).to_api()}
