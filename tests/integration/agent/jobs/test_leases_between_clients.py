from __future__ import annotations

import signal

import pytest
from tests.integration.agent.agent_process import (
    TIMEOUT_S,
    AgentProcess,
    content,
    plan,
    wait_until,
)

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("arena", [p.NO_ARENA, 0], ids=["lease alone", "with a stream"])
def test_the_earliest_deadline_gets_the_lease_next(shared_agent: AgentProcess, arena: int) -> None:
    names = ["holder", "late", "early", "middle"]
    clients = {}
    for seed, name in enumerate(names):
        shared_agent.register(name, plan(4))
        clients[name] = shared_agent.client(name)
        clients[name].load(content(seed, 4))
    held = clients["holder"].begin(arena)
    jobs = {
        "late": clients["late"].begin(arena, deadline_s=300, wait=False),
        "early": clients["early"].begin(arena, deadline_s=100, wait=False),
        "middle": clients["middle"].begin(arena, deadline_s=200, wait=False),
    }
    for name in jobs:  # an answer to what was sent later shows that JOB_BEGIN was taken in
        clients[name].send(p.Stats())
        assert isinstance(clients[name].receive()[1], p.Statistics)

    clients["holder"].end(held)
    order = []
    for name in ("early", "middle", "late"):
        grant = clients[name].expect(p.Grant)
        order.append(grant.granted_ns)
        clients[name].end(jobs[name])
    assert order == sorted(order)


def test_jobs_in_a_row_are_answered_in_order_and_each_is_counted_once(
    shared_agent: AgentProcess,
) -> None:
    shared_agent.register("hurried", plan(4))
    client = shared_agent.client("hurried")
    client.load(content(1, 4))
    first = client.begin(0)
    answers: list[p.Message] = []
    for job in range(first, first + 5):  # the end of one and the begin of the next in one piece
        client.send_bytes(
            p.encode(p.JobEnd(job, 1, 0, 0, 0), 1000 + job)
            + p.encode(p.JobBegin(job + 1, 0, p.JobFlags(0), 1, 1 << 60), 2000 + job)
        )
        answers += [client.receive()[1], client.receive()[1]]
    assert [type(answer) for answer in answers] == 5 * [p.Ended, p.Grant]
    assert client.ask(p.Stats(), p.Statistics).jobs == 5
    last = first + 5
    client.send_bytes(p.encode(p.JobEnd(last, 1, 0, 0, 0), 3000) + p.encode(p.Stats(), 3001))
    assert client.expect(p.Ended).job == last
    assert client.expect(p.Statistics).jobs == 6
    records = shared_agent.call("jobs", cursor=0)["jobs"]
    counted = [one["job"] for one in records if one["task"] == "hurried"]
    assert counted == list(range(first, last + 1))


def test_the_last_job_of_a_client_that_leaves_at_once_is_counted(
    shared_agent: AgentProcess,
) -> None:
    shared_agent.register("leaver", plan(2))
    leaver = shared_agent.client("leaver")
    job = leaver.begin(p.NO_ARENA)
    leaver.send(p.JobEnd(job, 1, 0, 0, 0))
    leaver.close()
    wait_until(lambda: not shared_agent.task("leaver")["clients"], "the leaver is gone")
    assert shared_agent.task("leaver")["jobs"] == 1
    assert shared_agent.task("leaver")["broken"] == 0


def test_warm_up_jobs_let_others_pass(shared_agent: AgentProcess) -> None:
    for name in ("holder", "loading", "running"):
        shared_agent.register(name, plan(2))
    holder, loading, running = (shared_agent.client(n) for n in ("holder", "loading", "running"))
    held = holder.begin(p.NO_ARENA)
    warm = loading.begin(p.NO_ARENA, deadline_s=1, warmup=True, wait=False)
    loading.send(p.Stats())
    assert isinstance(loading.receive()[1], p.Statistics)
    job = running.begin(p.NO_ARENA, deadline_s=100, wait=False)
    running.send(p.Stats())
    assert isinstance(running.receive()[1], p.Statistics)

    holder.end(held)
    assert running.expect(p.Grant).job == job
    running.end(job)
    assert loading.expect(p.Grant).job == warm
    loading.end(warm)
    assert shared_agent.task("loading")["jobs"] == 0
    assert shared_agent.task("loading")["warmup_jobs"] == 1


