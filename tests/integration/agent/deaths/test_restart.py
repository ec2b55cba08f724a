from __future__ import annotations

import os
import time

import pytest
from tests.integration.agent.agent_process import AgentProcess, content, plan, wait_until
from tests.integration.agent.raw_client import TIMEOUT_S, RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_job_in_progress_goes_on_after_the_agent_was_restarted(
    agent: AgentProcess, end: str
) -> None:
    agent.register("vision", plan(10, resident=(0, 6)))
    agent.register("speech", plan(10))
    vision, speech = agent.program("vision", 1, 10), agent.program("speech", 2, 10)
    assert vision.do("half") == "half"
    speech.tell("job")
    if end == "kill":
        agent.kill()
    else:
        assert agent.terminate() == 0
    agent.start()
    assert vision.do("rest") == vision.expected
    assert speech.answer() == speech.expected
    for _ in range(3):
        assert vision.do("job") == vision.expected
        assert speech.do("job") == speech.expected
    assert agent.extents() == {"free": 0, "resident": 2, "ring": 2, "workspace": 0, "draining": 0}


def test_no_job_waits_for_programs_that_have_nothing_to_do(agent: AgentProcess) -> None:
    agent.register("busy", plan(10, resident=(0, 6)))
    agent.register("idle", plan(10))
    busy, idle = agent.program("busy", 1, 10), agent.program("idle", 2, 10)
    agent.kill()
    agent.start()
    assert busy.do("job") == busy.expected
    assert "did not come back in time" not in agent.log.read_text()
    assert idle.do("job") == idle.expected


def test_the_stream_resumes_where_the_flag_words_stand(agent: AgentProcess) -> None:
    agent.register("vision", plan(9, ring=3))
    client = agent.client("vision")
    assert client.welcome is not None
    data = content(3, 9)
    arena = client.load(data)
    job = client.begin(0)
    assert arena.wait_published(3)
    in_slots = [arena.read_extent(extent) for extent in range(3)]
    agent.kill()
    agent.start()

    again = agent.client("vision", client.welcome.reattach_token)
    again.attach(arena, job=job)
    assert arena.published() == 3
    assert [arena.read_extent(extent) for extent in range(3)] == in_slots
    assert arena.read_in_job() == data
    again.end(job)
    assert agent.task("vision")["jobs"] == 1
    assert agent.task("vision")["revoked"] == 0


def test_nobody_gets_the_lease_before_a_live_holder_is_back(agent: AgentProcess) -> None:
    agent.register("holder", plan(6))
    agent.register("other", plan(6))
    holder, other = agent.client("holder"), agent.client("other")
    assert holder.welcome is not None
    assert other.welcome is not None
    held_arena, arena = holder.load(content(1, 6)), other.load(content(2, 6))
    job = holder.begin(0)
    assert held_arena.wait_published(2)
    agent.kill()
    agent.start()

    back = agent.client("other", other.welcome.reattach_token)
    back.attach(arena)
    waiting = back.begin(0, deadline_s=0.001, wait=False)
    assert back.ask(p.Stats(), p.Statistics).jobs == 0  # and no GRANT came before
    holder_back = agent.client("holder", holder.welcome.reattach_token)
    holder_back.attach(held_arena, job=job)
    assert held_arena.read_in_job() == content(1, 6)
    holder_back.end(job)
    assert back.expect(p.Grant).job == waiting
    assert arena.read_in_job() == content(2, 6)


def test_a_job_with_the_lease_alone_goes_on(agent: AgentProcess) -> None:
    agent.register("vision", plan(10, resident=(0, 6)))
    agent.register("other", plan(6))
    vision, other = agent.program("vision", 1, 10), agent.program("other", 2, 6)
    assert vision.do("lease") == "begun"
    other.tell("job")
    agent.kill()
    agent.start()
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "the other one waits")
    vision.do("end")
    assert other.answer() == other.expected
    assert (agent.task("vision")["jobs"], agent.task("vision")["broken"]) == (1, 0)
    assert vision.do("job") == vision.expected


def test_nobody_gets_the_lease_before_one_with_nothing_to_offer_says_that_it_has_it(
    agent: AgentProcess,
) -> None:
    agent.register("holder", plan(6))
    agent.register("other", plan(6))
    holder, other = agent.client("holder"), agent.client("other")
    assert holder.welcome is not None
    assert other.welcome is not None
    job = holder.begin(p.NO_ARENA)
    agent.kill()
    agent.start()
    back = agent.client("other", other.welcome.reattach_token)
    waiting = back.begin(p.NO_ARENA, deadline_s=0.001, wait=False)
    holder_back = agent.client("holder", holder.welcome.reattach_token, held=job)
    assert holder_back.ask(p.Stats(), p.Statistics).jobs == 0
    assert back.ask(p.Stats(), p.Statistics).jobs == 0  # and no GRANT came before
    holder_back.end(job)
    assert back.expect(p.Grant).job == waiting
    assert agent.task("holder")["jobs"] == 1


