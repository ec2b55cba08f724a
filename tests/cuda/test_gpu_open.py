"""Resident tasks on a simulated GPU that take the lease where it is left open to them.

C programs with the library preloaded (gpu_open.c), clients that speak the protocol by hand, and the
real agent, which dies in every state.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.programs import PATIENCE_S, Running, left
from tests.cuda.tasks import EXTENTS as TASK_EXTENTS
from tests.cuda.tasks import SYNCHRONOUS, Task
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.integration.agent.gpu_agent import gpu_agent, gpu_plan
from tests.integration.agent.raw_client import ClosedError, RawClient, RefusedError
from tests.native_builds import FLAVOURS, simulated_machine

from tierline_agent.transport import protocol as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXTENTS = 4
UNHURRIED = {"predictedJobTime": "1000s"}
RESIDENT = gpu_plan(EXTENTS, resident=tuple(range(EXTENTS)), ring=0) | UNHURRIED
STREAMED = gpu_plan(EXTENTS, ring=2) | UNHURRIED
LEASE_ALONE = gpu_plan(0, ring=0) | UNHURRIED
FAR_NS = 10**13


class GpuLeaseClient(RawClient):
    """A client on a GPU that needs the lease alone."""

    device = p.Device.CUDA


class Program(Running):
    """A gpu_open program."""

    def __init__(
        self, agent: AgentProcess, task: str, scenario: str, flavour: str = "plain"
    ) -> None:
        shared = agent.folder / "shared"
        shared.touch()
        os.truncate(shared, 4096)
        socket = agent.run_dir / "tasks" / task / "tierline.sock"
        arguments = (scenario, str(socket), str(EXTENTS), str(shared))
        super().__init__(agent, flavour, "gpu_open", *arguments, **SYNCHRONOUS)

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()
        return line

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def do(self, command: str) -> None:
        self.tell(command)
        assert self.answer() == command

    def held(self) -> str:
        """Wait for the end; every claim held. Returns what it said."""
        return self.ends()[0]

    def quit(self) -> None:
        self.tell("quit")
        self.held()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs, none of which outlives the test."""
    with ExitStack() as running:

        def starts(*arguments: Any) -> Program:
            program = Program(*arguments)
            running.callback(program.close)
            return program

        yield starts


def register(agent: AgentProcess, *names: str, **values: Any) -> None:
    for name in names:
        plan = {"alone": LEASE_ALONE, "streamed": STREAMED}.get(name.partition("-")[0], RESIDENT)
        terms = {"period_ns": FAR_NS, "deadline_ns": FAR_NS, **values}
        assert agent.register(name, plan, **terms)["ok"]


def told(start: Start, agent: AgentProcess, task: str) -> Program:
    """A program that does as it is told."""
    program = start(agent, task, "told")
    assert program.answer() == "loaded"
    return program


def raw(agent: AgentProcess, task: str) -> RawClient:
    client = agent.connect(task, GpuLeaseClient)
    client.hello()
    return client


def opened(agent: AgentProcess, task: str) -> RawClient:
    """A client to which the lease is open."""
    client = raw(agent, task)
    client.end(client.begin(p.NO_ARENA))
    client.counted()
    return client


@contextmanager
def impatient(tmp_path: Path, **settings: Any) -> Iterator[AgentProcess]:
    """An agent that waits for previous clients no longer than it must."""
    with (
        simulated_machine() as machine,
        gpu_agent(tmp_path, machine, **{"recovery_s": 0.5, **settings}) as agent,
    ):
        yield agent


# -- one client


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_jobs_that_follow_each_other_take_the_lease(
    start: Start, agent: AgentProcess, flavour: str
) -> None:
    register(agent, "vision")
    start(agent, "vision", "alone", flavour).held()
    task = left(agent, "vision")
    assert (task["jobs"], task["uncontended"], task["broken"]) == (100, 99, 0)
    records = [job for job in agent.call("jobs", since=0)["jobs"] if job["task"] == "vision"][-100:]
    assert [job["job"] for job in records] == list(range(1, 101))
    for before, after in pairwise(records):
        assert before["end_ns"] <= after["granted_ns"] <= after["end_ns"]


