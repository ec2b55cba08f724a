from __future__ import annotations

import gc
from dataclasses import asdict, replace

from tierline_agent.telemetry.accounting import FastMemory, JobLog, JobRecord, TaskCounters

RECORD = JobRecord(
    task="t",
    job=1,
    release_ns=0,
    granted_ns=10,
    end_ns=110,
    deadline_ns=100,
    missed=True,
    warmup=False,
    streamed_bytes=7,
    fetched_bytes=3,
    stall_ns=5,
    workspace_bytes=9,
)


def test_a_reader_gets_each_record_once_and_is_told_what_it_lost() -> None:
    log = JobLog(limit=3)
    for job in range(5):
        log.append(replace(RECORD, job=job))
    first = log.since(0)
    assert [job["job"] for job in first["jobs"]] == [2, 3, 4]
    assert (first["cursor"], first["lost"], first["more"]) == (5, 2, False)
    assert log.since(5)["jobs"] == []
    log.append(replace(RECORD, job=5))
    assert [job["job"] for job in log.since(first["cursor"])["jobs"]] == [5]


def test_the_garbage_collector_does_not_pass_over_records() -> None:
    log = JobLog(limit=3)
    log.append(RECORD)
    gc.collect()
    assert not any(gc.is_tracked(record) for record in log._records)
    assert log.since(0)["jobs"] == [asdict(RECORD)]


def test_a_cursor_of_another_agent_is_harmless() -> None:
    log = JobLog(limit=3)
    log.append(RECORD)
    assert log.since(1000)["jobs"] == []
    assert log.since(1000)["cursor"] == 1


def test_warm_up_jobs_are_counted_apart() -> None:
    counters = TaskCounters()
    counters.count(replace(RECORD, warmup=True), predicted_job_ns=50)
    counters.count(RECORD, predicted_job_ns=50)
    counters.count(replace(RECORD, missed=False, end_ns=40), predicted_job_ns=50)
    assert (counters.jobs, counters.warmup_jobs, counters.misses) == (2, 1, 1)
    assert (counters.overruns, counters.response_worst_ns) == (1, 110)
    assert counters.streamed_bytes == 21


def test_the_peak_is_of_the_sum() -> None:
    memory = FastMemory(limit_bytes=100)
    memory.set_extents(40)
    memory.set_workspace(20)
    memory.set_workspace(0)
    memory.add_unmanaged("t", 1, 5)
    assert (memory.used_bytes, memory.peak_bytes) == (45, 60)
    memory.forget_client("t", 1)
    assert memory.used_bytes == 40


def test_on_a_gpu_what_processes_say_counts_and_no_guess() -> None:
    memory = FastMemory(limit_bytes=100, told=True)
    memory.set_extents(40)
    memory.set_workspace(20)
    memory.add_unmanaged("t", 1, 5)
    memory.set_unswappable("t", 1, 7)
    memory.set_held("t", 1, 30)
    assert (memory.used_bytes, memory.peak_bytes, memory.start_peak_bytes) == (70, 70, 0)
    assert memory.besides_weights("t", 1) == 25
    assert memory.besides_weights("t", 2) is None
    memory.forget_client("t", 1)
    assert memory.used_bytes == 40


def test_what_a_program_holds_before_its_weights_are_the_agents_is_told_apart() -> None:
    memory = FastMemory(limit_bytes=100, told=True)
    memory.starts("t", 1)
    memory.set_held("t", 1, 500)
    memory.set_held("t", 2, 3)
    memory.set_extents(40)
    assert (memory.used_bytes, memory.peak_bytes, memory.start_peak_bytes) == (543, 43, 543)
    assert (memory.besides_weights("t", 1), memory.besides_weights("t", 2)) == (0, 3)
    memory.set_held("t", 1, 10)
    memory.started("t", 1)
    memory.started("t", 1)
    assert (memory.used_bytes, memory.peak_bytes, memory.start_peak_bytes) == (53, 53, 543)
    memory.set_held("t", 1, 200)
    assert (memory.peak_bytes, memory.start_peak_bytes) == (243, 543)


def test_what_cannot_move_counts_as_it_was_reported_last() -> None:
    memory = FastMemory(limit_bytes=100)
    memory.set_unswappable("t", 1, 30)
    memory.set_unswappable("t", 2, 4)
    memory.set_unswappable("t", 1, 10)
    assert (memory.unswappable_bytes, memory.used_bytes, memory.peak_bytes) == (14, 14, 34)
    memory.forget_client("t", 1)
    assert memory.unswappable_bytes == 4
