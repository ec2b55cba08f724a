"""The agent on a real node: a pod streams its weights, whatever becomes of the agent meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.conftest import Running, phase, pod
from tests.e2e.installed import EXTENT_BYTES, PATIENCE_S, NodeAgent
from tests.e2e.python_image import PROGRAM, PYTHON
from tests.integration.operator.running import Operator, conditions, plan_in, until

from tierline_agent.devices.cpu import processor_name
from tierline_api.objects.optin import DRIVER, REQUEST
from tierline_api.schema.quantities import parse_duration
from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # also on a busy machine
EXTENTS = 12
API = "tierline.io/v1alpha1"


def memtask(namespace: str, name: str, period: str = "1s") -> Manifest:
    return {
        "apiVersion": API,
        "kind": "MemTask",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "realtime": {"period": period},
            "memory": {"budget": "4Mi"},
            "swap": {"policy": "Stream"},
            "device": {"kind": "cpu"},
        },
    }


def memprofile(namespace: str, name: str, compute_ms: int = 1) -> Manifest:
    layer = {"bytes": EXTENT_BYTES, "computeTime": f"{compute_ms}ms"}
    return {
        "apiVersion": API,
        "kind": "MemProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "device": {"kind": "cpu", "product": processor_name()},
            "layers": [{"name": f"layer{n}", **layer} for n in range(EXTENTS)],
            "workspace": "0",
        },
    }


def camera(namespace: str, name: str = "camera") -> Manifest:
    """A pod that runs the task `name`."""
    wanted = pod(namespace, name, "")
    wanted["metadata"]["annotations"] = {"tierline.io/task": name}
    (container,) = wanted["spec"]["containers"]
    container |= {
        "image": PYTHON,
        "command": ["/bin/python3", PROGRAM],
        "env": [
            {"name": "EXTENTS", "value": str(EXTENTS)},
            {"name": "PERIOD_S", "value": "0.2"},
        ],
    }
    return wanted


def log_of(cluster: Running, running: Manifest) -> list[str]:
    said: str = cluster.api.request("GET", cluster.api.address(running, subresource="log"))
    return said.split()


def jobs_of(cluster: Running, running: Manifest) -> int:
    """How many jobs a pod has run; all must have been right."""
    said = log_of(cluster, running)
    assert "WRONG" not in said, said
    return said.count("right")


def more_jobs(cluster: Running, running: Manifest) -> None:
    """Wait until a pod has run some more jobs, all right."""
    before = jobs_of(cluster, running)
    until("no more jobs", lambda: jobs_of(cluster, running) >= before + 3, PATIENCE_S)


def claims_of(cluster: Running, namespace: str) -> list[Manifest]:
    """The claims of a namespace."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    found = cluster.api.list(kind["apiVersion"], kind["kind"], namespace)
    return [kind | claim for claim in found]


def forget(cluster: Running, namespace: str, name: str = "camera") -> None:
    """Delete the task `name` and its profile, which the operator lets go once they are unused."""
    named = memtask(namespace, name), memprofile(namespace, name)
    for manifest in named:
        cluster.api.delete(manifest)
    for manifest in named:
        cluster.api.wait_gone(manifest, PATIENCE_S)