@pytest.mark.parametrize("flavour", ["plain", "thread"])
@pytest.mark.parametrize("scenario", ["without_a_job", "threads", "forking", "passes"])
def test_other_programs_take_it_too(agent: AgentProcess, scenario: str, flavour: str) -> None:
    """Jobs that the library begins, jobs of several threads, forks, and passes in one job."""
    plan = gpu_plan(TASK_EXTENTS, resident=tuple(range(TASK_EXTENTS)), ring=0) | UNHURRIED
    agent.register("vision", plan, period_ns=FAR_NS, deadline_ns=FAR_NS)
    Task(agent, flavour, "gpu_task", scenario).held()
    task = left(agent, "vision")
    assert task["broken"] == 0
    if scenario == "without_a_job":
        assert task["uncontended"] > 0


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_inputs_and_outputs_between_jobs_need_no_lease(
    start: Start, agent: AgentProcess, flavour: str
) -> None:
    """But what would keep others' copies waiting for long does."""
    register(agent, "vision", "alone")
    program = start(agent, "vision", "served", flavour)
    assert program.answer() == "served"
    task = agent.task("vision")
    assert (task["jobs"], task["uncontended"]) == (100, 99)
    held = raw(agent, "alone")
    job = held.begin(p.NO_ARENA)
    program.tell("")
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    held.end(job)
    program.held()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("task", ["resident", "streamed"])
def test_who_waits_gets_the_device_from_work_between_jobs(
    start: Start, agent: AgentProcess, task: str, flavour: str
) -> None:
    register(agent, task, "alone")
    program, asker = start(agent, task, "restless", flavour), raw(agent, "alone")
    assert program.answer() == "works"
    for _ in range(20):
        asker.end(asker.begin(p.NO_ARENA))
    program.tell("")
    program.held()
    assert left(agent, task)["jobs"] == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_last_jobs_of_a_program_that_ends_are_counted(
    start: Start, agent: AgentProcess, flavour: str
) -> None:
    register(agent, "vision")
    start(agent, "vision", "leaving", flavour).held()
    task = left(agent, "vision")
    assert (task["jobs"], task["broken"]) == (20, 0)


def test_a_client_that_is_faster_than_the_agent_counts_asks_it(
    start: Start, agent: AgentProcess
) -> None:
    register(agent, "vision")
    start(agent, "vision", "unpaced").held()
    task = left(agent, "vision")
    assert task["jobs"] == 1000
    assert 0 < task["uncontended"] < 1000


def test_records_of_jobs_that_took_the_lease(agent: AgentProcess) -> None:
    register(agent, "alone", record_outputs=True)
    cursor = agent.call("jobs", since=0)["cursor"]
    client = opened(agent, "alone")
    late = client.take(deadline_s=0)
    assert late is not None
    client.unlock_lease()
    client.send(p.JobReturned(late, (1 << 64) - 1, 7, 5, 3))
    client.send(p.Output(late, b"i" * 32, b"o" * 32))
    assert client.counted().misses == 1
    record = agent.call("jobs", since=cursor)["jobs"][-1]
    assert (record["job"], record["missed"], record["stall_ns"]) == (late, True, 5)
    assert (record["workspace_bytes"], record["fetched_bytes"]) == (7, 3)
    client.send(p.Notice(p.NoticeKind.HELD, 9, "by the driver's word"))
    again = client.take(deadline_s=0)
    assert again is not None
    client.unlock_lease()
    client.send(p.JobReturned(again, (1 << 64) - 1, 7, 5, 3))
    client.send(p.Output(again, b"i" * 32, b"o" * 32))
    assert client.counted().misses == 2
    assert agent.call("jobs", since=cursor)["jobs"][-1]["workspace_bytes"] == 9
    assert record["output_digest"] == (b"o" * 32).hex()
    assert record["granted_ns"] <= record["end_ns"] <= time.monotonic_ns()


# -- when it is left open, and when not


@pytest.mark.parametrize(
    "terms",
    [
        {"job_limit_ns": 10**12},
        {
            "preemption": {
                "scheduling": "RingKeeping",
                "layer_ns": 10**12,
                "penalty_ns": 10**9,
                "parked_bytes": 4096,
            }
        },
    ],
)
def test_a_task_whose_jobs_the_agent_watches_asks_for_each(
    agent: AgentProcess, terms: dict[str, Any]
) -> None:
    register(agent, "alone", **terms)
    assert opened(agent, "alone").take() is None