def test_a_client_killed_in_the_middle_of_a_job_loses_the_lease_and_its_memory(
    agent: AgentProcess,
) -> None:
    agent.register("victim", plan(8, resident=(0, 5)))
    agent.register("other", plan(8))
    victim = agent.program("victim", 1, 8)
    other = agent.program("other", 2, 8)
    assert victim.do("half") == "half"
    other.tell("job")
    victim.kill()
    assert other.answer() == other.expected
    left = {"free": 2, "resident": 0, "ring": 2, "workspace": 0, "draining": 0}
    wait_until(lambda: agent.extents() == left, "the victim's extents are free")
    assert agent.task("victim")["broken"] == 1
    assert agent.task("other")["misses"] == 0


def test_a_program_whose_job_takes_longer_than_its_limit_is_killed(agent: AgentProcess) -> None:
    agent.register("unknown", plan(2), job_limit_ns=50_000_000)
    agent.register("other", plan(2))
    unknown = agent.program("unknown", 1, 2)
    other = agent.client("other")
    unknown.tell("half")

    assert unknown.process.wait(TIMEOUT_S) == -signal.SIGKILL
    other.end(other.begin(p.NO_ARENA))
    wait_until(lambda: agent.task("unknown")["broken"] == 1, "its job is counted")
    assert [notice["kind"] for notice in agent.task("unknown")["notices"]] == ["too-long"]


def test_a_waiting_client_that_leaves_is_forgotten(shared_agent: AgentProcess) -> None:
    for name in ("holder", "leaver", "waiter"):
        shared_agent.register(name, plan(2))
    holder, leaver, waiter = (shared_agent.client(n) for n in ("holder", "leaver", "waiter"))
    held = holder.begin(p.NO_ARENA)
    leaver.begin(p.NO_ARENA, deadline_s=1, wait=False)
    leaver.close()
    wait_until(lambda: not shared_agent.task("leaver")["clients"], "the leaver is gone")
    job = waiter.begin(p.NO_ARENA, wait=False)
    holder.end(held)
    assert waiter.expect(p.Grant).job == job
    assert shared_agent.task("leaver")["broken"] == 0


def test_a_client_that_leaves_with_unread_messages_loses_the_lease(
    shared_agent: AgentProcess,
) -> None:
    for name in ("leaver", "waiter"):
        shared_agent.register(name, plan(2))
    leaver, waiter = shared_agent.client("leaver"), shared_agent.client("waiter")
    leaver.begin(p.NO_ARENA)
    leaver.send(p.Stats())
    job = waiter.begin(p.NO_ARENA, wait=False)
    leaver.wait_readable()
    leaver.close()
    assert waiter.expect(p.Grant).job == job


def test_jobs_are_recorded_with_their_outputs(agent: AgentProcess) -> None:
    agent.register("camera", plan(2), record_outputs=True)
    client = agent.client("camera")
    assert client.welcome is not None
    assert client.welcome.flags == p.WelcomeFlags.RECORD_OUTPUTS
    first = client.begin(p.NO_ARENA)
    client.end(first)
    client.send(p.Output(first, b"i" * 32, b"o" * 32))
    second = client.begin(p.NO_ARENA, deadline_s=0)
    client.end(second)
    third = client.begin(p.NO_ARENA)

    answer = agent.call("jobs", since=0)
    assert [(job["job"], job["missed"]) for job in answer["jobs"]] == [
        (first, False),
        (second, True),
    ]
    assert answer["jobs"][0]["output_digest"] == (b"o" * 32).hex()
    assert answer["jobs"][1]["output_digest"] is None
    client.end(third)
    client.close()
    wait_until(lambda: agent.call("jobs", since=answer["cursor"])["jobs"], "the last record")
    assert agent.task("camera")["misses"] == 1


def test_ready_clients_start_when_the_administrator_says_so(shared_agent: AgentProcess) -> None:
    shared_agent.register("early", plan(2), phase_ns=5)
    shared_agent.register("tardy", plan(2))
    early, tardy = shared_agent.client("early"), shared_agent.client("tardy")
    early.send(p.Ready(0))
    wait_until(lambda: shared_agent.task("early")["ready"], "the early one is ready")
    assert shared_agent.call("start", epoch_ns=1000, until_ns=2000)["started"] == ["early"]
    assert early.expect(p.Start) == p.Start(1005, 2000)
    assert tardy.ask(p.Ready(0), p.Start) == p.Start(1000, 2000)