@pytest.fixture
def running(
    cluster: Running,
    operator: Operator,
    agent: NodeAgent,
    namespace: str,
    failed: Callable[[], bool],
) -> Iterator[Manifest]:
    """A pod that streams."""
    api = cluster.api
    for manifest in (memtask(namespace, "camera"), memprofile(namespace, "camera")):
        api.create(manifest)
    wanted = camera(namespace)
    api.create(wanted)
    api.wait(wanted, lambda found: phase(found) == "Running", PATIENCE_S)
    until("no job has ended", lambda: jobs_of(cluster, wanted) >= 1, PATIENCE_S)
    yield wanted
    if failed():
        return  # `namespace` takes away what is left, in whatever state
    api.delete(wanted, gracePeriodSeconds=1)
    api.wait_gone(wanted, PATIENCE_S)
    forget(cluster, namespace)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def test_a_pod_streams_its_weights_and_its_task_says_so(
    cluster: Running, agent: NodeAgent, namespace: str, running: Manifest
) -> None:
    api = cluster.api

    def observed(found: Manifest) -> dict[str, Any]:
        seen: dict[str, Any] = (found.get("status") or {}).get("observed") or {}
        return seen

    named = memtask(namespace, "camera")
    found = api.wait(named, lambda task: observed(task).get("jobs", 0) >= 3, PATIENCE_S)
    assert observed(found)["streamedBytesPerJob"] > 0

    (claim,) = claims_of(cluster, namespace)
    assert agent.traces() == {claim["metadata"]["uid"]}
    named = {"metadata": {"name": cluster.node.name}}
    node = api.get({"apiVersion": API, "kind": "MemNode"} | named)
    assert node["metadata"]["ownerReferences"][0]["kind"] == "Node"
    assert node["status"]["conditions"][0]["type"] == "Healthy"
    named = {"metadata": {"name": f"{cluster.node.name}-tierline.io"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    (device,) = api.get(kind | named)["spec"]["devices"]
    assert (device["name"], device["attributes"]["kind"]) == ("cpu", {"string": "cpu"})
    assert "Traceback" not in agent.log, agent.log


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_running_pods_outlive_the_agent(
    cluster: Running, agent: NodeAgent, running: Manifest, how: str
) -> None:
    if how == "killed":
        agent.kill()
    else:
        assert agent.stop() == 0
        sockets = [agent.kubelet_root / "plugins_registry" / "tierline.io-reg.sock"]
        assert not any(path.exists() for path in sockets)
    agent.start()

    more_jobs(cluster, running)
    (status,) = cluster.api.get(running)["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def test_a_pod_that_was_deleted_by_force_leaves_nothing(
    cluster: Running, agent: NodeAgent, namespace: str, running: Manifest
) -> None:
    agent.kill()
    cluster.api.delete(running, gracePeriodSeconds=0)
    cluster.api.wait_gone(running, PATIENCE_S)
    until("the claim is there", lambda: not claims_of(cluster, namespace), PATIENCE_S)
    agent.start()

    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def test_a_claim_that_the_operator_did_not_allocate_is_refused(
    cluster: Running, agent: NodeAgent, namespace: str
) -> None:
    api = cluster.api
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    metadata = {"name": "own", "namespace": namespace}
    request = {"name": REQUEST, "exactly": {"deviceClassName": DRIVER}}
    claim = kind | {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    api.create(claim)
    wanted = pod(
        namespace, "own", "sleep 600", resourceClaims=[{"name": "own", "resourceClaimName": "own"}]
    )
    wanted["spec"]["containers"][0]["resources"] = {"claims": [{"name": "own"}]}
    here = {"key": "metadata.name", "operator": "In", "values": [cluster.node.name]}
    share = {"pool": cluster.node.name, "device": "cpu", "shareID": str(uuid4())}
    allocation = {
        "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        "devices": {"results": [{"request": REQUEST, "driver": DRIVER, **share}]},
    }
    api.merge(claim, {"status": {"allocation": allocation}}, subresource="status")
    api.create(wanted)

    def told() -> bool:
        events = api.list("events.k8s.io/v1", "Event", namespace)
        said = [e["note"] for e in events if e["reason"] == "NotAllocated"]
        return any("annotate the pod with tierline.io/task" in note for note in said)

    until("no event says what to do", told, PATIENCE_S)
    assert phase(api.get(wanted)) == "Pending"
    assert not agent.traces()
    api.delete(wanted, gracePeriodSeconds=0)
    api.wait_gone(wanted, PATIENCE_S)
    api.delete(claim)


def test_a_task_without_a_profile_is_measured_and_then_streams(
    cluster: Running, agent: NodeAgent, operator: Operator, namespace: str
) -> None:
    api = cluster.api
    api.create(memtask(namespace, "camera"))
    wanted = camera(namespace)
    wanted["spec"]["restartPolicy"] = "Always"
    api.create(wanted)
    made = api.wait(memprofile(namespace, "camera"), lambda _: True, PATIENCE_S)
    assert [layer["bytes"] for layer in made["spec"]["layers"]] == [EXTENT_BYTES] * EXTENTS
    assert made["spec"]["device"]["product"] == processor_name()

    def streams(one: Manifest) -> bool:
        statuses = api.get(one)["status"].get("containerStatuses") or [{}]
        running = "running" in (statuses[0].get("state") or {})
        return running and jobs_of(cluster, one) >= 3

    until("it does not stream", lambda: streams(wanted), PATIENCE_S)

    # The only device is in use now.
    second = memtask(namespace, "second")
    second["spec"]["realtime"]["measuringLimit"] = "500ms"
    api.create(second)
    second = camera(namespace, "second")
    second["spec"]["restartPolicy"] = "Always"
    api.create(second)
    until("the second does not stream", lambda: streams(second), PATIENCE_S)
    more_jobs(cluster, wanted)
    for one in (wanted, second):
        api.delete(one, gracePeriodSeconds=1)
        api.wait_gone(one, PATIENCE_S)
    for name in ("camera", "second"):
        forget(cluster, namespace, name)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def test_jobs_that_take_longer_than_their_profile_says_are_planned_with(
    cluster: Running, agent: NodeAgent, operator: Operator, namespace: str, tmp_path: Path
) -> None:
    api, compute = cluster.api, tmp_path / "compute"
    compute.write_text("0")
    deadlines_s = {"camera": 6, "lidar": 3}
    for name, deadline_s in deadlines_s.items():
        api.create(memprofile(namespace, name))
        api.create(memtask(namespace, name, f"{deadline_s}s"))
        wanted = camera(namespace, name)
        (container,) = wanted["spec"]["containers"]
        container["env"] += [{"name": "DEADLINE_S", "value": str(deadline_s)}]
        if name == "camera":
            container["env"] += [{"name": "COMPUTE", "value": "/compute"}]
            container["volumeMounts"] = [{"name": "compute", "mountPath": "/compute"}]
            file = {"path": str(compute), "type": "File"}
            wanted["spec"]["volumes"] = [{"name": "compute", "hostPath": file}]
        api.create(wanted)
    pods = {name: camera(namespace, name) for name in deadlines_s}
    tasks = {name: memtask(namespace, name) for name in deadlines_s}
    for wanted in pods.values():
        api.wait(wanted, lambda found: phase(found) == "Running", PATIENCE_S)
        more_jobs(cluster, wanted)

    def remeasured(found: Manifest) -> bool:
        """With the time below; a busy machine's jobs may have taken longer than planned before."""
        rows = found["status"].get("remeasured") or []
        return any(parse_duration(row["computeTime"]) > 0.25 for row in rows)

    def met(found: Manifest) -> str:
        reason: str = conditions(found).get("DeadlinesMet", {}).get("reason", "")
        return reason

    # What still holds is proven again, and others keep their deadlines.
    compute.write_text("0.3")
    found = api.wait(tasks["camera"], remeasured, PATIENCE_S)
    (learned,) = found["status"]["remeasured"]  # it may rise: a busy machine's jobs take longer
    assert learned["node"] == cluster.node.name
    api.wait(tasks["camera"], lambda t: met(t) == "NoMisses", PATIENCE_S)

    def predicted_s() -> float:
        plans = map(plan_in, claims_of(cluster, namespace))
        return max(parse_duration(plan["predictedJobTime"]) for plan in plans)

    until("no plan predicts it", lambda: predicted_s() > 0.3, PATIENCE_S)
    before = api.get(tasks["lidar"])["status"]["observed"]["jobs"]
    found = api.wait(
        tasks["lidar"], lambda t: t["status"]["observed"]["jobs"] > before + 3, PATIENCE_S
    )
    assert met(found) == "NoMisses"

    # A restarted operator knows it: by its profile, this one would fit.
    operator.kill()
    operator.start()
    api.create(memprofile(namespace, "radar"))
    api.create(memtask(namespace, "radar", "200ms"))
    radar = memtask(namespace, "radar")
    api.wait(radar, lambda t: (t.get("status") or {}).get("reason") == "DeadlineInfeasible")
    assert remeasured(api.get(tasks["camera"])), "forgotten by the restart"
    forget(cluster, namespace, "radar")

    # A profile that says it takes the place of what was learned.
    api.apply(memprofile(namespace, "camera", 50))
    api.wait(tasks["camera"], lambda t: not remeasured(t), PATIENCE_S)

    # What no longer holds is said.
    compute.write_text("3")
    for name in deadlines_s:
        api.wait(tasks[name], lambda t: met(t) == "OverrunsNotHeld", PATIENCE_S)
    for wanted in pods.values():
        api.delete(wanted, gracePeriodSeconds=1)
        api.wait_gone(wanted, PATIENCE_S)
    for name in deadlines_s:
        forget(cluster, namespace, name)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)
