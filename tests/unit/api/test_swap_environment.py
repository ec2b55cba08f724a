"""What a program's library is told of its memory under policy Swap."""

from __future__ import annotations

import pytest

from tierline_api.objects.plan import Plan
from tierline_api.objects.swap import Swap


def plan(**changes: object) -> Plan:
    return Plan.from_api(
        {
            "extentBytes": 2 << 20,
            "extentCount": 0,
            "residentExtents": [],
            "ringExtents": 0,
            "workspaceBytes": 1 << 30,
            "homes": [],
            "predictedJobTime": "100ms",
            "predictedResponseTime": "200ms",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("objects", "numbers"),
    [
        ([], None),
        ([("#3", "Stream"), ("#8-", "Stream"), ("#0-1", "Stream")], "0-1,3,8-"),
        ([("#3", "Resident")], "0-2,4-"),
        ([("#0-9", "Stream"), ("#2-4", "Resident"), ("#9", "Resident")], "0-1,5-8"),
        ([("#0-", "Resident")], ""),
    ],
    ids=["all", "some", "all but one", "some but others", "none"],
)
def test_objects_are_numbers_of_allocations(
    objects: list[tuple[str, str]], numbers: str | None
) -> None:
    swap = Swap.from_api(
        {
            "policy": "Swap",
            "objects": [{"name": name, "policy": policy} for name, policy in objects],
        }
    )
    words = {"TIERLINE_SWAP": str(1 << 30)}
    assert swap.environment(plan()) == (
        words if numbers is None else {**words, "TIERLINE_SWAP_OBJECTS": numbers}
    )


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("Auto", {}),
        (
            "Swap",
            {"extentCount": 1, "residentExtents": [0], "homes": [{"tier": "dram", "extents": 1}]},
        ),
        ("Swap", {"workspaceBytes": 0}),
    ],
    ids=["another policy", "a program with layers", "nothing to swap"],
)
def test_others_are_told_nothing(policy: str, changes: dict[str, object]) -> None:
    assert Swap.from_api({"policy": policy}).environment(plan(**changes)) == {}
