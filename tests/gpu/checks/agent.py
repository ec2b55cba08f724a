"""The agent's own tests of its GPU, on a real one: all but those that tell the simulated driver to
fail. Two GPUs are tested where the machine has two (tests/gpu/bench/two_gpus.py).

Run by `make gpu-test`, which says TIERLINE_TESTS_ON_GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.deaths.test_gpu_faults import (
    machine,
    test_a_client_killed_while_it_streams_costs_nobody_a_job,
    test_a_job_goes_on_after_the_agent_was_restarted,
    test_memory_of_a_living_process_is_not_given_away,
    test_no_extent_shows_one_domains_bytes_to_another,
    test_what_was_offered_back_is_destroyed_when_it_is_given_up,
)
from tests.integration.agent.gpu_agent import gpu_agent
from tests.integration.agent.hostile.test_gpu_hostile import (
    test_a_job_ends_whatever_its_client_writes,
    test_a_job_that_stands_still_keeps_nobody_from_leaving,
    test_a_rewind_needs_no_consumption,
)
from tests.integration.agent.jobs.test_gpu_streaming import (
    test_a_generation_reads_its_arena_once_a_token,
    test_jobs_read_what_was_loaded,
    test_two_tasks_take_turns_in_one_ring,
)

__all__ = [
    "machine",
    "test_a_client_killed_while_it_streams_costs_nobody_a_job",
    "test_a_generation_reads_its_arena_once_a_token",
    "test_a_job_ends_whatever_its_client_writes",
    "test_a_job_goes_on_after_the_agent_was_restarted",
    "test_a_job_that_stands_still_keeps_nobody_from_leaving",
    "test_a_rewind_needs_no_consumption",
    "test_jobs_read_what_was_loaded",
    "test_memory_of_a_living_process_is_not_given_away",
    "test_no_extent_shows_one_domains_bytes_to_another",
    "test_two_tasks_take_turns_in_one_ring",
    "test_what_was_offered_back_is_destroyed_when_it_is_given_up",
]


@pytest.fixture
def agent(tmp_path: Path, machine: Path) -> Iterator[AgentProcess]:
    """An agent of the first GPU with three tiers, for one test."""
    with gpu_agent(tmp_path, machine, tiers=("dram", "pmem", "nvme"), metrics_port=0) as process:
        yield process
