"""What the run time costs a job is charged alike by every planner."""

from __future__ import annotations

import pytest

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.planning import decide
from tierline_operator.placement.books.rules import Rules

ABOUT = {"apiVersion": "tierline.io/v1alpha1", "metadata": {"name": "one", "namespace": "n"}}


@pytest.mark.parametrize("kind", DeviceKind)
def test_a_local_run_and_the_operator_charge_a_device_alike(kind: DeviceKind) -> None:
    device = {
        **{"name": "d", "kind": kind.value, "product": "x"},
        **{"fastBytes": 2**30, "extentBytes": 2**20},
    }
    node = MemNode.from_api(
        {**ABOUT, "kind": "MemNode", "metadata": {"name": "n"}, "status": {"devices": [device]}}
    )
    realtime, memory = {"period": "1s"}, {"budget": "1Gi"}
    spec = {"realtime": realtime, "memory": memory, "device": {"kind": kind.value}}
    task = MemTask.from_api({**ABOUT, "kind": "MemTask", "spec": spec})
    layers = [{"name": "all", "bytes": 2**20, "computeTime": "1ms"}]
    measured = {"device": {"kind": kind.value, "product": "x"}, "layers": layers, "workspace": 0}
    profile = MemProfile.from_api({**ABOUT, "kind": "MemProfile", "spec": measured})
    rules = Rules().by_kind[kind]
    _, capacity = decide.question_of(task, profile, node, rules.margins.compute)
    assert (capacity.dispatch_s, capacity.gate_s) == (rules.dispatch_s, rules.gate_s)
    assert capacity.margins == rules.margins
