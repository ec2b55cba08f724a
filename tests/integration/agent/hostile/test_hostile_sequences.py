"""Well-formed messages in any order and with any numbers, some arriving together: the agent answers
or closes, and when the client has gone, nothing is kept for it and others have the device."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    AgentProcess,
    content,
    plan,
    wait_until,
)

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

FORKED = multiprocessing.get_context("fork")
ARENA = st.sampled_from([0, 0, 0, 1, 15])
SMALL = st.one_of(st.integers(0, 5), st.just(0xFFFFFFFF))
BIG = st.one_of(st.integers(0, 5 * EXTENT_BYTES), st.just(2**64 - 1))
JOB = st.integers(1, 3)
DIGEST = st.binary(min_size=32, max_size=32)
SPAN = st.builds(p.LayerSpan, SMALL, SMALL)
NAME = st.text("abc", max_size=5)
PLACEMENT = st.lists(
    st.sampled_from([0, 1, 2, p.RESIDENT_BIT, p.RESIDENT_BIT + 1]), min_size=1, max_size=4
).map(tuple)

MESSAGES = st.one_of(
    st.builds(p.Reserve, ARENA, SMALL, st.integers(1, 5 * EXTENT_BYTES), BIG),
    st.builds(p.Store, ARENA, SMALL, st.integers(0, 5), st.integers(1, EXTENT_BYTES)),
    st.builds(p.Seal, ARENA, st.lists(SPAN, max_size=4).map(tuple)),
    st.builds(p.Free, ARENA),
    st.builds(
        p.JobBegin, JOB, st.sampled_from([0, p.NO_ARENA]), st.sampled_from(p.JobFlags), BIG, BIG
    ),
    st.builds(p.JobEnd, JOB, BIG, BIG, BIG, BIG),
    st.builds(p.Output, JOB, DIGEST, DIGEST),
    st.builds(p.Fetch, ARENA, SMALL, st.integers(0, 5)),
    st.builds(p.Ready, SMALL),
    st.builds(p.Ack, JOB),
    st.builds(p.Notice, st.sampled_from(p.NoticeKind), BIG, st.text("abc", max_size=5)),
    st.builds(p.Attach, ARENA, SMALL, SMALL, BIG.filter(bool), BIG, JOB, BIG, BIG, PLACEMENT),
    st.builds(p.Digests, ARENA, SMALL, st.lists(DIGEST, max_size=3).map(tuple)),
    st.builds(p.Fds, ARENA, st.sampled_from(p.DescriptorKind), SMALL.filter(lambda n: n < 9), JOB),
    st.builds(p.Yield, JOB, ARENA, SMALL, BIG, BIG, st.sampled_from(p.JobFlags)),
    st.builds(p.Rewind, JOB, ARENA, st.integers(0, 6), st.integers(0, 6)),
    st.builds(
        p.JobTaken,
        JOB,
        st.sampled_from([0, p.NO_ARENA]),
        st.sampled_from(p.JobFlags),
        BIG,
        BIG,
        BIG,
    ),
    st.builds(p.JobReturned, JOB, BIG, BIG, BIG, BIG),
    st.builds(p.JobHeld, JOB, BIG, BIG),
    st.builds(
        p.Profile,
        ARENA,
        SMALL,
        SMALL,
        BIG,
        st.lists(st.builds(p.LayerProfile, BIG, BIG, st.sampled_from(p.LayerFlags), NAME)).map(
            tuple
        ),
    ),
    st.builds(p.Stats),
    st.builds(p.Error, st.sampled_from(p.ErrorCode), st.just("why")),
)


@settings(
    settings.get_profile("ci"),
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    loaded=st.booleans(),
    messages=st.lists(
        st.tuples(MESSAGES, st.integers(0, 3), st.booleans()), min_size=1, max_size=12
    ),
)
def test_no_sequence_of_messages_harms_the_agent(
    shared_agent: AgentProcess, loaded: bool, messages: list[tuple[p.Message, int, bool]]
) -> None:
    shared_agent.register("hostile", plan(5, resident=(1,), ring=2), domain="alone")
    shared_agent.register("other", plan(2))
    # in a process of its own: extents are free again when that is dead
    hostile = FORKED.Process(target=send, args=(shared_agent, loaded, messages))
    hostile.start()
    hostile.join()
    assert hostile.exitcode == 0
    wait_until(lambda: not shared_agent.task("hostile")["clients"], "the agent lets go of it")
    assert "unexpectedly" not in shared_agent.log.read_text()
    wait_until(lambda: shared_agent.lent() == 0, "it knows that it is dead, and extents are free")
    wait_until(lambda: not referenced(shared_agent), "no copy is kept for it")
    other = shared_agent.client("other")
    other.end(other.begin(p.NO_ARENA))
    other.close()


def referenced(agent: AgentProcess) -> int:
    """Copies on the tier that are somebody's."""
    (tier,) = agent.snapshot()["tiers"]
    count: int = tier["referenced"]
    return count


def send(agent: AgentProcess, loaded: bool, messages: list[tuple[p.Message, int, bool]]) -> None:
    """Be the client; each message comes with some descriptors, and alone or with those after it."""
    client = agent.client("hostile")
    if loaded:
        client.load(content(1, 4))
    waiting, lent = b"", 0
    with suppress(OSError):  # the agent closed the connection, which is an answer
        for sequence, (message, descriptors, is_last) in enumerate(messages, start=99):
            waiting, lent = waiting + p.encode(message, sequence), lent + descriptors
            if is_last:
                socket.send_fds(client.socket, [waiting], [0] * lent)
                waiting, lent = b"", 0
