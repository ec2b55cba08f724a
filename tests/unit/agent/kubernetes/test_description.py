"""The description of a claim for the container runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.dra.claims import NODE, claim, notes

from tierline_agent.kubernetes.description import (
    Described,
    Version,
    describe,
    device_id,
    environment,
    remembered,
)
from tierline_agent.kubernetes.grants import grant_of

VERSION = Version("1-abc", Path("/lib/1-abc"))


def described(body: dict[str, Any], nodes: tuple[str, ...] = ()) -> dict[str, Any]:
    grant = grant_of(body, NODE)
    return describe(grant, Path("/pods/u"), VERSION, "boot", nodes, reconnect_s=900)


def edits(description: dict[str, Any]) -> dict[str, Any]:
    (device,) = description["devices"]
    return device["containerEdits"]


def test_a_pod_gets_its_folder_and_the_plugin_read_only() -> None:
    made = described(claim(uid="u"))

    assert f"{made['kind']}={made['devices'][0]['name']}" == device_id("u")
    assert [(m["hostPath"], m["containerPath"]) for m in edits(made)["mounts"]] == [
        ("/pods/u", "/run/tierline"),
        ("/lib/1-abc/python", "/run/tierline/python"),
    ]
    assert all("ro" in mount["options"] for mount in edits(made)["mounts"])
    assert "TIERLINE_SOCKET=/run/tierline/tierline.sock" in edits(made)["env"]
    assert "TIERLINE_RECONNECT_S=900" in edits(made)["env"]
    assert "deviceNodes" not in edits(made)


def test_a_pod_that_is_measured_writes_one_folder_and_has_no_agent() -> None:
    made = edits(described(claim(annotations=notes("Profiling"))))

    writable = [m["containerPath"] for m in made["mounts"] if "rw" in m["options"]]
    assert writable == ["/run/tierline/measured"]
    names = {text.partition("=")[0] for text in made["env"]}
    assert "TIERLINE_OBSERVE" in names
    assert not names & {"TIERLINE_SOCKET", "TIERLINE_REQUIRED"}


def test_a_pod_that_is_measured_among_others_has_the_agent_for_its_leases() -> None:
    made = environment(grant_of(claim(annotations=notes("Profiling", among_others=True)), NODE))

    assert made["TIERLINE_SOCKET"] == "/run/tierline/tierline.sock"
    assert made["TIERLINE_REQUIRED"] == "1"
    assert made["TIERLINE_PLANNED"] == "/run/tierline/planned"
    assert "TIERLINE_OBSERVE" in made


def test_a_pod_that_trains_knows_it() -> None:
    realtime = {"period": "24h", "criticality": "BestEffort"}
    terms = {"training": {"steps": 100}, "realtime": realtime}
    made = environment(grant_of(claim(annotations=notes(terms=terms)), NODE))

    assert (made["TIERLINE_TRAINING"], made["TIERLINE_TRAINING_STEPS"]) == ("1", "100")
    assert "GOMP_SPINCOUNT" in made
    assert "TIERLINE_TRAINING" not in environment(grant_of(claim(annotations=notes()), NODE))


def test_a_pod_that_was_measured_lays_its_weights_out_as_it_did_then() -> None:
    learned = "/run/tierline/measured/profile.jsonl"
    planned = grant_of(claim(), NODE)
    measured = grant_of(claim(annotations=notes("Profiling")), NODE)

    assert environment(planned, learned=True)["TIERLINE_LEARNED"] == learned
    assert "TIERLINE_LEARNED" not in environment(planned)
    assert "TIERLINE_LEARNED" not in environment(measured, learned=True)
    assert environment(measured)["TIERLINE_OBSERVE"] == learned


def test_no_variable_of_the_containers_own_is_replaced() -> None:
    cuda = {"device": {"kind": "cuda", "execution": "CapturedGraph"}}
    variables = environment(grant_of(claim(annotations=notes(terms=cuda)), NODE))

    assert all(name.startswith("TIERLINE_") for name in variables)
    assert variables["TIERLINE_EXECUTION"] == "CapturedGraph"
    assert variables["TIERLINE_BUDGET"] == str(4 << 20)


def test_device_nodes_are_added() -> None:
    made = described(claim(), ("/dev/nvidia0",))

    assert edits(made)["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_a_description_remembers_version_and_boot() -> None:
    assert remembered(described(claim(uid="u"))) == Described("u", "1-abc", "boot")
    assert remembered({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}) is None
    assert remembered({}) is None
