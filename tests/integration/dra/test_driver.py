"""The agent towards a real API server, and towards a kubelet that the test plays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.e2e.installed import EXTENT_BYTES, FAST_EXTENTS, PATIENCE_S, NodeAgent
from tests.integration.agent.raw_client import RawClient
from tests.integration.dra.claims import NODE, notes, results
from tests.integration.operator.running import conditions, until

from tierline_agent.kubernetes.kubelet import dra_pb2, health_pb2, registration_pb2
from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # also on a busy machine
CLAIM: Manifest = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": f"{NODE}-tierline.io"},
}


class Kubelet:
    """What the kubelet of a node asks the agent."""

    def __init__(self, agent: NodeAgent) -> None:
        self.agent = agent

    def info(self) -> registration_pb2.PluginInfo:
        return self._call(
            self.agent.kubelet_root / "plugins_registry" / "tierline.io-reg.sock",
            "/pluginregistration.Registration/GetInfo",
            registration_pb2.InfoRequest(),
            registration_pb2.PluginInfo,
        )

    def accept(self) -> None:
        self._call(
            self.agent.kubelet_root / "plugins_registry" / "tierline.io-reg.sock",
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration_pb2.RegistrationStatus(plugin_registered=True),
            registration_pb2.RegistrationStatusResponse,
        )

    def prepare(self, claim: Manifest) -> dra_pb2.NodePrepareResourceResponse:
        answer = self._dra("NodePrepareResources", claim, dra_pb2.NodePrepareResourcesRequest)
        return answer.claims[claim["metadata"]["uid"]]

    def unprepare(self, claim: Manifest) -> str:
        answer = self._dra("NodeUnprepareResources", claim, dra_pb2.NodeUnprepareResourcesRequest)
        error: str = answer.claims[claim["metadata"]["uid"]].error
        return error

    def health(self) -> dict[str, int]:
        """The health of each device, as the stream says it first."""
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            watch = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
            )(health_pb2.NodeWatchResourcesRequest(), timeout=PATIENCE_S)
            first = next(watch)
            watch.cancel()
        return {device.device.device_name: device.health for device in first.devices}

    @property
    def _socket(self) -> Path:
        return self.agent.kubelet_root / "plugins" / "tierline.io" / "dra.sock"

    def _dra(self, method: str, claim: Manifest, request: Any) -> Any:
        metadata = claim["metadata"]
        named = {name: metadata[name] for name in ("namespace", "name", "uid")}
        answer = {
            dra_pb2.NodePrepareResourcesRequest: dra_pb2.NodePrepareResourcesResponse,
            dra_pb2.NodeUnprepareResourcesRequest: dra_pb2.NodeUnprepareResourcesResponse,
        }[request]
        address = f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"
        return self._call(self._socket, address, request(claims=[named]), answer)

    @staticmethod
    def _call(socket: Path, method: str, request: Any, answer: Any) -> Any:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            call = channel.unary_unary(
                method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return call(request, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def agent(api_server: ControlPlane) -> Iterator[NodeAgent]:
    api_server.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        root = Path(folder)
        made = NodeAgent(api_server, NODE, root, cdi=root / "cdi")
        made.configure(api_server.kubeconfig)
        try:
            made.start()
            yield made
        finally:
            made.remove()


@pytest.fixture
def kubelet(agent: NodeAgent) -> Kubelet:
    return Kubelet(agent)


MEMNODE: Manifest = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemNode",
    "metadata": {"name": NODE},
}


def test_a_kubelet_that_does_not_register_the_driver_is_told(
    api_server: ControlPlane, agent: NodeAgent, kubelet: Kubelet
) -> None:
    def ready(found: Manifest) -> Manifest:
        said: Manifest = conditions(found).get("Ready", {})
        return said

    def events() -> list[Manifest]:
        found = api_server.api.list("events.k8s.io/v1", "Event", "default")
        return [event for event in found if event["reason"] == "KubeletNotRegistered"]

    named = api_server.api.wait(
        MEMNODE, lambda found: ready(found).get("reason") == "KubeletNotRegistered", PATIENCE_S
    )
    said = ready(named)["message"]
    assert f"{agent.kubelet_root}/plugins_registry" in said
    assert "agent.kubeletDir" in said
    until("its log does not say so", lambda: said in agent.log, PATIENCE_S)
    until("there is no event", events, PATIENCE_S)
    [told] = events()
    assert (told["regarding"]["name"], told["note"]) == (NODE, said)
    first = named["status"]["lastSeen"]

    kubelet.accept()

    api_server.api.wait(MEMNODE, lambda found: ready(found).get("status") == "True", PATIENCE_S)
    last = api_server.api.wait(MEMNODE, lambda one: one["status"]["lastSeen"] > first)["status"]
    assert {c["type"] for c in last["conditions"]} == {"Healthy", "Ready"}
    assert all(c["lastTransitionTime"] for c in last["conditions"])


@pytest.fixture
def claim(api_server: ControlPlane, agent: NodeAgent, namespace: str) -> Iterator[Manifest]:
    """A claim as the operator leaves it."""
    made = granted(api_server, namespace)
    yield made
    gone(api_server, made)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def granted(plane: ControlPlane, namespace: str, name: str = "camera-1") -> Manifest:
    """Make a claim and allocate it."""
    labels = {"tierline.io/task": "camera", "tierline.io/node": NODE}
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "annotations": notes(),
    }
    made = allocated(plane, {**CLAIM, "metadata": metadata})
    return CLAIM | made


def allocated(plane: ControlPlane, wanted: Manifest) -> Manifest:
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    made = plane.api.create(wanted | {"spec": {"devices": {"requests": [request]}}})
    here = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    allocation = {
        "allocationTimestamp": "2026-11-21T12:00:00Z",
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        "devices": {"results": results()},
    }
    return plane.api.merge(made, {"status": {"allocation": allocation}}, subresource="status")


def gone(plane: ControlPlane, claim: Manifest) -> None:
    """Let a claim go as the controllers do once its pod is gone."""
    plane.api.delete(claim)
    plane.api.wait_gone(claim, PATIENCE_S)


def description(agent: NodeAgent, claim: Manifest) -> Path:
    return agent.cdi / f"tierline.io-claim-{claim['metadata']['uid']}.json"


def library(agent: NodeAgent, claim: Manifest) -> bytes:
    """The library in the pod's folder."""
    return (agent.pods / claim["metadata"]["uid"] / "libtierline.so").read_bytes()


