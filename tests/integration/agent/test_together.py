"""Messages that arrive together, or inside of what another one began: none finds an arena idle that
is at work, none takes more than the plan has, and none makes a job that nobody ends."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import Loaded, RawClient, RefusedError
from tests.integration.agent.test_refusals import error_and_end

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

EXTENTS = 4
LAYERS = tuple(p.LayerSpan(extent, extent) for extent in range(EXTENTS))


def stored(client: RawClient) -> Loaded:
    arena = client.reserve(EXTENTS * EXTENT_BYTES)
    for extent in range(EXTENTS):
        client.store(0, extent, bytes([extent + 1]) * EXTENT_BYTES)
    return arena


def nothing_is_left(agent: AgentProcess, task: str) -> None:
    """The client has gone: no extent is in use, and no copy is kept for anybody."""
    wait_until(lambda: not agent.task(task)["clients"], "the agent lets go of it")
    agent.call("remove", name=task)
    assert agent.extents()["resident"] == 0
    assert [tier["referenced"] for tier in agent.snapshot()["tiers"]] == [0]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(p.Store(0, 1, 0, EXTENT_BYTES), id="STORE"),
        pytest.param(p.Seal(0, LAYERS), id="SEAL"),
        pytest.param(p.Fetch(0, 0, 0), id="FETCH"),
    ],
)
def test_an_arena_that_is_worked_on_is_not_freed(agent: AgentProcess, request_: p.Message) -> None:
    """Its extents would be others' while the agent still writes to them."""
    agent.register("hasty", plan(EXTENTS, resident=(0, 1)), domain="alone")
    client = agent.client("hasty")
    stored(client)
    if isinstance(request_, p.Fetch):
        client.seal(0, EXTENTS)
    client.send_together(request_, p.Free(0))
    assert error_and_end(client) is p.ErrorCode.OUT_OF_ORDER
    client.close()
    nothing_is_left(agent, "hasty")


def test_an_arena_is_sealed_once(agent: AgentProcess) -> None:
    agent.register("hasty", plan(EXTENTS, resident=(0, 1)))
    client = agent.client("hasty")
    stored(client)
    client.send_together(p.Seal(0, LAYERS), p.Seal(0, LAYERS))
    assert error_and_end(client) is p.ErrorCode.OUT_OF_ORDER


def test_arenas_reserved_again_have_no_more_than_the_plan(agent: AgentProcess) -> None:
    agent.register("greedy", plan(4, resident=(0, 1, 2, 3), ring=0))
    client = agent.client("greedy")
    for arena in range(3):
        client.reserve(EXTENT_BYTES, arena=arena)
    for arena, extents, words in (
        (2, 3, "needs extents 2 to 4 and its plan has 4"),
        (1, 2, "arena 2 has some of them"),
        (0, 2, "arena 1 has some of them"),
    ):
        client.ask(p.Free(arena), p.Freed)
        with pytest.raises(RefusedError, match=words) as refused:
            client.reserve(extents * EXTENT_BYTES, arena=arena)
        assert refused.value.code is p.ErrorCode.QUOTA
        client.reserve(EXTENT_BYTES, arena=arena)
    assert agent.extents()["resident"] == 3


def test_a_model_that_the_profile_has_not_seen_is_told_what_helps(agent: AgentProcess) -> None:
    agent.register("late", plan(2, resident=(0, 1), ring=0))
    client = agent.client("late")
    client.reserve(2 * EXTENT_BYTES)
    with pytest.raises(RefusedError, match=r"no arena 1: .* profile it with more jobs") as refused:
        client.reserve(EXTENT_BYTES, arena=1)
    assert refused.value.code is p.ErrorCode.QUOTA


def test_what_is_being_freed_counts(agent: AgentProcess) -> None:
    agent.register("greedy", plan(4, resident=(0, 1, 2, 3), ring=0))
    client = agent.client("greedy")
    client.reserve(4 * EXTENT_BYTES)
    client.send_together(p.Free(0), p.Reserve(0, 1, 4 * EXTENT_BYTES, 0))
    answers = [client.receive()[1], client.receive()[1]]
    assert {type(answer) for answer in answers} == {p.Freed, p.Error}
    assert agent.extents()["resident"] == 0
    client.reserve(4 * EXTENT_BYTES)


