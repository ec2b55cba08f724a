from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tierline_agent.errors import ConfigError, NotAdmitted, QuotaExceeded
from tierline_agent.registration import Registration, parse_registration
from tierline_agent.registry import Capacity, DeviceCapacity, Start, TaskRegistry

E = 1 << 16
CAPACITY = Capacity({"cpu": DeviceCapacity(10 * E, E)}, {"dram": 20, "nvme": 8})


def registration(
    name: str,
    *,
    domain: str = "default",
    extents: int = 4,
    resident: int = 0,
    ring: int = 1,
    workspace: int = 0,
    tier: str = "dram",
) -> Registration:
    return parse_registration(
        {
            "name": name,
            "domain": domain,
            "period_ns": 10,
            "deadline_ns": 10,
            "plan": {
                "extentBytes": E,
                "extentCount": extents,
                "residentExtents": list(range(resident)),
                "ringExtents": ring,
                "workspaceBytes": workspace,
                "homes": [{"tier": tier, "extents": extents}] if extents else [],
                "predictedJobTime": "1ms",
                "predictedResponseTime": "1ms",
            },
        }
    )


def registry(tmp_path: Path) -> TaskRegistry:
    return TaskRegistry(tmp_path / "tasks.json", CAPACITY, limit=4)


def test_a_plan_is_for_one_device(tmp_path: Path) -> None:
    gpu = DeviceCapacity(4 * E, E, ("0", "GPU-1"))
    capacity = Capacity({"cpu": DeviceCapacity(8 * E, E), "gpu-0": gpu}, {"dram": 40})
    tasks = TaskRegistry(tmp_path / "tasks.json", capacity, limit=9)
    for number, (device, home) in enumerate(
        [("cpu", "cpu"), ("gpu-0", "gpu-0"), ("0", "gpu-0"), ("GPU-1", "gpu-0")]
    ):
        wanted = registration(f"t{number}").model_copy(update={"device": device})
        assert tasks.register(wanted).device == home
    assert tasks.planned_bytes("cpu") == tasks.planned_bytes("gpu-0") == E
    with pytest.raises(ConfigError, match="names no device"):
        tasks.register(registration("lost"))
    with pytest.raises(ConfigError, match="this node has cpu, gpu-0"):
        tasks.register(registration("lost").model_copy(update={"device": "7"}))
    large = registration("large", extents=5, resident=4).model_copy(update={"device": "0"})
    with pytest.raises(QuotaExceeded, match="are missing"):
        tasks.register(large)


def test_contexts_take_memory_next_to_the_fast_memory(tmp_path: Path) -> None:
    gpu = DeviceCapacity(8 * E, E, memory_bytes=11 * E, context_bytes=E)
    tasks = TaskRegistry(tmp_path / "tasks.json", Capacity({"gpu-0": gpu}, {"dram": 40}), limit=9)
    tasks.register(registration("first"))
    tasks.register(registration("second"))
    with pytest.raises(QuotaExceeded, match="contexts of 3 tasks and the agent take 262144 bytes"):
        tasks.register(registration("third"))


def test_programs_that_keep_their_workspaces_are_charged_for_all_of_them(tmp_path: Path) -> None:
    gpu = DeviceCapacity(10 * E, E, overlay=False)
    tasks = TaskRegistry(tmp_path / "tasks.json", Capacity({"gpu-0": gpu}, {"dram": 40}), limit=9)
    tasks.register(registration("first", resident=1, workspace=3 * E))
    tasks.register(registration("second", workspace=2 * E))
    tasks.register(registration("swapped", extents=0, ring=0, workspace=E + 1))
    tasks.register(registration("in-turn", extents=0, ring=0, workspace=E))
    assert tasks.planned_bytes("gpu-0") == (1 + 1 + 3 + 2 + 2) * E
    assert tasks.reserved_bytes("gpu-0") == (2 * E, 5 * E)
    with pytest.raises(QuotaExceeded, match=f"{7 * E} of them for workspaces, which programs here"):
        tasks.register(registration("third", workspace=2 * E))