def test_it_registers_and_publishes_its_devices(
    agent: NodeAgent, kubelet: Kubelet, api_server: ControlPlane
) -> None:
    info = kubelet.info()
    assert (info.type, info.name) == ("DRAPlugin", "tierline.io")
    assert "v1.DRAPlugin" in info.supported_versions
    assert Path(info.endpoint).is_socket()
    api_server.api.wait(SLICE, lambda found: found["spec"]["devices"], PATIENCE_S)
    assert kubelet.health() == {"cpu": health_pb2.HEALTHY}

    api_server.api.delete(SLICE)  # as the kubelet does with slices of a driver that was away
    kubelet.accept()
    api_server.api.wait(SLICE, lambda found: found["spec"]["devices"], PATIENCE_S)


def test_the_kubelet_may_ask_twice(agent: NodeAgent, kubelet: Kubelet, claim: Manifest) -> None:
    uid = claim["metadata"]["uid"]
    first, second = kubelet.prepare(claim), kubelet.prepare(claim)

    assert first == second
    (device,) = first.devices
    assert (device.pool_name, device.device_name) == (NODE, "cpu")
    assert list(device.cdi_device_ids) == [f"tierline.io/claim={uid}"]
    assert agent.traces() == {uid}
    assert library(agent, claim) == (agent.bundle / "libtierline.so").read_bytes()

    assert (kubelet.unprepare(claim), kubelet.unprepare(claim)) == ("", "")
    assert agent.traces() == set()


def test_a_claim_that_goes_without_being_unprepared_leaves_nothing(
    agent: NodeAgent, kubelet: Kubelet, api_server: ControlPlane, namespace: str
) -> None:
    claim = granted(api_server, namespace)
    assert kubelet.prepare(claim).error == ""
    gone(api_server, claim)

    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def test_what_the_operator_changes_reaches_the_agent(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest, api_server: ControlPlane
) -> None:
    assert kubelet.prepare(claim).error == ""

    def extents() -> list[int]:
        return [task["planned_extents"] for task in agent.call("snapshot")["snapshot"]["tasks"]]

    assert extents() == [4]
    for noted, then in (
        (notes(extents=6), [6]),
        (notes("Lost"), []),
        (notes("Demoted", extents=5), [5]),
    ):
        api_server.api.merge(claim, {"metadata": {"annotations": noted}})
        until(f"{then} extents", lambda then=then: extents() == then, PATIENCE_S)  # type: ignore[misc]


