"""Jobs that give the device away at their gates, in real processes."""

from __future__ import annotations

import time
import urllib.request
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    AgentProcess,
    TaskProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

RING_KEEPING = {"scheduling": "RingKeeping", "layer_ns": 10**12, "penalty_ns": 10**9}
LATE_S, EARLY_S = 3000, 1000
EXTENTS = 12
UNHURRIED = {"predictedJobTime": "1000s"}
"""Added to plans of jobs that are not to be contained, however busy the machine is."""


def waiting(agent: AgentProcess) -> int:
    """How many jobs wait for the device."""
    found: int = agent.snapshot()["devices"][0]["waiting_jobs"]
    return found


def counted_in_metrics(agent: AgentProcess, task: str) -> tuple[float, float, float]:
    """Preemptions, late yields and contained jobs of a task, as Prometheus is told."""
    with urllib.request.urlopen(agent.metrics_address(), timeout=60) as answer:  # noqa: S310
        lines = answer.read().decode().splitlines()
    series = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = f'{{domain="default",task="{task}"}}'
    preemptions, late, contained = (
        float(series[f"tierline_{name}_total{labels}"])
        for name in ("preemptions", "late_yields", "contained_jobs")
    )
    return preemptions, late, contained


def long_begun(agent: AgentProcess, terms: dict[str, Any]) -> tuple[TaskProcess, TaskProcess]:
    """A long job that is preemptible and has begun, and a short task; both stream."""
    agent.register("long", plan(EXTENTS, ring=3), preemption=terms)
    agent.register("short", plan(4, ring=2))
    long, short = agent.program("long", 1, EXTENTS), agent.program("short", 2, 4)
    assert long.do(f"begin {LATE_S}") == "begun"
    return long, short


def ends(program: TaskProcess, extents: int) -> None:
    """Let a begun job read all of its extents to the last, and end; its bytes are right."""
    assert program.do(f"step {extents}") == str(extents)
    assert program.do("end") == program.expected


def parked(agent: AgentProcess, long: TaskProcess, short: TaskProcess) -> None:
    """Let the short job take the device from the long one, which stands at its next gate."""
    short.tell(f"begin {EARLY_S}")
    wait_until(lambda: waiting(agent) == 1, "the short job waits")
    long.tell("step 1")
    assert short.answer() == "begun"


@pytest.fixture
def terms() -> dict[str, Any]:
    return {**RING_KEEPING, "parked_bytes": 4096}


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_a_long_job_is_preempted_at_every_layer_and_reads_the_same(
    agent: AgentProcess, terms: dict[str, Any], resident: bool
) -> None:
    (device,) = agent.call("node")["node"]["status"]["devices"]
    assert device["preemption"] == ["LayerPreemptive", "RingKeeping"]
    unhurried = plan(EXTENTS, resident=(3,), ring=3) | UNHURRIED
    assert agent.register("long", unhurried, preemption=terms)["ok"]
    often = {"period_ns": 10**3, "deadline_ns": 10**3}  # its jobs follow one after another
    agent.register("short", plan(4, resident=(0, 1, 2, 3) if resident else (), ring=2), **often)
    long, short = agent.program("long", 1, EXTENTS), agent.program("short", 2, 4)
    for _ in range(2):
        assert long.do(f"begin {LATE_S}") == "begun"
        for layer in range(1, EXTENTS + 1):
            parked(agent, long, short)
            ends(short, 4)
            assert long.answer() == str(layer)
        assert long.do("end") == long.expected
    counted = agent.task("long")
    assert counted["preemptions"] == 2 * EXTENTS
    assert (counted["rings_lost"] == 0) == resident
    assert counted["fetched_bytes"] == 0
    assert counted["late_yields"] == 0
    assert counted_in_metrics(agent, "long") == (2 * EXTENTS, 0, 0)


