"""A job of the client library that reads its arena several times, on the CPU."""

from __future__ import annotations

import ctypes

import pytest
from tests.integration.agent.agent_process import EXTENT_BYTES, AgentProcess, content, plan

from tierline_client import Client, ClientError, ErrorCode

EXTENTS = 9


def test_a_rewound_job_streams_its_arena_again(shared_agent: AgentProcess) -> None:
    shared_agent.register("writer", plan(EXTENTS, resident=(4,)))
    data = content(5, EXTENTS)
    path = shared_agent.run_dir / "tasks" / "writer" / "tierline.sock"
    with Client(path, "test") as client:
        assert client.terms().device_uuid == ""
        base = client.reserve(0, len(data), 0, 1)
        for extent in range(EXTENTS):
            client.store(0, extent, data[extent * EXTENT_BYTES : (extent + 1) * EXTENT_BYTES])
        with pytest.raises(ClientError) as refused:
            client.weights(0, [(0, 16)])
        assert refused.value.code is ErrorCode.ARGUMENT
        client.seal(0, [(extent, extent) for extent in range(EXTENTS)])
        with pytest.raises(ClientError) as refused:
            client.rewind()
        assert refused.value.code is ErrorCode.STATE
        job = client.job_begin(0, 0, 1 << 62)
        for number in range(3):
            if number:
                client.rewind()
            for extent in range(EXTENTS):
                client.layer_begin(0, extent)
                expected = data[extent * EXTENT_BYTES : (extent + 1) * EXTENT_BYTES]
                assert ctypes.string_at(base + extent * EXTENT_BYTES, len(expected)) == expected
                client.layer_end(0, extent)
        client.job_end(job)
        assert client.statistics().streamed_bytes == 3 * (7 * EXTENT_BYTES + 100)
