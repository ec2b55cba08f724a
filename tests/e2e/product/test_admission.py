"""What a user sees of tasks that are admitted, and of those that have to wait."""

from __future__ import annotations

import re

import pytest
from tests.e2e.product.release import PATIENCE_S
from tests.e2e.product.tasks import Tasks
from tests.integration.operator.running import until

from tierline_api.objects.optin import GATE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_a_deployment_opts_in_by_annotation(tasks: Tasks) -> None:
    tasks.apply("camera")
    tasks.deployment("app", "camera")
    tasks.wait_running("app")
    tasks.wait_jobs("app")
    tasks.wait("camera", Ready="Running")


@pytest.mark.parametrize(
    ("extents", "policy", "reason"),
    [(5, "Resident", "MemoryInsufficient"), (40, "Stream", "TierInsufficient")],
    ids=["fast memory", "tier"],
)
def test_a_task_that_does_not_fit_waits_and_starts_when_another_goes(
    tasks: Tasks, extents: int, policy: str, reason: str
) -> None:
    tasks.apply_with_pods("first", extents=extents, policy=policy)
    tasks.wait("first", Ready="Running")
    tasks.apply_with_pods("second", extents=extents, policy=policy)
    found = tasks.wait("second", Admitted=reason)
    (said,) = (one for one in found["status"]["conditions"] if one["type"] == "Admitted")
    assert said["status"] == "False"
    assert re.search(r"\d MiB", said["message"]), said["message"]
    (pod,) = until("the pod is there", lambda: tasks.pods("second"), PATIENCE_S)
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]

    tasks.delete("first")
    tasks.wait("second", Ready="Running")
    tasks.wait_jobs("second")