def test_one_that_has_no_job_any_more_keeps_nobody_waiting(agent: AgentProcess) -> None:
    agent.register("holder", plan(6))
    client = agent.client("holder")
    assert client.welcome is not None
    client.begin(p.NO_ARENA)
    agent.kill()
    agent.start()
    again = agent.connect("holder")
    welcome = again.hello(client.welcome.reattach_token)
    assert p.WelcomeFlags.SAYS_HELD in welcome.flags
    again.end(again.begin(p.NO_ARENA))


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_job_that_is_held_out_of_turn_is_refused(agent: AgentProcess, comes_back: bool) -> None:
    agent.register("liar", plan(6))
    client = agent.client("liar")
    assert client.welcome is not None
    if comes_back:
        agent.kill()
        agent.start()
        client = agent.client("liar", client.welcome.reattach_token)
    with pytest.raises(RefusedError) as refused:
        client.ask(p.JobHeld(7, 0, 1), p.Statistics)
    assert refused.value.code is p.ErrorCode.OUT_OF_ORDER


def test_a_job_that_was_not_in_progress_cannot_be_resumed(agent: AgentProcess) -> None:
    agent.register("liar", plan(6))
    client = agent.client("liar")
    assert client.welcome is not None
    arena = client.load(content(1, 6))
    agent.kill()
    agent.start()
    again = agent.client("liar", client.welcome.reattach_token)
    again.attach(arena, job=77)
    assert again.expect(p.Revoke).job == 77
    again.send(p.Ack(77))
    job = again.begin(0)
    assert arena.read_in_job() == content(1, 6)
    again.end(job)


def test_foreign_memory_is_not_taken_for_an_extent(agent: AgentProcess) -> None:
    agent.register("forger", plan(4, resident=(1,)))
    client = agent.client("forger")
    assert client.welcome is not None
    arena = client.load(content(1, 4))
    agent.kill()
    agent.start()
    again = agent.client("forger", client.welcome.reattach_token)
    forged = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(forged, arena.extent_bytes)
    os.close(arena.residents[0])
    arena.residents[0] = forged
    with pytest.raises(RefusedError) as refused:
        again.attach(arena)
    assert refused.value.code is p.ErrorCode.NOT_ADMITTED
    assert again.ask(p.Stats(), p.Statistics).jobs == 0
    os.close(forged)


def test_programs_that_are_refused_for_good_ask_once_and_end(agent: AgentProcess) -> None:
    names = ("busy", "idle")
    for name in names:
        agent.register(name, plan(3))
    busy, idle = (agent.program(name, 1, 3) for name in names)
    agent.kill()
    agent.store.unlink()
    agent.start()
    for program in (busy, idle):
        began_s = time.monotonic()
        program.tell("job")
        assert program.process.wait(TIMEOUT_S) == 1
        assert time.monotonic() - began_s < TIMEOUT_S / 2  # it may look for an agent for 300 s
        assert "refused" in program.log.read_text()

    def refused() -> list[int]:
        log = agent.log.read_text()
        return [log.count(f"cannot take an arena of {name}") for name in names]

    wait_until(lambda: all(refused()), "the agent has said why")
    assert refused() == [1, 1]


def test_digests_of_another_domain_are_unknown(agent: AgentProcess) -> None:
    agent.register("owner", plan(4), domain="a")
    agent.register("thief", plan(4), domain="b")
    owner, thief = agent.client("owner"), agent.client("thief")
    assert thief.welcome is not None
    secret = owner.load(content(1, 4))
    arena = thief.load(content(2, 4))
    agent.kill()
    agent.start()
    again = agent.client("thief", thief.welcome.reattach_token)
    arena.digests = secret.digests
    with pytest.raises(RefusedError) as refused:
        again.attach(arena)
    assert refused.value.code is p.ErrorCode.NOT_ADMITTED


def test_tasks_and_their_start_survive(agent: AgentProcess) -> None:
    agent.register("vision", plan(4, workspace=1 << 16))
    agent.call("start", epoch_ns=7, until_ns=9)
    agent.kill()
    agent.start()
    assert agent.client("vision").ask(p.Ready(0), p.Start) == p.Start(7, 9)
    assert agent.register("vision", plan(4, workspace=1 << 16))["ok"]
    refusal = agent.register("vision", plan(5))
    assert "remove it first" in refusal["error"]


def test_a_second_agent_is_refused_and_a_clean_stop_removes_the_admin_socket(
    agent: AgentProcess,
) -> None:
    second = agent.run_second()
    assert second.returncode == 2
    assert "another agent does" in second.stderr
    assert agent.terminate() == 0
    assert not (agent.run_dir / "admin.sock").exists()
    agent.start()
