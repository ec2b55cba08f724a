"""A job of one process that waits for a job of another process of its task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

_WORKER = """
import sys
from pathlib import Path
from tests.integration.agent.raw_client import RawClient
from tierline_agent.transport import protocol as p

client = RawClient(Path(sys.argv[1]))
client.hello()
print("ready", flush=True)
for number, _ in enumerate(sys.stdin, 1):
    client.send(p.JobBegin(number, p.NO_ARENA, p.JobFlags(0), 1, 1 << 60))
    answer = client.receive()[1]
    if isinstance(answer, p.Grant):
        client.end(number)
    print(type(answer).__name__, getattr(answer, "code", 0), flush=True)
"""
_NESTED = f"Error {int(p.ErrorCode.NESTED)}"
_GRANTED = "Grant 0"


class _Worker:
    """A process of a task, which begins a job when it is told to, and says what it is answered."""

    def __init__(self, socket: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def tell(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate()


Starter = Callable[..., _Worker]


@pytest.fixture
def start() -> Iterator[Starter]:
    with ExitStack() as stack:

        def begin(socket: str) -> _Worker:
            worker = _Worker(socket)
            stack.callback(worker.close)
            return worker

        yield begin


def test_a_job_that_a_job_of_another_process_waits_for_is_a_part_of_it(
    shared_agent: AgentProcess, start: Starter
) -> None:
    socket = shared_agent.register("pipeline", plan(2))["socket"]
    worker = start(socket)
    holder = shared_agent.client("pipeline")
    for _ in range(2):
        job = holder.begin(p.NO_ARENA)
        worker.tell()
        assert worker.answer() == _NESTED  # this process waits for that
        holder.end(job)
    worker.tell()
    assert worker.answer() == _GRANTED
    task = shared_agent.task("pipeline")
    assert task["jobs"] == 3
    assert [one["kind"] for one in task["notices"]] == ["nested"]


def test_jobs_of_other_tasks_wait_for_the_lease(shared_agent: AgentProcess, start: Starter) -> None:
    ours = shared_agent.register("pipeline", plan(2))["socket"]
    theirs = shared_agent.register("other", plan(2))["socket"]
    other, worker = start(theirs), start(ours)
    holder = shared_agent.client("pipeline")
    job = holder.begin(p.NO_ARENA)
    for one in (other, worker):
        one.tell()
    assert worker.answer() == _NESTED
    holder.end(job)
    assert other.answer() == _GRANTED
