"""What a job costs others: no more than what they waited, nor than what it exceeded its charge by.

The agent's own executor and leases, with a clock that the test moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.policy.leases import Rank
from tierline_agent.processes.identity import Process
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.execution import DeviceJob, Execution
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry.accounting import FastMemory

EXTENT_BYTES = 64 << 10
CHARGED_NS = 10
LONG_NS = 1000


class Node:
    """One device; the time is what the test says."""

    def __init__(self, folder: Path) -> None:
        self.now_ns = 1
        self._mark = LeaseMark(folder / "mark")

        def clock_ns() -> int:
            return self.now_ns

        def later(_delay_s: float, _then: Callable[[], None]) -> object:
            raise AssertionError("nothing here waits for a time")

        self._leases = LeaseManager(clock_ns, later=later)
        self._executor = Executor(
            device=CpuDevice(EXTENT_BYTES, EXTENT_BYTES),
            leases=self._leases,
            mark=self._mark,
            memory=FastMemory(EXTENT_BYTES),
            clock_ns=clock_ns,
        )

    def begin(
        self, task: str, rank: Rank = Rank.GUARANTEED, *, gateless_ns: int | None = None
    ) -> Execution:
        """A job asks for the device; each is due before those that have asked."""
        execution = self._executor.prepare(
            DeviceJob(
                token=1,
                process=Process(1, 1),
                domain="default",
                deadline_ns=-self.now_ns,
                rank=rank,
                eligible_ns=0,
                workspace_bytes=0,
                sources=[],
                ring=[],
                words=None,
                gateless_ns=gateless_ns,
                charged_ns=CHARGED_NS,
                task=task,
            ),
            lambda failure: pytest.fail(str(failure)),
        )
        self._executor.begin(execution, lambda _now_ns: None)
        return execution

    def end(self, execution: Execution) -> int:
        """A job ends; returns what it cost."""
        told: list[int] = []

        def costs(cost_ns: int) -> None:
            assert self._leases.holder is execution.ticket  # nobody was granted it yet
            told.append(cost_ns)

        self._executor.end(execution, costs)
        self._executor.end(execution, costs)  # does nothing
        self._executor.is_over(execution)
        (cost_ns,) = told
        return cost_ns

    def close(self) -> None:
        self._executor.close()
        self._mark.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_a_job_with_rank_costs_what_it_over_runs_while_others_wait(node: Node) -> None:
    over_runs = node.begin("over-runs")
    node.now_ns += CHARGED_NS - 3
    other = node.begin("other")
    node.now_ns += 3 + 5
    assert node.end(over_runs) == 5
    assert node.end(other) == 0


def test_a_job_without_rank_costs_what_others_wait_beyond_its_charge(node: Node) -> None:
    """One that trains has the device for as long as nobody waits, and gives it back soon."""
    for rank in (Rank.BEST_EFFORT, Rank.WARMUP):
        trains = node.begin("trains", rank)
        node.now_ns += LONG_NS
        other = node.begin("other")
        node.now_ns += CHARGED_NS
        assert node.end(trains) == 0
        node.end(other)

        trains = node.begin("trains", rank)
        node.now_ns += LONG_NS
        other = node.begin("other")
        node.now_ns += CHARGED_NS + 7
        assert node.end(trains) == 7
        node.end(other)


@pytest.mark.parametrize("rank", [Rank.GUARANTEED, Rank.BEST_EFFORT])
@pytest.mark.parametrize("gateless_ns", [None, CHARGED_NS])
def test_a_task_owes_nothing_to_itself(node: Node, rank: Rank, gateless_ns: int | None) -> None:
    job = node.begin("two-processes", rank, gateless_ns=gateless_ns)
    own = node.begin("two-processes")
    node.now_ns += LONG_NS
    assert node.end(job) == 0
    node.end(own)


def test_a_job_that_does_not_yield_costs_nothing_where_nobody_has_a_deadline(node: Node) -> None:
    """It is asked to give the device away by one that is due sooner, and has no rank either."""
    job = node.begin("job", Rank.BEST_EFFORT, gateless_ns=CHARGED_NS)
    node.now_ns += 1
    sooner = node.begin("sooner", Rank.BEST_EFFORT)
    assert job.asked
    node.now_ns += LONG_NS
    assert node.end(job) == 0
    node.end(sooner)

    job = node.begin("job", Rank.BEST_EFFORT, gateless_ns=CHARGED_NS)
    other = node.begin("other")
    node.now_ns += CHARGED_NS + 4
    assert node.end(job) == 4
    node.end(other)
