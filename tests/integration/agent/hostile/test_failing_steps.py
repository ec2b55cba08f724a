"""What fails while one client's message is worked with, and is another one's, is that one's end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.agent.hostile.test_session_machine import Agent, Client

from tierline_agent.errors import StreamFailed
from tierline_agent.sessions.session import Session
from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def connected(agent: Agent, task: int) -> Client:
    client = Client(agent, task)
    client.say(p.Hello(p.Device.CPU, 0, "x", p.MINOR), now=True)
    return client


def session_of(agent: Agent, client: Client) -> Session:
    (found,) = [one for one in agent.server.sessions() if one.client.process == client.process]
    return found


def begin(client: Client, job: int) -> None:
    client.say(p.JobBegin(job, p.NO_ARENA, p.JobFlags(0), 0, 1 << 60), now=True)


def test_a_job_that_was_revoked_and_cannot_be_streamed_is_revoked_once(agent: Agent) -> None:
    """Else the first of two graces goes on after the client has acknowledged, and kills it."""
    client = connected(agent, 0)
    begin(client, 1)
    session = session_of(agent, client)
    for _ in range(2):
        session.jobs._stream_failed(StreamFailed("it is a test", corrupt=False))
    client.listen()
    assert [message.job for message in client.read if isinstance(message, p.Revoke)] == [1]
    assert session.client.task.counters.revoked == 1
    client.say(p.Ack(1), now=True)
    client.close()
    agent.watch.die(client.process)
    agent.until(lambda: not agent.server._leaving and not [*agent.server.sessions()], "end")


def test_a_grant_that_fails_ends_its_own_job(agent: Agent) -> None:
    first, second = connected(agent, 0), connected(agent, 1)
    begin(first, 1)
    begin(second, 1)
    agent.stumble(session_of(agent, second)._cached_lease_jobs, "granted")
    first.say(p.JobEnd(1, 0, 0, 0, 0), now=False)
    assert first.await_answer(p.Ended)
    second.listen()
    assert any(isinstance(message, p.Revoke) for message in second.read)
    begin(first, 2)
    second.say(p.Ack(1), now=True)
    agent.until(first.is_granted, "the device is granted to the next one")
    for client in (first, second):
        client.close()
        agent.watch.die(client.process)
    agent.until(lambda: not agent.server._leaving and not [*agent.server.sessions()], "end")
