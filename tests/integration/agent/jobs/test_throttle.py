"""A task whose jobs keep others waiting beyond its plan, again and again, is throttled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan, wait_until
from tests.integration.agent.raw_client import RawClient

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

LIMIT_S = 0.5
HELD_S = 0.3
"""Below the limit: no job is stuck."""
BRIEF = {"predictedJobTime": "1ms", "predictedResponseTime": "200ms"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path, metrics_port=0, job_limit_s=LIMIT_S)
    process.start()
    yield process
    assert process.stop() == 0, process.log.read_text()


def _both(agent: AgentProcess, **terms: int) -> tuple[RawClient, RawClient]:
    """One whose jobs take longer than planned, and one that waits for them."""
    agent.register("greedy", plan(2) | BRIEF, **terms)
    agent.register("urgent", plan(2))
    _fill(agent)
    return agent.client("greedy"), agent.client("urgent")


def _fill(agent: AgentProcess) -> None:
    """One that is charged the whole device: what others owe is paid by their own charge alone."""
    agent.register("long", plan(2) | {"predictedJobTime": "1s"})


def _hold() -> None:
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + HELD_S, "it has had the device")


def _costs(agent: AgentProcess, greedy: RawClient, urgent: RawClient, *, warmup: bool) -> None:
    """A job keeps another one waiting for as long as it has the device."""
    job = greedy.begin(p.NO_ARENA, warmup=warmup)
    urgent.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "the other one waits")
    _hold()
    greedy.end(job)
    urgent.end(urgent.expect(p.Grant).job)


def test_a_task_that_owes_others_time_is_throttled_while_they_go_on(agent: AgentProcess) -> None:
    greedy, urgent = _both(agent, period_ns=10**12)
    for _ in range(2):
        assert agent.task("greedy")["throttled"] == 0
        _costs(agent, greedy, urgent, warmup=False)

    greedy.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.task("greedy")["throttled"] == 1, "it is throttled")
    for _ in range(5):  # nobody waits for it, and it does not for the device
        urgent.end(urgent.begin(p.NO_ARENA))
        assert agent.snapshot()["devices"][0]["waiting_jobs"] == 0
    assert agent.task("greedy")["jobs"] == 2
    (notice,) = agent.task("greedy")["notices"]
    assert notice["kind"] == "throttled"
    assert "may do so for 1.0% of the time" in notice["text"]
    greedy.close()
    wait_until(lambda: not agent.task("greedy")["clients"], "it may leave")
    again = agent.client("greedy")
    again.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.task("greedy")["throttled"] == 2, "another process owes it, too")


def test_a_new_claim_of_a_task_owes_what_the_one_before_it_did(agent: AgentProcess) -> None:
    """Else a pod that is started again and again owes nothing."""
    terms = {"memtask": "greedy", "period_ns": 10**12}
    agent.register("claim-1", plan(2) | BRIEF, **terms)
    agent.register("urgent", plan(2))
    _fill(agent)
    greedy, urgent = agent.client("claim-1"), agent.client("urgent")
    for _ in range(2):
        _costs(agent, greedy, urgent, warmup=False)
    greedy.close()
    assert agent.call("remove", name="claim-1")["ok"]

    agent.register("claim-2", plan(2) | BRIEF, **terms)
    agent.client("claim-2").begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.task("claim-2")["throttled"] == 1, "it is throttled")
    agent.register("other", plan(2) | BRIEF, period_ns=10**12)
    other = agent.client("other")
    other.end(other.begin(p.NO_ARENA))


def test_a_job_that_waits_is_throttled_for_what_its_task_owes_by_its_turn(
    agent: AgentProcess,
) -> None:
    """Else each process of a task could have one under way, and all of them take too long."""
    greedy, urgent = _both(agent, period_ns=10**8, deadline_ns=10**8)
    second = agent.client("greedy")
    _costs(agent, greedy, urgent, warmup=False)
    job = greedy.begin(p.NO_ARENA, deadline_s=0.1)
    urgent.begin(p.NO_ARENA, wait=False)
    second.begin(p.NO_ARENA, deadline_s=0.1, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 2, "both wait")
    assert agent.task("greedy")["throttled"] == 0
    _hold()
    greedy.end(job)
    urgent.end(urgent.expect(p.Grant).job)  # though the second one is due sooner
    assert agent.task("greedy")["throttled"] == 1
    assert agent.snapshot()["devices"][0]["waiting_jobs"] == 0


def test_a_job_that_was_throttled_does_not_come_before_those_that_have_waited(
    agent: AgentProcess,
) -> None:
    """It is due its deadline after it was let go, not after it began."""
    greedy, urgent = _both(agent, period_ns=2 * 10**7, deadline_ns=2 * 10**7)
    agent.register("waits", plan(2), deadline_ns=5 * 10**8)
    waits, long = agent.client("waits"), agent.client("long")
    for _ in range(2):
        _costs(agent, greedy, urgent, warmup=False)
    holds = long.begin(p.NO_ARENA)
    waits.begin(p.NO_ARENA, deadline_s=0.5, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    greedy.begin(p.NO_ARENA, deadline_s=0.02, wait=False)
    wait_until(lambda: agent.task("greedy")["throttled"] == 1, "it is throttled")
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 2, "it is let go")
    long.end(holds)
    waits.end(waits.expect(p.Grant).job)
    greedy.end(greedy.expect(p.Grant).job)


def test_a_task_owes_for_as_long_as_it_keeps_what_was_revoked(agent: AgentProcess) -> None:
    """Its limit is what it may cost by mistake; beyond that it was told."""
    greedy, urgent = _both(agent, period_ns=10**12)
    job = greedy.begin(p.NO_ARENA)
    urgent.begin(p.NO_ARENA, wait=False)
    assert greedy.expect(p.Revoke).job == job
    _hold()
    greedy.send(p.Ack(job))
    urgent.end(urgent.expect(p.Grant).job)
    greedy.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.task("greedy")["throttled"] == 1, "it is throttled")


def test_a_task_owes_nothing_to_its_own_processes(agent: AgentProcess) -> None:
    agent.register("alone", plan(2) | BRIEF, period_ns=10**12)
    first, second = agent.client("alone"), agent.client("alone")
    for _ in range(3):
        _costs(agent, first, second, warmup=False)
    first.end(first.begin(p.NO_ARENA))
    assert agent.task("alone")["throttled"] == 0


def test_what_is_owed_is_paid_off(agent: AgentProcess) -> None:
    greedy, urgent = _both(agent, period_ns=2 * 10**6, deadline_ns=2 * 10**6)
    for _ in range(2):
        _costs(agent, greedy, urgent, warmup=False)
    greedy.end(greedy.begin(p.NO_ARENA))


def test_first_jobs_owe_for_themselves(agent: AgentProcess) -> None:
    """A program that took long to start is not throttled when it runs."""
    greedy, urgent = _both(agent, period_ns=10**12)
    for _ in range(3):
        _costs(agent, greedy, urgent, warmup=True)
    greedy.end(greedy.begin(p.NO_ARENA))
    assert agent.task("greedy")["throttled"] == 0


def test_nothing_is_owed_where_nobody_waits(agent: AgentProcess) -> None:
    agent.register("greedy", plan(2) | BRIEF, period_ns=10**12)
    greedy = agent.client("greedy")
    for _ in range(3):
        job = greedy.begin(p.NO_ARENA)
        _hold()
        greedy.end(job)
    greedy.end(greedy.begin(p.NO_ARENA))
    assert agent.task("greedy")["throttled"] == 0
