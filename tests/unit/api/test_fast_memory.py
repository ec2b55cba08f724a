from __future__ import annotations

import pytest

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.fast_memory import Contexts, Workspace, WorkspaceCharge, charge
from tierline_api.objects.memnode import Device

E = 10


@pytest.mark.parametrize(
    ("workspaces", "overlay", "in_extents", "apart"),
    [
        ([], False, 0, 0),
        ([("a", 15, False), ("a", 20, False), ("b", 7, False)], True, 0, 20),
        ([("a", 15, False), ("a", 20, False), ("b", 7, False)], False, 0, 42),
        ([("a", 15, True), ("a", 22, True)], False, 30, 0),
        ([("a", 15, True), ("b", 22, True)], False, 50, 0),
        ([("a", 15, True), ("a", 22, False), ("a", 4, False)], False, 20, 26),
        ([("a", 15, True), ("a", 22, False)], True, 0, 22),
    ],
    ids=[
        "nothing",
        "given back between jobs: the largest",
        "kept between jobs: all of them",
        "extents of a domain: the largest, whole ones",
        "extents of two domains: both",
        "swapped programs among others",
        "given back between jobs: whatever it lies in",
    ],
)
def test_what_workspaces_take_together(
    workspaces: list[tuple[str, int, bool]], overlay: bool, in_extents: int, apart: int
) -> None:
    found = charge((Workspace(*one) for one in workspaces), E, overlay=overlay)
    assert found == WorkspaceCharge(in_extents, apart)
    assert found.total_bytes == in_extents + apart


def test_contexts_are_those_of_the_tasks_and_the_agent() -> None:
    contexts = Contexts(each_bytes=5, outside_bytes=15)
    assert [contexts.missing_bytes(tasks) for tasks in (0, 2, 3, 4)] == [0, 0, 5, 10]


@pytest.mark.parametrize(
    ("kind", "said", "overlays"),
    [
        (DeviceKind.CPU, None, True),
        (DeviceKind.CUDA, None, False),
        (DeviceKind.CUDA, True, True),
        (DeviceKind.CPU, False, False),
    ],
)
def test_a_device_says_whether_workspaces_overlay(
    kind: DeviceKind, said: bool | None, overlays: bool
) -> None:
    device = Device(
        name="x",
        kind=kind,
        product="x",
        fast_bytes=65536,
        extent_bytes=65536,
        workspaces_overlay=said,
    )
    assert device.overlays == overlays