def test_a_copy_goes_to_the_home_planned_whatever_became_of_the_arenas_before(
    agent: AgentProcess,
) -> None:
    """Else it would be another one's, or none of the plan's at all."""
    agent.register("vision", plan(4))
    client = agent.client("vision")
    client.reserve(EXTENT_BYTES, arena=0)
    client.reserve(2 * EXTENT_BYTES, arena=1)
    client.ask(p.Free(0), p.Freed)
    client.store(1, 1, b"x" * EXTENT_BYTES)


def back(agent: AgentProcess, task: str, client: RawClient) -> RawClient:
    """It has lost its connection, and comes back to the same agent."""
    assert client.welcome is not None
    client.close()
    return agent.client(task, client.welcome.reattach_token)


def test_nothing_is_reserved_where_an_arena_is_being_attached(agent: AgentProcess) -> None:
    agent.register("vision", plan(EXTENTS, resident=(0, 1)), domain="alone")
    client = agent.client("vision")
    loaded = client.load(content(1, EXTENTS))
    client = back(agent, "vision", client)
    client.send(p.Digests(0, 0, tuple(loaded.digests)))
    client.send(
        p.Attach(0, EXTENTS, len(loaded.ring), loaded.size, 0, 0, 0, 1 << 60, loaded.placement)
    )
    client.send(p.Fds(0, p.DescriptorKind.RESIDENT, 0, 2), loaded.residents)
    client.send(p.Fds(0, p.DescriptorKind.RING, 0, 2), loaded.ring)
    client.reserve(EXTENTS * EXTENT_BYTES)
    client.send(p.Fds(0, p.DescriptorKind.CONTROL, 0, 1), [loaded.control])
    with pytest.raises(RefusedError, match="is there already"):
        client.expect(p.Attached)
    assert agent.extents()["resident"] == 2
    client.close()
    nothing_is_left(agent, "vision")


def test_no_other_job_takes_the_place_of_one_in_progress(agent: AgentProcess) -> None:
    """Nobody would end that one, and nobody else would ever have the device."""
    agent.register("hostile", plan(6), domain="alone")
    agent.register("victim", plan(4))
    victim, hostile = agent.client("victim"), agent.client("hostile")
    loaded = hostile.load(content(1, 3))
    hostile = back(agent, "hostile", hostile)
    hostile.begin(p.NO_ARENA)
    loaded.arena = 1
    with suppress(BrokenPipeError):  # the agent may end it before all are sent
        hostile.offer(loaded, job=77)
    assert error_and_end(hostile) is p.ErrorCode.OUT_OF_ORDER
    hostile.close()
    victim.end(victim.begin(p.NO_ARENA))


def test_a_client_that_comes_back_names_one_job(agent: AgentProcess) -> None:
    agent.register("hostile", plan(6), domain="alone")
    agent.register("victim", plan(4))
    victim, hostile = agent.client("victim"), agent.client("hostile")
    loaded = hostile.load(content(1, 3))
    job = hostile.begin(p.NO_ARENA)
    assert victim.welcome is not None
    assert hostile.welcome is not None
    agent.kill()
    agent.start()
    victim = agent.client("victim", victim.welcome.reattach_token)
    token = hostile.welcome.reattach_token
    hostile = agent.client("hostile", token, held=job)
    with suppress(BrokenPipeError):
        hostile.offer(loaded, job=78)
    assert error_and_end(hostile) is p.ErrorCode.OUT_OF_ORDER
    hostile.close()
    hostile = agent.client("hostile", token, held=job)
    hostile.attach(loaded)
    hostile.end(job)
    victim.end(victim.begin(p.NO_ARENA))


def test_a_job_that_came_back_may_have_the_device_no_longer_than_others(
    agent: AgentProcess,
) -> None:
    agent.register("measured", plan(10), job_limit_ns=3 * 10**9)
    agent.register("speech", plan(10))
    measured, speech = agent.program("measured", 1, 10), agent.program("speech", 2, 10)
    assert measured.do("half") == "half"
    agent.kill()
    agent.start()
    assert speech.do("job") == speech.expected
    (kill,) = agent.call("interventions", since=0)["interventions"]
    assert (kill["task"], kill["action"], kill["reason"]) == ("measured", "Kill", "JobTooLong")
