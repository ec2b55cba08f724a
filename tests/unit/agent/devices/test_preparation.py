"""For what another agent leaves room."""

from __future__ import annotations

from typing import Any

import pytest

from tierline_agent.devices.preparation import room_for_contexts

GPU = "GPU-1"


def said(memory: int, fast: int, context: int, tasks: int) -> dict[str, Any]:
    """What an agent with one GPU and so many tasks on it says; it has others elsewhere."""
    device = {
        "name": "gpu-0",
        "uuid": GPU,
        "memory_bytes": memory,
        "fast_limit_bytes": fast,
        "context_bytes": context,
    }
    here, elsewhere = {"device": "gpu-0"}, {"device": "cpu"}
    return {"devices": [device], "tasks": [here] * tasks + [elsewhere] * 9}


@pytest.mark.parametrize(
    ("tasks", "room"), [(0, {GPU: 5}), (1, {GPU: 5}), (2, {}), (3, {})], ids=str
)
def test_a_context_has_room_next_to_those_of_agent_and_tasks(
    tasks: int, room: dict[str, int]
) -> None:
    assert room_for_contexts(said(memory=100, fast=85, context=5, tasks=tasks)) == room


def test_who_says_nothing_leaves_no_room() -> None:
    assert room_for_contexts({}) == {}
    assert room_for_contexts({"devices": [{"name": "gpu-0", "uuid": GPU}]}) == {}