@pytest.mark.parametrize(
    ("held", "wanted", "why"),
    [
        ([], {"extents": 12, "resident": 10, "ring": 1}, "65536 bytes are missing"),
        ([{"resident": 4}], {"extents": 8, "resident": 5, "ring": 2}, "65536 bytes are missing"),
        ([{"workspace": 5 * E}], {"resident": 4, "ring": 1, "workspace": 5 * E}, None),
        ([{"workspace": 5 * E}], {"extents": 9, "resident": 4, "ring": 2}, "65536 bytes"),
        ([{"ring": 4}], {"ring": 4}, None),
        ([{"ring": 4}], {"extents": 8, "ring": 7, "domain": "other"}, "65536 bytes are missing"),
        ([{"extents": 15}], {"extents": 6}, "store 21 extents"),
        ([], {"extents": 9, "tier": "nvme"}, "store 9 extents"),
        ([], {"tier": "pmem"}, "this node has dram, nvme"),
    ],
    ids=[
        "residents and a ring",
        "residents of both",
        "workspaces overlay",
        "the largest workspace counts",
        "a domain shares its ring",
        "domains do not",
        "a tier for all",
        "a small tier",
        "no such tier",
    ],
)
def test_what_fits_together(
    tmp_path: Path, held: list[dict[str, Any]], wanted: dict[str, Any], why: str | None
) -> None:
    tasks = registry(tmp_path)
    for number, values in enumerate(held):
        tasks.register(registration(f"held-{number}", **values))
    if why is None:
        tasks.register(registration("wanted", **wanted))
        assert tasks.planned_bytes("cpu") <= 10 * E
        return
    with pytest.raises(QuotaExceeded, match=why):
        tasks.register(registration("wanted", **wanted))
    assert [task.name for task in tasks] == [f"held-{number}" for number in range(len(held))]


def test_registrations_and_their_start_are_read_back(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    tasks.register(registration("a", resident=2, workspace=5))
    tasks.register(registration("b", domain="other"))
    tasks.set_start(Start(3, 4))
    again = registry(tmp_path)
    assert again.load() == []
    assert [task.registration for task in again] == [task.registration for task in tasks]
    assert again.start == Start(3, 4)
    assert again.reserved_bytes("cpu") == (5, 0)
    assert again.ring_slots("cpu", "other") == 1


def test_what_no_longer_fits_is_dropped_in_words(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    tasks.register(registration("small"))
    tasks.register(registration("large", extents=9, resident=8))
    smaller = Capacity({"cpu": DeviceCapacity(4 * E, E)}, CAPACITY.tier_slots)
    again = TaskRegistry(tmp_path / "tasks.json", smaller, limit=4)
    (sentence,) = again.load()
    assert "large" in sentence
    assert [task.name for task in again] == ["small"]


def test_a_name_is_registered_once(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    first = tasks.register(registration("a"))
    assert tasks.register(registration("a")) is first
    with pytest.raises(ConfigError, match="remove it first"):
        tasks.register(registration("a", resident=1))
    tasks.remove("a")
    with pytest.raises(NotAdmitted):
        tasks.remove("a")


def test_the_number_of_tasks_is_bounded(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    for number in range(4):
        tasks.register(registration(f"task-{number}"))
    with pytest.raises(QuotaExceeded, match="4 tasks"):
        tasks.register(registration("one-more"))


def test_terms_change_in_place_and_a_plan_when_nobody_has_its_arenas(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    task = tasks.register(registration("a"))
    faster = registration("a").model_copy(update={"deadline_ns": 5})
    assert tasks.revise(faster) is task
    assert task.registration.deadline_ns == 5

    task.arena_users.add("a client")
    larger = registration("a", resident=2)
    tasks.revise(larger)
    assert (task.registration.deadline_ns, len(task.plan.resident_extents)) == (10, 0)
    slower = task.plan.model_copy(update={"predicted_response_time_s": 0.002})
    tasks.revise(registration("a").model_copy(update={"plan": slower}))
    assert task.plan.predicted_response_time_s == 0.002

    task.arena_users.clear()
    tasks.revise(larger)
    assert len(task.plan.resident_extents) == 2
    again = registry(tmp_path)
    assert again.load() == []
    assert again.get("a").registration == larger


def test_a_change_that_does_not_fit_leaves_a_task_as_it_was(tmp_path: Path) -> None:
    tasks = registry(tmp_path)
    tasks.register(registration("a"))
    tasks.register(registration("b", extents=8, resident=6))

    with pytest.raises(QuotaExceeded, match="bytes are missing"):
        tasks.revise(registration("a", resident=4))

    assert len(tasks.get("a").plan.resident_extents) == 0
    with pytest.raises(NotAdmitted):
        tasks.revise(registration("c"))