@pytest.mark.parametrize("among_others", [False, True], ids=["alone", "among others"])
def test_a_pod_that_was_measured_starts_again_with_what_it_learned(
    agent: NodeAgent,
    kubelet: Kubelet,
    claim: Manifest,
    api_server: ControlPlane,
    *,
    among_others: bool,
) -> None:
    def variables() -> list[str]:
        return list(edits(json.loads(description(agent, claim).read_text()))["env"])

    no_plan = {} if among_others else {"tierline.io/plan": None}
    noted = notes("Profiling", among_others=among_others) | no_plan
    api_server.api.merge(claim, {"metadata": {"annotations": noted}})

    def is_measured() -> bool:
        assert kubelet.prepare(claim).error == ""
        return any(variable.startswith("TIERLINE_OBSERVE=") for variable in variables())

    until("it is measured", is_measured, PATIENCE_S)
    folder = agent.pods / claim["metadata"]["uid"]
    tasks = agent.call("snapshot")["snapshot"]["tasks"]
    assert [task["planned_extents"] for task in tasks] == ([0] if among_others else [])
    assert not (folder / "planned").exists()
    (folder / "measured" / "profile.jsonl").write_text("{}\n")
    api_server.api.merge(claim, {"metadata": {"annotations": notes()}})
    learned = "TIERLINE_LEARNED=/run/tierline/measured/profile.jsonl"
    until("what it starts with is there", lambda: learned in variables(), PATIENCE_S)
    until("its program is told", (folder / "planned").exists, PATIENCE_S)


def test_a_pod_whose_measuring_was_given_up_ends_and_gets_no_time(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest, api_server: ControlPlane
) -> None:
    assert kubelet.prepare(claim).error == ""
    api_server.api.merge(claim, {"metadata": {"annotations": notes("Unmeasured")}})

    told = agent.pods / claim["metadata"]["uid"] / "unmeasured"
    until("its program is told", told.exists, PATIENCE_S)
    until("it gets no time", lambda: not agent.call("snapshot")["snapshot"]["tasks"], PATIENCE_S)
    variables = edits(json.loads(description(agent, claim).read_text()))["env"]
    assert "TIERLINE_REQUIRED=1" in variables
    assert "delete the pod to have it measured again" in kubelet.prepare(claim).error


def test_the_next_agent_waits_for_the_end_of_the_one_that_serves(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest
) -> None:
    assert kubelet.prepare(claim).error == ""
    with closing(RawClient(agent.pods / claim["metadata"]["uid"] / "tierline.sock")) as program:
        program.hello()
        agent.hand_over()
    assert agent.traces() == {claim["metadata"]["uid"]}
    assert "AlreadyRunning" not in agent.log


HOLDS = """
import signal, sys, time
from tierline_agent.transport.protocol import NO_ARENA
from tierline_client import Client
client = Client(sys.argv[1], "holds")
now_ns = time.monotonic_ns()
client.job_begin(NO_ARENA, now_ns, now_ns + 10**9)
signal.pause()
"""
"""A program with a job that never ends."""


def test_a_pod_is_told_why_its_program_was_killed(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest, api_server: ControlPlane
) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "camera", "uid": "u", "controller": True}
    noted = {"annotations": notes("Profiling", among_others=True), "ownerReferences": [owner]}
    api_server.api.merge(claim, {"metadata": noted})
    uid, namespace = claim["metadata"]["uid"], claim["metadata"]["namespace"]

    def registered() -> bool:
        assert kubelet.prepare(claim).error == ""
        return uid in agent.call("tasks")["tasks"]

    until("it is registered", registered, PATIENCE_S)
    socket = agent.pods / uid / "tierline.sock"
    done = subprocess.run([sys.executable, "-c", HOLDS, socket], timeout=PATIENCE_S, check=False)
    assert done.returncode == -signal.SIGKILL

    def told() -> list[tuple[str, str]]:
        events = api_server.api.list("events.k8s.io/v1", "Event", namespace)
        of_pod = {"kind": "Pod", "name": "camera", "namespace": namespace, "uid": "u"}
        return [
            (event["reason"], event["note"])
            for event in events
            if of_pod.items() <= event["regarding"].items()
        ]

    until("the event", told, PATIENCE_S)
    ((reason, note),) = told()
    assert reason == "JobTooLong"
    assert "for more than 500 ms, its realtime.measuringLimit" in note
    api_server.api.merge(claim, {"metadata": {"ownerReferences": None}})


