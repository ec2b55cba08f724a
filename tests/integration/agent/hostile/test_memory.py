from __future__ import annotations

import mmap
import signal
import urllib.request

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    LEAVING_PROGRAM,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import TIMEOUT_S, RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


def flip_bits_of(agent: AgentProcess, data: bytes) -> None:
    """Damage stored content on its medium, without the agent's knowledge."""
    with agent.store.open("r+b") as file, mmap.mmap(file.fileno(), 0) as medium:
        at = medium.find(data[:64])
        assert at >= 0
        medium[at + 100] ^= 0x10


def test_damage_is_found_in_the_middle_of_a_stream_and_never_shown(agent: AgentProcess) -> None:
    agent.register("victim", plan(8))
    agent.register("other", plan(8))
    victim, other = agent.client("victim"), agent.client("other")
    data = content(100, 8)
    arena, other_arena = victim.load(data), other.load(content(2, 8))
    flip_bits_of(agent, data[5 * EXTENT_BYTES :])

    job = victim.begin(0)
    for extent in range(5):
        assert arena.wait_published(extent + 1)
        assert arena.read_extent(extent) == data[extent * EXTENT_BYTES :][:EXTENT_BYTES]
        arena.consume(extent + 1)
    revoke = victim.expect(p.Revoke)
    assert (revoke.job, revoke.reason) == (job, p.ErrorCode.CORRUPT)
    assert arena.published() == 5

    waiting = other.begin(0, wait=False)
    victim.send(p.Ack(job))
    assert other.expect(p.Grant).job == waiting
    assert other_arena.read_in_job() == content(2, 8)
    other.end(waiting)
    with pytest.raises(RefusedError) as refused:
        victim.end(job)
    assert refused.value.code is p.ErrorCode.REVOKED
    with pytest.raises(RefusedError) as refused:
        victim.ask(p.Fetch(0, 5, 0), p.Fetched)
    assert refused.value.code is p.ErrorCode.CORRUPT
    task = agent.task("victim")
    assert (task["revoked"], task["misses"]) == (1, 1)
    assert "digest" in task["notices"][-1]["text"]


def test_a_client_that_does_not_acknowledge_a_revocation_is_killed(agent: AgentProcess) -> None:
    agent.restart_with(revoke_grace_s=0.05)
    agent.register("victim", plan(4))
    agent.register("other", plan(4))
    victim = agent.program("victim", 100, 4, LEAVING_PROGRAM)
    flip_bits_of(agent, content(100, 4))
    victim.tell("job")  # its end may come before its answer
    assert victim.process.wait(TIMEOUT_S) == -signal.SIGKILL
    agent.client("other").begin(p.NO_ARENA)
    assert agent.task("victim")["clients"] == []


def test_faults_outside_jobs_are_served_from_the_tier(agent: AgentProcess) -> None:
    agent.register("task", plan(6, resident=(2,)))
    program = agent.program("task", 1, 6)
    assert program.do("whole") == program.expected
    assert program.do("job") == program.expected


def test_a_fetched_extent_is_checked_where_the_client_cannot_write(agent: AgentProcess) -> None:
    agent.register("task", plan(3))
    client = agent.client("task")
    data = content(1, 3)
    client.load(data)
    for extent in range(3):
        fetched = client.ask(p.Fetch(0, extent, extent), p.Fetched)
        part = data[extent * EXTENT_BYTES :][:EXTENT_BYTES]
        assert client.staging is not None
        begin = extent * EXTENT_BYTES
        assert fetched.length == len(part)
        assert client.staging[begin : begin + fetched.length] == part


def test_freed_extents_are_reused_inside_their_domain_only(agent: AgentProcess) -> None:
    secret = b"\xa5" * EXTENT_BYTES
    agent.register("first", plan(8, resident=tuple(range(8)), ring=0), domain="one")
    first = agent.client("first")
    arena = first.load(secret * 8)
    agent.call("remove", name="first")
    # the process lives and has them mapped: they are neither free nor gone
    assert agent.extents()["draining"] == 8
    agent.register("second", plan(9, resident=tuple(range(9)), ring=0), domain="two")
    second = agent.client("second")
    with pytest.raises(RefusedError) as refused:
        second.reserve(9 * EXTENT_BYTES)
    assert refused.value.code is p.ErrorCode.QUOTA
    assert "still mapped" in str(refused.value)
    assert arena.read_extent(0) == secret


def test_memory_of_another_domain_comes_back_empty(agent: AgentProcess) -> None:
    agent.register("first", plan(16, resident=tuple(range(16)), ring=0), domain="one")
    first = agent.program("first", 1, 16)
    assert first.do("free") == "freed"
    assert agent.extents()["free"] == 16
    agent.call("remove", name="first")
    agent.register("second", plan(16, resident=tuple(range(16)), ring=0), domain="two")
    second = agent.client("second")
    arena = second.reserve(16 * EXTENT_BYTES)
    for extent in range(16):
        assert arena.read_extent(extent) == bytes(EXTENT_BYTES)
    assert agent.extents() == {"free": 0, "resident": 16, "ring": 0, "workspace": 0, "draining": 0}


def test_equal_content_of_one_domain_is_stored_once(agent: AgentProcess) -> None:
    for name, domain in (("a", "one"), ("b", "one"), ("c", "two")):
        agent.register(name, plan(4), domain=domain)
        agent.client(name).load(content(1, 4))
    (tier,) = agent.snapshot()["tiers"]
    assert tier["referenced"] == 8


def test_the_peak_counts_extents_workspace_and_what_left_management(agent: AgentProcess) -> None:
    agent.register("task", plan(4, resident=(0,), ring=2, workspace=1000))
    client = agent.client("task")
    client.load(content(1, 4))
    extents = 3 * EXTENT_BYTES
    assert agent.snapshot()["fast_peak_bytes"] == extents
    job = client.begin(0)
    assert agent.snapshot()["fast_used_bytes"] == extents + 1000
    client.send(p.Notice(p.NoticeKind.STAYS_RESIDENT, 70, "one tensor"))
    client.send(p.Notice(p.NoticeKind.PINNED, EXTENT_BYTES, "in an extent, and counted as that"))
    client.end(job)
    snapshot = agent.snapshot()
    assert snapshot["fast_peak_bytes"] == extents + 1070
    assert snapshot["fast_used_bytes"] == extents + 70
    assert agent.task("task")["notices"][0]["kind"] == "stays_resident"


def test_metrics_are_served(agent: AgentProcess) -> None:
    agent.restart_with(metrics_port=0)
    agent.register("task", plan(4))
    client = agent.client("task")
    arena = client.load(content(1, 4))
    job = client.begin(0)
    arena.read_in_job()
    client.end(job)
    address = agent.metrics_address()

    def text() -> str:
        with urllib.request.urlopen(address, timeout=60) as reply:  # noqa: S310 - http on localhost
            return str(reply.read(), "utf-8")

    lines = (
        'tierline_task_tier_bytes{domain="default",task="task",tier="dram"}',
        'tierline_jobs_total{domain="default",task="task"} 1.0',
        'tierline_deadline_misses_total{domain="default",task="task"} 0.0',
        'tierline_extents{device="cpu",state="ring"} 2.0',
        "tierline_lease_wait_seconds_count 1.0",
        "tierline_swap_in_latency_seconds_count 6.0",  # two of them ahead of the next job
        'tierline_link_bytes_total{device="",link="h2d"}',
    )

    def missing() -> list[str]:
        shown = text()
        return [line for line in lines if line not in shown]

    wait_until(lambda: not missing(), "everything is shown")
