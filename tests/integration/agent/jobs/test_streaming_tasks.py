from __future__ import annotations

import pytest
from tests.integration.agent.agent_process import EXTENT_BYTES, AgentProcess, content, plan
from tests.integration.agent.raw_client import RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


def test_two_tasks_stream_through_one_ring_and_read_what_they_loaded(agent: AgentProcess) -> None:
    first, second = content(1, 9), content(2, 12)
    assert agent.register("vision", plan(9, resident=(0, 4)))["ok"]
    assert agent.register("speech", plan(12, resident=(3,), ring=3))["ok"]
    vision, speech = agent.client("vision"), agent.client("speech")
    vision_arena, speech_arena = vision.load(first), speech.load(second)

    for _ in range(5):
        for client, arena, expected in (
            (vision, vision_arena, first),
            (speech, speech_arena, second),
        ):
            job = client.begin(0)
            assert arena.read_in_job() == expected
            client.end(job)

    assert agent.extents() == {"free": 0, "resident": 3, "ring": 3, "workspace": 0, "draining": 0}
    counters = agent.task("speech")
    assert counters["jobs"] == 5
    assert counters["misses"] == 0
    assert counters["streamed_bytes"] == 5 * (len(second) - EXTENT_BYTES)


def test_a_rewound_job_reads_its_arena_again(agent: AgentProcess) -> None:
    data = content(3, 7)
    agent.register("writer", plan(7, resident=(2,)))
    writer = agent.client("writer")
    arena = writer.load(data)
    job = writer.begin(0)
    assert arena.read_in_job() == data
    writer.rewind(job)
    assert arena.wait_published(2)
    writer.rewind(job)  # with a stream under way
    assert arena.read_in_job() == data
    later = data[2 * EXTENT_BYTES : 3 * EXTENT_BYTES] + data[4 * EXTENT_BYTES :]
    for _ in range(2):
        writer.rewind(job, position=3)
        assert arena.read_in_job(3) == later
    writer.rewind(job, position=6)
    assert arena.published() == 6
    writer.end(job)
    assert agent.task("writer")["jobs"] == 1
    assert agent.task("writer")["streamed_bytes"] >= 2 * (len(data) - EXTENT_BYTES)


def test_only_a_running_job_is_rewound(agent: AgentProcess) -> None:
    agent.register("writer", plan(4))
    writer = agent.client("writer")
    writer.load(content(3, 4))
    with pytest.raises(RefusedError, match="is not running"):
        writer.rewind(5)


def test_a_stream_has_no_position_after_its_end(agent: AgentProcess) -> None:
    agent.register("writer", plan(4, resident=(2,)))
    writer = agent.client("writer")
    writer.load(content(3, 4))
    with pytest.raises(RefusedError, match="has no position 4"):
        writer.rewind(writer.begin(0), position=4)


def test_a_stream_that_begins_late_copies_what_was_asked_for_until_that_is_consumed(
    agent: AgentProcess,
) -> None:
    data = content(3, 9)
    agent.register("writer", plan(9, ring=4))
    writer = agent.client("writer")
    arena = writer.load(data)
    job = writer.begin(0)
    assert arena.wait_published(4)
    for position, consumed, past in ((5, 3, 7), (7, 4, 8)):
        writer.rewind(job, position=position, consumed=consumed)
        assert arena.wait_published(past)
        assert arena.read_extent(position) == data[position * EXTENT_BYTES :][:EXTENT_BYTES]
    arena.consume(5)
    assert arena.wait_published(9)
    writer.end(job)
    assert agent.task("writer")["streamed_bytes"] == len(data) - EXTENT_BYTES  # each once, none 4


@pytest.mark.parametrize(("position", "consumed"), [(3, 4), (5, 0), (2**32 - 1, 2**32 - 1)])
def test_a_stream_begins_where_a_ring_can_be(
    agent: AgentProcess, position: int, consumed: int
) -> None:
    agent.register("writer", plan(9, ring=4))
    writer = agent.client("writer")
    writer.load(content(3, 9))
    with pytest.raises(RefusedError, match=r"is no state of a ring|has no position"):
        writer.rewind(writer.begin(0), position=position, consumed=consumed)


def test_a_job_reads_one_arena_after_another(agent: AgentProcess) -> None:
    first, second = content(3, 5), content(4, 6)
    agent.register("writer", plan(11, resident=(2,)))
    writer = agent.client("writer")
    arenas = [writer.load(first), writer.load(second, arena=1)]
    for begun_with in (0, p.NO_ARENA):
        job = writer.begin(begun_with)
        for _ in range(2):
            for number, data in enumerate((first, second)):
                writer.rewind(job, number)
                assert arenas[number].read_in_job() == data
        writer.rewind(job, 0)
        assert arenas[0].wait_published(2)
        writer.rewind(job, 1)  # with a stream of the other one under way
        assert arenas[1].read_in_job() == second
        writer.end(job)
    assert agent.task("writer")["jobs"] == 2
    with pytest.raises(RefusedError, match="was not reserved"):
        writer.rewind(writer.begin(0), 2)