def test_memory_of_an_earlier_plan_is_waited_for_by_name(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest, api_server: ControlPlane
) -> None:
    def plans(first: int, second: int) -> None:
        for manifest, extents in ((claim, first), (newcomer, second)):
            noted = notes(extents=extents, resident=extents)
            api_server.api.merge(manifest, {"metadata": {"annotations": noted}})

    newcomer = granted(api_server, claim["metadata"]["namespace"], "camera-2")
    plans(FAST_EXTENTS - 2, 1)
    assert kubelet.prepare(claim).error == ""
    with closing(RawClient(agent.pods / claim["metadata"]["uid"] / "tierline.sock")) as program:
        program.hello()
        program.reserve((FAST_EXTENTS - 2) * EXTENT_BYTES)
        plans(4, 8)  # the operator makes room

        def said() -> str:
            text: str = kubelet.prepare(newcomer).error
            return text

        held_up = "default/camera have memory by an earlier plan until they start again"
        held_up = held_up.replace("default", claim["metadata"]["namespace"])
        until("the newcomer is told why it waits", lambda: held_up in said(), PATIENCE_S)
    until("it starts", lambda: said() == "", PATIENCE_S)
    gone(api_server, newcomer)


def test_an_unknown_claim_and_somebody_elses_are_refused(
    agent: NodeAgent, kubelet: Kubelet, api_server: ControlPlane, namespace: str
) -> None:
    absent = {"metadata": {"namespace": namespace, "name": "absent", "uid": "u"}}
    assert "there is no claim" in kubelet.prepare(absent).error

    wanted: Manifest = {**CLAIM, "metadata": {"namespace": namespace, "name": "own"}}
    own = CLAIM | allocated(api_server, wanted)
    assert "annotate the pod with tierline.io/task" in kubelet.prepare(own).error
    other = {"metadata": {**own["metadata"], "uid": "u"}}
    assert "is another one by now" in kubelet.prepare(other).error
    assert agent.traces() == set()
    gone(api_server, own)


def test_a_library_in_use_stays_until_the_machine_boots(
    agent: NodeAgent, kubelet: Kubelet, claim: Manifest
) -> None:
    assert kubelet.prepare(claim).error == ""
    before = library(agent, claim)
    described = json.loads(description(agent, claim).read_text())
    agent.kill()
    with (agent.bundle / "libtierline.so").open("ab") as newer:
        newer.write(b"newer")
    agent.start()

    assert kubelet.prepare(claim).error == ""  # the kubelet restarted as well
    assert library(agent, claim) == before
    assert json.loads(description(agent, claim).read_text()) == described
    assert all(Path(m["hostPath"]).is_dir() for m in edits(described)["mounts"])

    described["annotations"]["boot.tierline.io"] = "an earlier one"
    description(agent, claim).write_text(json.dumps(described))
    assert kubelet.prepare(claim).error == ""
    assert library(agent, claim) == before + b"newer"
    agent.kill()
    agent.start()
    assert len(list((agent.folder / "lib").iterdir())) == 1


def test_an_agent_that_keeps_ending_is_steadily_not_ready(
    agent: NodeAgent, kubelet: Kubelet, api_server: ControlPlane
) -> None:
    def ready() -> Manifest:
        found: Manifest = conditions(api_server.api.get(MEMNODE))["Ready"]
        return found

    assert agent.stop() == 0
    agent.start()  # after an end in good order what was before does not count
    for reason in ("Registered", "Registered", "AgentCrashing"):
        kubelet.accept()
        until(f"it is {reason}", lambda reason=reason: ready()["reason"] == reason, PATIENCE_S)  # type: ignore[misc]
        agent.kill()
        agent.start()
    told = ready()
    assert told["status"] == "False"
    for _ in range(2):
        seen = api_server.api.get(MEMNODE)["status"]["lastSeen"]
        agent.kill()
        agent.start()
        kubelet.accept()
        until(
            "it gives a sign of life",
            lambda seen=seen: api_server.api.get(MEMNODE)["status"]["lastSeen"] > seen,  # type: ignore[misc]
            PATIENCE_S,
        )
        assert ready() == told, "nothing changes: not the word, the sentence, nor since when"
    assert agent.stop() == 0
    agent.start()
    kubelet.accept()
    until("it is well", lambda: ready()["status"] == "True", PATIENCE_S)


def edits(described: dict[str, Any]) -> dict[str, Any]:
    (device,) = described["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found