def test_warm_up_leaves_nothing_open(agent: AgentProcess) -> None:
    register(agent, "alone")
    client = raw(agent, "alone")
    client.end(client.begin(p.NO_ARENA, warmup=True))
    client.counted()
    assert client.take() is None


def test_new_terms_close_it(agent: AgentProcess) -> None:
    register(agent, "alone")
    client = opened(agent, "alone")
    terms = {"period_ns": FAR_NS, "deadline_ns": FAR_NS, "job_limit_ns": 10**12}
    revised = agent.call("revise", name="alone", domain="default", plan=LEASE_ALONE, **terms)
    assert revised["ok"], revised
    assert client.take() is None


def test_it_is_open_to_one_at_a_time(agent: AgentProcess) -> None:
    register(agent, "alone-1", "alone-2")
    first = opened(agent, "alone-1")
    second = opened(agent, "alone-2")
    assert first.take() is None
    job = second.take()
    assert job is not None
    second.give_back(job)
    assert second.counted().jobs == 2


# -- several clients


@pytest.mark.parametrize("flavour", ["plain", "thread"])
def test_one_at_a_time_is_inside_a_job(start: Start, agent: AgentProcess, flavour: str) -> None:
    names = ("vision-1", "vision-2", "vision-3")
    register(agent, *names)
    programs = [start(agent, name, "contending", flavour) for name in names]
    for program in programs:
        program.held()
    tasks = [left(agent, name) for name in names]
    assert [task["jobs"] for task in tasks] == [300] * 3
    assert [task["misses"] + task["broken"] for task in tasks] == [0] * 3
    assert sum(task["uncontended"] for task in tasks) > 0