def test_a_job_waits_parked_while_the_agent_is_killed_and_goes_on_under_the_next(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    long, short = long_begun(agent, terms)
    assert long.do("step 5") == "5"
    parked(agent, long, short)
    agent.kill()
    agent.start()
    ends(short, 4)
    assert long.answer() == "6"
    ends(long, EXTENTS)
    assert agent.task("long")["revoked"] == 0


def test_a_running_job_that_was_asked_yields_to_the_next_agent(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    long, short = long_begun(agent, terms)
    assert long.do("step 5") == "5"
    short.tell(f"begin {EARLY_S}")
    wait_until(lambda: waiting(agent) == 1, "the short job waits")
    agent.kill()
    agent.start()
    wait_until(lambda: waiting(agent) == 1, "the short job waits again")
    long.tell("step 1")
    assert short.answer() == "begun"
    ends(short, 4)
    assert long.answer() == "6"
    ends(long, EXTENTS)


def test_a_client_killed_while_its_job_is_parked_leaves_nothing(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    long, short = long_begun(agent, terms)
    parked(agent, long, short)
    assert agent.snapshot()["devices"][0]["parked_bytes"] == 4096
    long.kill()
    wait_until(lambda: not agent.task("long")["clients"], "the parked one is gone")
    assert agent.snapshot()["devices"][0]["parked_bytes"] == 0
    ends(short, 4)
    assert short.do("job") == short.expected
    assert agent.task("long")["broken"] == 1
    assert agent.task("short")["misses"] == 0


def test_a_preempted_job_can_read_its_arena_again(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    long, short = long_begun(agent, terms)
    assert long.do("step 7") == "7"
    short.tell(f"begin {EARLY_S}")
    wait_until(lambda: waiting(agent) == 1, "the short job waits")
    assert long.do("step 0") == "0"  # asked meanwhile, it is still asked
    long.tell("step 1")
    assert short.answer() == "begun"
    ends(short, 4)
    assert long.answer() == "1"
    ends(long, EXTENTS)


def test_a_job_that_does_not_look_at_its_gates_runs_to_its_end_and_is_counted(
    shared_agent: AgentProcess, terms: dict[str, Any]
) -> None:
    rude_plan, rude_terms = plan(4) | UNHURRIED, {**terms, "layer_ns": 1}
    assert shared_agent.register("rude", rude_plan, preemption=rude_terms)["ok"]
    shared_agent.register("polite", plan(4))
    rude, polite = shared_agent.client("rude"), shared_agent.client("polite")
    arena = rude.load(content(1, 4))
    job = rude.begin(0, deadline_s=LATE_S)
    polite.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
    assert arena.wait_published(p.YIELD_BIT)
    rude.end(job)
    assert polite.expect(p.Grant)
    counted = shared_agent.task("rude")
    assert (counted["preemptions"], counted["late_yields"]) == (0, 1)
    assert counted["notices"][-1]["kind"] == "late-yield"
    assert counted_in_metrics(shared_agent, "rude") == (0, 1, 0)


def test_a_job_that_has_the_device_too_long_loses_its_rank(
    shared_agent: AgentProcess, terms: dict[str, Any]
) -> None:
    greedy_plan = {**plan(4), "predictedJobTime": "1ms"}
    assert shared_agent.register("greedy", greedy_plan, preemption=terms)["ok"]
    shared_agent.register("later", plan(4))
    greedy, later = shared_agent.client("greedy"), shared_agent.client("later")
    arena = greedy.load(content(1, 4))
    job, granted_ns = greedy.begin(0, deadline_s=EARLY_S), time.monotonic_ns()
    later.begin(p.NO_ARENA, deadline_s=LATE_S, wait=False)
    assert arena.wait_published(p.YIELD_BIT)  # its deadline is the earlier one
    # It has the device since a moment before the grant: that alone may make up the millisecond.
    wait_until(lambda: time.monotonic_ns() - granted_ns > 1_000_000, "it is over its plan")
    greedy.send(p.Yield(job, 0, 0, 0, 0, p.JobFlags(0)))
    held = later.expect(p.Grant).job
    later.end(held)
    assert greedy.expect(p.Resumed).job == job
    greedy.end(job)
    assert shared_agent.task("greedy")["contained"] == 1
    (record,) = [r for r in shared_agent.call("jobs", since=0)["jobs"] if r["task"] == "greedy"]
    had_ns = record["end_ns"] - record["granted_ns"] - record["parked_ns"]
    assert record["overrun_ns"] == had_ns > 1_000_000
    assert counted_in_metrics(shared_agent, "greedy") == (1, 0, 1)


def test_a_soft_job_that_comes_after_the_one_before_it_has_no_rank(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    agent.register("soft", plan(4) | UNHURRIED, preemption=terms, criticality="Soft")
    agent.register("later", plan(4))
    soft, later = agent.client("soft"), agent.client("later")
    arena = soft.load(content(1, 4))
    due_ns = time.monotonic_ns()
    soft.end(soft.begin(0, deadline_s=EARLY_S))
    # Its release was before the end of the job before it.
    job = soft.begin(0, deadline_s=EARLY_S, release_ns=due_ns)
    later.begin(p.NO_ARENA, deadline_s=LATE_S, wait=False)
    assert arena.wait_published(p.YIELD_BIT)  # its deadline is the earlier one
    soft.send(p.Yield(job, 0, 0, 0, 0, p.JobFlags(0)))
    later.end(later.expect(p.Grant).job)
    assert soft.expect(p.Resumed).job == job
    soft.end(job)
    assert agent.task("soft")["contained"] == 0


@pytest.mark.parametrize(
    ("asked", "position", "why"),
    [(False, 0, "was not asked to yield"), (True, 5, "cannot go on at 5")],
)
def test_what_no_gate_says_is_refused(
    shared_agent: AgentProcess, terms: dict[str, Any], asked: bool, position: int, why: str
) -> None:
    shared_agent.register("liar", plan(4), preemption=terms)
    shared_agent.register("other", plan(4))
    liar, other = shared_agent.client("liar"), shared_agent.client("other")
    arena = liar.load(content(1, 4))
    job = liar.begin(0, deadline_s=LATE_S)
    if asked:
        other.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
        assert arena.wait_published(p.YIELD_BIT)
    liar.send(p.Yield(job, 0, position, 0, 0, p.JobFlags(0)))
    with pytest.raises(RefusedError, match=why):
        liar.expect(p.Resumed)
    if not asked:
        other.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
    assert other.expect(p.Grant)


@pytest.mark.parametrize("message", ["end", "rewind", "yield"])
def test_a_parked_job_says_nothing_before_it_has_the_device_again(
    shared_agent: AgentProcess, terms: dict[str, Any], message: str
) -> None:
    shared_agent.register("liar", plan(4), preemption=terms)
    shared_agent.register("other", plan(4))
    liar, other = shared_agent.client("liar"), shared_agent.client("other")
    arena = liar.load(content(1, 4))
    job = liar.begin(0, deadline_s=LATE_S)
    held = other.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
    assert arena.wait_published(p.YIELD_BIT)
    yielding = p.Yield(job, 0, 0, 0, 0, p.JobFlags(0))
    liar.send(yielding)
    assert other.expect(p.Grant).job == held
    more: dict[str, p.Message] = {
        "end": p.JobEnd(job, 0, 0, 0, 0),
        "rewind": p.Rewind(job, 0, 0, 0),
    }
    liar.send(more.get(message, yielding))
    with pytest.raises(RefusedError, match="waits"):
        liar.expect(p.Resumed)
    other.end(held)


def test_a_job_without_gates_has_its_rank_only_while_it_is_no_longer_than_a_layer(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    layer_s = 3.0  # jobs that end at once are shorter, also where this process stands still
    agent.register("blind", plan(4), preemption={**terms, "layer_ns": int(layer_s * 1e9)})
    agent.register("other", plan(4))
    agent.register("third", plan(4))
    blind, other, third = (agent.client(name) for name in ("blind", "other", "third"))

    def runs_for(seconds: float) -> None:
        """One has the device, and another one with an earlier deadline waits so long."""
        job = blind.begin(p.NO_ARENA, deadline_s=LATE_S)
        other.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
        wait_until(lambda: waiting(agent) == 1, "the other one waits")
        begun = time.monotonic()  # the agent has asked for the device before it
        wait_until(lambda: time.monotonic() >= begun + seconds, "its time has passed")
        blind.end(job)
        other.end(other.expect(p.Grant).job)

    def goes_first() -> bool:
        """Whether its job is granted before one that is due later; it ends at once."""
        held = other.begin(p.NO_ARENA)
        job = blind.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
        later = third.begin(p.NO_ARENA, deadline_s=LATE_S, wait=False)
        wait_until(lambda: waiting(agent) == 2, "both wait")
        other.end(held)
        heard = wait([blind.socket, third.socket], 60)
        order = [(blind, job), (third, later)]
        for client, number in order if blind.socket in heard else reversed(order):
            assert client.expect(p.Grant).job == number
            client.end(number)
        return blind.socket in heard

    assert goes_first()
    assert agent.task("blind")["notices"] == []
    runs_for(layer_s)
    counted = agent.task("blind")
    assert counted["late_yields"] == 1
    assert [notice["kind"] for notice in counted["notices"]] == ["late-yield", "not-preemptible"]
    assert not goes_first()
    assert goes_first()
    assert agent.task("blind")["jobs"] == 4


def test_a_program_whose_jobs_yield_gets_no_workspace_in_extents(
    shared_agent: AgentProcess, terms: dict[str, Any]
) -> None:
    shared_agent.register("yields", plan(4, workspace=EXTENT_BYTES), preemption=terms)
    client = shared_agent.client("yields")
    with pytest.raises(RefusedError, match="plan it without"):
        client.ask(p.Workspace(EXTENT_BYTES, p.WorkspaceFlags(0)), p.WorkspaceLent)


def test_extents_that_go_bad_while_a_job_is_parked_revoke_it(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    data = content(1, EXTENTS)
    agent.register("long", plan(EXTENTS, ring=2), preemption=terms)
    agent.register("short", plan(4, resident=(0, 1, 2, 3), ring=0))
    long, short = agent.client("long"), agent.client("short")
    arena = long.load(data)
    job = long.begin(0, deadline_s=LATE_S)
    assert arena.wait_published(2)
    held = short.begin(p.NO_ARENA, deadline_s=EARLY_S, wait=False)
    assert arena.wait_published(p.YIELD_BIT)
    spoil(agent.store, data[5 * EXTENT_BYTES : 6 * EXTENT_BYTES])
    long.send(p.Yield(job, 0, 0, 0, 0, p.JobFlags(0)))
    assert short.expect(p.Grant).job == held
    arena.consume(4)  # its ring is kept, so its stream goes on, to extent 5
    assert long.expect(p.Revoke).job == job
    with pytest.raises(RefusedError, match="was revoked"):
        long.expect(p.Resumed)
    long.send(p.Ack(job))
    short.end(held)
    assert agent.task("long")["revoked"] == 1


def spoil(store: Path, part: bytes) -> None:
    """Change a byte of an extent where its tier has it."""
    with store.open("r+b") as file:
        held = file.read()
        at = held.index(part)
        file.seek(at + 1000)
        file.write(bytes([held[at + 1000] ^ 1]))


def test_preemption_is_refused_where_plans_of_a_device_differ_or_memory_is_short(
    shared_agent: AgentProcess, terms: dict[str, Any]
) -> None:
    assert shared_agent.register("one", plan(4), preemption=terms)["ok"]
    other = {**terms, "scheduling": "LayerPreemptive"}
    refused = shared_agent.register("two", plan(4), preemption=other)
    assert "plan them together" in refused["error"]
    much = {**terms, "parked_bytes": 16 * EXTENT_BYTES}
    refused = shared_agent.register("two", plan(4), preemption=much)
    assert "bytes are missing" in refused["error"]
    assert shared_agent.snapshot()["devices"][0]["scheduling"] == "RingKeeping"
