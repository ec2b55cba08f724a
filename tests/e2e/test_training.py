"""A pod that trains in what another one leaves, which has a deadline."""

from __future__ import annotations

from typing import Any

import pytest
from tests import matrix
from tests.e2e.conftest import Running, phase
from tests.e2e.installed import PATIENCE_S, NodeAgent
from tests.e2e.test_agent import camera, forget, memprofile, memtask, more_jobs
from tests.e2e.torch_pod import torch_pod
from tests.integration.operator.running import Operator, conditions, until

from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # also on a busy machine
_CELL = matrix.Cell("3.10", "2.6")
_DEADLINE_S = 20


def _finetune(namespace: str) -> Manifest:
    """Measured while others run: no section of it takes half of their deadline."""
    asked = memtask(namespace, "finetune")
    del asked["spec"]["swap"]
    limit = f"{_DEADLINE_S // 2}s"
    realtime = {"period": "24h", "criticality": "BestEffort", "measuringLimit": limit}
    asked["spec"] |= {"training": {}, "realtime": realtime}
    return asked


def _trains(cluster: Running, namespace: str) -> Manifest:
    wanted = torch_pod(cluster, namespace, "finetune", _CELL, "training_program.py")
    (container,) = wanted["spec"]["containers"]
    container["volumeMounts"] += [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - PyTorch's
    wanted["spec"]["volumes"] += [{"name": "tmp", "emptyDir": {}}]  # optimizers want one
    return wanted


def _serves(namespace: str) -> Manifest:
    wanted = camera(namespace)
    (container,) = wanted["spec"]["containers"]
    container["env"] += [{"name": "DEADLINE_S", "value": str(_DEADLINE_S)}]
    return wanted


def test_a_pod_trains_in_what_another_leaves(
    cluster: Running, agent: NodeAgent, operator: Operator, namespace: str
) -> None:
    api, serves, trains = cluster.api, _serves(namespace), _trains(cluster, namespace)
    api.create(memprofile(namespace, "camera"))
    api.create(memtask(namespace, "camera", f"{_DEADLINE_S}s"))
    api.create(serves)
    api.wait(serves, lambda found: phase(found) == "Running", PATIENCE_S)
    api.create(_finetune(namespace))
    api.create(trains)

    made = api.wait(memprofile(namespace, "finetune"), lambda _: True, PATIENCE_S)
    assert made["spec"]["state"] not in {"", "0"}

    def steps(found: Manifest) -> int:
        seen: dict[str, Any] = (found.get("status") or {}).get("observed") or {}
        return int(seen.get("steps", 0))

    first = steps(api.wait(_finetune(namespace), lambda found: steps(found) > 0, PATIENCE_S))
    found = api.wait(_finetune(namespace), lambda found: steps(found) > first, PATIENCE_S)
    assert found["status"]["observed"]["jobs"] == 0
    assert found["status"]["shown"]["step"]
    assert conditions(found)["DeadlinesMet"]["message"] == "it trains, and has no deadline"
    more_jobs(cluster, serves)

    api.delete(trains, gracePeriodSeconds=1)
    api.wait_gone(trains, PATIENCE_S)
    forget(cluster, namespace, "finetune")
    more_jobs(cluster, serves)
    met = conditions(api.get(memtask(namespace, "camera")))["DeadlinesMet"]
    assert met["reason"] == "NoMisses", met
    api.delete(serves, gracePeriodSeconds=1)
    api.wait_gone(serves, PATIENCE_S)
    forget(cluster, namespace)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)
