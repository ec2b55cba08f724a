"""Hundreds of bad behaviours of one task, and another one that notices none of them.

Each behaviour is done to an agent of each kind of device (`rig`). The agent has as many descriptors
and as much memory afterwards as before, and nothing has kept its event loop for long.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.agent.agent_process import wait_until
from tests.integration.agent.behaviours import Behaviour
from tests.integration.agent.behaviours.wire import Wire
from tests.integration.agent.hostile import measured_agent
from tests.integration.agent.hostile.rig import (
    CPU,
    CUDA,
    JOB_LIMIT_S,
    ON_ALL,
    ON_GPU,
    Rig,
    cpu_rig,
    gpu_rig,
    held,
    misbehave,
    quiet,
    witness,
)

pytestmark = pytest.mark.slow

STALLED_S = 2.0
"""On an idle machine with two cores nothing takes more than 50 ms; this is for a busy one."""
KEPT_S = STALLED_S + JOB_LIMIT_S + 5.0
"""The same where the device is kept for ever: the agent looks every two seconds whether it is for
longer than `JOB_LIMIT_S`, twice for what it was not told, and kills half a second later."""
DESCRIPTORS = 8
MEMORY_BYTES = 48 << 20


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with cpu_rig(tmp_path_factory.mktemp("cpu")) as rig:
        yield rig


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with gpu_rig(tmp_path_factory.mktemp("gpu")) as rig:
        yield rig


@pytest.mark.parametrize("kind", ON_ALL)
def test_no_behaviour_is_noticed_by_others(cpu: Rig, kind: str) -> None:
    nobody_notices(cpu, kind, list(ON_ALL[kind](CPU)))


@pytest.mark.parametrize("kind", ON_GPU)
def test_no_behaviour_is_noticed_by_others_of_a_gpu(gpu: Rig, kind: str) -> None:
    nobody_notices(gpu, kind, list(ON_GPU[kind](CUDA)))


def nobody_notices(rig: Rig, kind: str, behaviours: list[Behaviour]) -> None:
    agent, mean = rig.agent, rig.mean
    Wire(mean).socket.close()
    quiet(agent)
    begin = agent.log.stat().st_size
    before = held(agent)
    with witness(rig) as seen:
        done = misbehave(rig, behaviours)
    quiet(agent)
    print(
        f"{len(behaviours)} {kind} on device {mean.device}: "
        f"worst response {max(seen.responses_s) * 1e3:.1f} ms of {len(seen.responses_s)}, "
        f"worst wait {max(seen.waits_s) * 1e3:.1f} ms of {len(seen.waits_s)}; "
        f"descriptors and bytes {before} before, {held(agent)} after; "
        f"{sum(done.took_s.values()):.1f} s, slowest {done.slowest()}"
    )
    assert done.failed == {}
    assert seen.outputs == {rig.program.expected}
    assert max(seen.responses_s) < (KEPT_S if kind == "kept" else STALLED_S)
    assert max(seen.waits_s) < STALLED_S
    log = agent.log.read_text(errors="replace")
    assert [line for line in log[begin:].splitlines() if measured_agent.WORDS in line] == []
    assert "unexpectedly" not in log
    assert "had no job" not in log
    wait_until(lambda: held(agent)[0] <= before[0] + DESCRIPTORS, "descriptors are closed")
    assert held(agent)[1] <= before[1] + MEMORY_BYTES
