"""What is counted of tasks."""

import inspect
import re

import pytest
from prometheus_client import REGISTRY

from tierline_api.objects.conditions import Reason
from tierline_api.objects.memtask_status import MemTaskStatus, Phase
from tierline_operator.metrics import show_tasks
from tierline_operator.placement import saying
from tierline_operator.placement.books import verdict

SAID = {
    Reason[name]
    for module in (saying, verdict)
    for name in re.findall(r"Reason\.([A-Z_]+)", inspect.getsource(module))
} - {Reason.ADMITTED, Reason.CHANGE_REFUSED, Reason.PROFILE_FOUND}


@pytest.mark.parametrize("reason", sorted(SAID))
def test_whoever_is_not_admitted_is_counted_by_its_reason(reason: Reason) -> None:
    labels = {"reason": reason.value}
    show_tasks([MemTaskStatus(phase=Phase.REFUSED, reason=reason.value)])
    assert REGISTRY.get_sample_value("tierline_operator_blocked_tasks", labels) == 1
    show_tasks([])
    assert REGISTRY.get_sample_value("tierline_operator_blocked_tasks", labels) == 0