def test_who_asks_waits_for_one_job_that_took_it(agent: AgentProcess) -> None:
    register(agent, "alone-1", "alone-2")
    taker, asker = opened(agent, "alone-1"), raw(agent, "alone-2")
    taken = taker.take()
    assert taken is not None
    asked = asker.begin(p.NO_ARENA, deadline_s=1, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    taker.give_back(taken)
    assert taker.take() is None
    assert asker.expect(p.Grant).job == asked
    asker.end(asked)


def test_what_is_heard_of_late_is_counted(agent: AgentProcess) -> None:
    """The device is another's already when the agent hears that the job began, and ended."""
    register(agent, "alone-1", "alone-2")
    taker, asker = opened(agent, "alone-1"), raw(agent, "alone-2")
    assert taker.lock_lease()
    began_ns = time.monotonic_ns()
    taker.unlock_lease()
    held = asker.begin(p.NO_ARENA)
    taker.send(p.JobTaken(2, p.NO_ARENA, p.JobFlags(0), began_ns, began_ns + 10**12, began_ns))
    taker.send(p.JobReturned(2, began_ns + 1000, 0, 0, 0))
    assert taker.counted().jobs == 2
    waits = taker.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    asker.end(held)
    assert taker.expect(p.Grant).job == waits


# -- first jobs


@pytest.mark.parametrize("flavour", ["plain", "thread"])
@pytest.mark.parametrize("scenario", ["starting_first", "starting_later"])
def test_first_jobs_keep_others_waiting_for_what_one_of_them_launched(
    start: Start, agent: AgentProcess, scenario: str, flavour: str
) -> None:
    """Each has work of 40 ms for the GPU, and all 16 of them have 640 ms."""
    register(agent, "vision")
    register(agent, "alone", criticality="Hard")
    program, urgent = start(agent, "vision", scenario, flavour), raw(agent, "alone")
    assert program.answer() == "begins"
    waits_s = []
    while program.process.poll() is None:
        asked = time.monotonic()
        job = urgent.begin(p.NO_ARENA)
        waits_s.append(time.monotonic() - asked)
        urgent.end(job)
    program.held()
    assert 0.02 < max(waits_s) < 0.32
    assert 0.02 < agent.task("vision")["first_blocked_worst_ns"] / 1e9 <= max(waits_s)


@pytest.mark.parametrize("charged", ["1ms", "1000s"])
def test_a_first_job_that_took_the_lease_counts_as_one_that_asked(
    agent: AgentProcess, charged: str
) -> None:
    assert agent.register("starts", LEASE_ALONE | {"first": charged}, period_ns=FAR_NS)["ok"]
    register(agent, "alone", criticality="Hard")
    starts, urgent = opened(agent, "starts"), raw(agent, "alone")
    taken = starts.take(warmup=True)
    assert taken is not None
    urgent.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    waits = time.monotonic()
    wait_until(lambda: time.monotonic() > waits + 0.05, "it has waited")
    starts.give_back(taken)
    urgent.end(urgent.expect(p.Grant).job)
    seen = agent.task("starts")
    assert seen["first_blocked_worst_ns"] > 30_000_000
    assert seen["late_firsts"] == (charged == "1ms")


# -- forks and deaths of clients


def test_a_forks_child_has_no_part_in_it(start: Start, agent: AgentProcess) -> None:
    register(agent, "vision", "alone")
    program, asker = told(start, agent, "vision"), raw(agent, "alone")
    program.do("job")
    wait_until(lambda: agent.task("vision")["jobs"] == 1, "it is counted")
    program.do("begin")
    program.do("fork")
    wait_until(lambda: agent.task("vision")["uncontended"] == 1, "it took the lease")
    asked = asker.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    program.do("end")
    assert asker.expect(p.Grant).job == asked
    asker.end(asked)
    program.quit()
    assert left(agent, "vision")["jobs"] == 2


@pytest.mark.parametrize("wanted", [False, True])
def test_a_client_is_killed_inside_a_job_that_took_it(
    start: Start, agent: AgentProcess, wanted: bool
) -> None:
    register(agent, "vision", "alone")
    program, asker = told(start, agent, "vision"), raw(agent, "alone")
    program.do("job")
    wait_until(lambda: agent.task("vision")["jobs"] == 1, "it is counted")
    program.do("begin")
    wait_until(lambda: agent.task("vision")["uncontended"] == 1, "it took the lease")
    if wanted:
        asker.begin(p.NO_ARENA, wait=False)
        wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    program.process.kill()
    program.process.communicate()
    if not wanted:
        asker.begin(p.NO_ARENA, wait=False)
    asker.expect(p.Grant)
    task = wait_until(lambda: (t := agent.task("vision"))["broken"] and t, "it is counted")
    assert (task["jobs"], task["broken"]) == (1, 1)


# -- deaths of agents


def ends(kind: str) -> Callable[[AgentProcess], object]:
    return {"killed": AgentProcess.kill, "stopped": AgentProcess.terminate}[kind]


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_an_idle_client_with_an_cached_lease_is_left_alone(
    start: Start, tmp_path: Path, kind: str
) -> None:
    """Neither is it waited for longer than others, nor killed."""
    with impatient(tmp_path, holder_grace_s=0.1) as agent:
        register(agent, "vision", "alone")
        program = told(start, agent, "vision")
        program.do("job")
        wait_until(lambda: agent.task("vision")["jobs"] == 1, "it is counted")
        ends(kind)(agent)
        agent.start()
        asker = raw(agent, "alone")
        asker.end(asker.begin(p.NO_ARENA))
        assert "inside a job" not in agent.log.read_text()
        program.do("job")
        program.do("job")
        program.quit()
        assert left(agent, "vision")["jobs"] == 2


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_job_that_took_the_lease_outlives_the_agent(
    start: Start, tmp_path: Path, kind: str
) -> None:
    with impatient(tmp_path) as agent:
        register(agent, "vision", "alone")
        program = told(start, agent, "vision")
        program.do("job")
        wait_until(lambda: agent.task("vision")["jobs"] == 1, "it is counted")
        program.do("begin")
        ends(kind)(agent)
        agent.start()
        assert "1 of them inside a job" in agent.log.read_text()
        asker = raw(agent, "alone")
        asked = asker.begin(p.NO_ARENA, wait=False)
        wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
        program.do("end")
        assert asker.expect(p.Grant).job == asked
        # The lease is free a moment before its job is told to be over.
        record = wait_until(lambda: agent.call("jobs", since=0)["jobs"], "its job is recorded")
        assert [job["task"] for job in record] == ["vision"]
        asker.end(asked)
        program.do("job")
        program.quit()


def test_a_job_that_took_the_lease_and_does_not_come_back_is_ended(tmp_path: Path) -> None:
    with impatient(tmp_path, holder_grace_s=1) as agent:
        register(agent, "alone-1", "alone-2")
        taker = subprocess.Popen(
            [sys.executable, "-c", _TAKES, str(agent.run_dir / "tasks/alone-1/tierline.sock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with taker:
            assert taker.stdout is not None
            assert taker.stdout.readline() == b"taken\n"
            agent.kill()
            agent.start()
            asker = raw(agent, "alone-2")
            asker.end(asker.begin(p.NO_ARENA))
            assert taker.wait(PATIENCE_S) == -9


_TAKES = """
import sys
from pathlib import Path
from tests.cuda.test_gpu_open import GpuLeaseClient
from tierline_agent.transport import protocol as p
client = GpuLeaseClient(Path(sys.argv[1]))
client.hello()
client.end(client.begin(p.NO_ARENA))
client.counted()
assert client.take() is not None
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_agent_is_killed_again_and_again(start: Start, tmp_path: Path) -> None:
    """Whatever state it leaves, no two clients ever have the device at once."""
    with impatient(tmp_path) as agent:
        names = ("vision-1", "vision-2")
        register(agent, *names)
        programs = [start(agent, name, "contending") for name in names]
        for _ in range(5):
            wait_until(lambda: all(agent.task(name)["jobs"] > 3 for name in names), "jobs run")
            agent.kill()
            agent.start()
        for program in programs:
            program.process.kill()
            _, err = program.process.communicate()
            assert "does not hold" not in err


# -- hostile clients


def others_go_on(agent: AgentProcess) -> None:
    other = raw(agent, "alone-2")
    for _ in range(2):
        other.end(other.begin(p.NO_ARENA))
    assert agent.task("alone-2")["jobs"] == 2


def test_a_lock_on_a_closed_lease_keeps_nobody_out(agent: AgentProcess) -> None:
    register(agent, "alone-1", "alone-2")
    hostile = raw(agent, "alone-1")
    assert hostile.lock_lease()
    others_go_on(agent)
    hostile.end(hostile.begin(p.NO_ARENA))


def test_a_lock_on_an_cached_lease_is_a_job_until_it_says_otherwise(agent: AgentProcess) -> None:
    register(agent, "alone-1", "alone-2")
    hostile = opened(agent, "alone-1")
    assert hostile.lock_lease()
    other = raw(agent, "alone-2")
    job = other.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "it waits")
    asked = hostile.begin(p.NO_ARENA, wait=False)  # with the lock held
    assert other.expect(p.Grant).job == job
    other.end(job)
    assert hostile.expect(p.Grant).job == asked
    hostile.end(asked)
    other.end(other.begin(p.NO_ARENA))


@pytest.mark.parametrize("junk", [b"", b"\xff" * 16, b"\xff" * 9999, bytes(16)])
def test_a_file_that_its_client_writes_into_harms_nobody(agent: AgentProcess, junk: bytes) -> None:
    """As one that is root in its pod can."""
    register(agent, "alone-1", "alone-2")
    hostile = opened(agent, "alone-1")
    writable = os.open(f"/proc/self/fd/{hostile.lease}", os.O_RDWR)
    os.ftruncate(writable, 0)
    os.pwrite(writable, junk, 0)
    os.close(writable)
    others_go_on(agent)
    hostile.end(hostile.begin(p.NO_ARENA))
    hostile.counted()
    job = hostile.take()
    assert job is not None
    hostile.give_back(job)


@pytest.mark.parametrize("junk", [b"", b"\xff" * 16, b"\x01"])
def test_such_a_file_stops_no_agent_from_starting(tmp_path: Path, junk: bytes) -> None:
    with impatient(tmp_path, holder_grace_s=0.5) as agent:
        register(agent, "alone-1", "alone-2")
        hostile = opened(agent, "alone-1")
        writable = os.open(f"/proc/self/fd/{hostile.lease}", os.O_RDWR)
        os.ftruncate(writable, 0)
        os.pwrite(writable, junk, 0)
        os.close(writable)
        agent.kill()
        agent.start()
        others_go_on(agent)


TAKEN = p.JobTaken(9, p.NO_ARENA, p.JobFlags(0), 0, 1 << 60, 0)
RETURNED = p.JobReturned(9, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "messages",
    [
        (RETURNED,),
        (TAKEN, TAKEN),
        (TAKEN, p.JobEnd(9, 0, 0, 0, 0)),
        (TAKEN, p.JobReturned(8, 0, 0, 0, 0)),
        (TAKEN, p.JobBegin(10, p.NO_ARENA, p.JobFlags(0), 0, 1)),
        (TAKEN, p.Yield(9, 0, 0, 0, 1, p.JobFlags(0))),
        (TAKEN, p.Rewind(9, 0, 0, 0)),
        (p.JobTaken(9, 0, p.JobFlags(0), 0, 1, 0),),
        (p.JobTaken(9, p.NO_ARENA, p.JobFlags(0), 2, 1, 0),),
    ],
)
def test_what_makes_no_sense_is_refused(
    agent: AgentProcess, messages: tuple[p.Message, ...]
) -> None:
    register(agent, "alone-1", "alone-2")
    hostile = opened(agent, "alone-1")
    for message in messages:
        hostile.send(message)
    with pytest.raises((RefusedError, ClosedError)):
        hostile.expect(p.Error)
    others_go_on(agent)


@pytest.mark.parametrize("flags", [p.JobFlags(0), p.JobFlags.WARMUP])
def test_a_job_that_took_what_was_not_open_is_refused(
    agent: AgentProcess, flags: p.JobFlags
) -> None:
    register(agent, "alone-1", "alone-2")
    hostile = raw(agent, "alone-1")
    hostile.send(replace(TAKEN, flags=flags))
    with pytest.raises(RefusedError):
        hostile.expect(p.Error)
    others_go_on(agent)


KEEPS = """
import sys, time
from dataclasses import replace
from pathlib import Path
from tests.cuda.test_gpu_open import RETURNED, TAKEN, GpuLeaseClient
from tierline_agent.transport import protocol as p

client, tells = GpuLeaseClient(Path(sys.argv[1])), sys.argv[2]
client.hello()
client.end(client.begin(p.NO_ARENA))
client.counted()
assert client.lock_lease()
if tells == "nonsense":
    client.send(TAKEN)
print("taken", flush=True)
sys.stdin.readline()
client.unlock_lease()
if tells == "late":
    now_ns = time.monotonic_ns()
    client.send(replace(TAKEN, release_ns=now_ns, taken_ns=now_ns))
    client.send(RETURNED)
else:
    client.begin(p.NO_ARENA, wait=False)
sys.stdin.readline()
"""
"""Takes the lease, gives it back at the first line, and tells what it likes of that."""


@pytest.mark.parametrize("tells", ["nothing", "late", "nonsense"])
def test_a_taken_lease_is_owed_for_whatever_is_told_of_it(tmp_path: Path, tells: str) -> None:
    """Others wait for less than the limit of a job, and no job that is told of takes so long."""
    with impatient(tmp_path, job_limit_s=0.5) as agent:
        for name in ("greedy", "urgent"):
            brief = LEASE_ALONE | {"predictedJobTime": "1ms"}
            agent.register(name, brief, period_ns=FAR_NS, deadline_ns=FAR_NS)
        urgent, socket = raw(agent, "urgent"), agent.run_dir / "tasks" / "greedy" / "tierline.sock"
        # What it owes is paid by time: on a slow machine more of it than one turn costs.
        while not agent.task("greedy")["throttled"]:
            words = [sys.executable, "-c", KEEPS, str(socket), tells]
            with subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as keeps:
                assert keeps.stdin is not None
                assert keeps.stdout is not None
                assert keeps.stdout.readline() == "taken\n"
                urgent.begin(p.NO_ARENA, wait=False)
                wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"], "one waits")
                began = time.monotonic()
                while time.monotonic() < began + 0.45:
                    agent.snapshot()
                with suppress(
                    BrokenPipeError
                ):  # on a slow machine it was killed by now, and owes it
                    keeps.stdin.write("\n")
                    keeps.stdin.flush()
                urgent.end(urgent.expect(p.Grant).job)
                keeps.kill()
            wait_until(lambda: not agent.task("greedy")["clients"], "it has left")
