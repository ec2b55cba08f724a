"""Builds the client library plainly and under sanitizers, and runs its C tests and scenarios.

Each scenario is a C program (scenarios.c) against a process of agent_peer.py over a real socket;
this file plays the administrator: it starts, kills and restarts the agent, and looks at the events
that the agent noted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests import native_builds
from tests.native_builds import FLAVOURS, ROOT, run, tool

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allow_user_segv_handler=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:report_signal_unsafe=0",
}
PATIENCE_S = 300
PATIENT = {"TIERLINE_RECONNECT_S": "300"}
"""Of programs with an agent that starts again: a busy machine takes long to do that."""


@pytest.fixture(params=list(FLAVOURS))
def build(request: pytest.FixtureRequest) -> Path:
    """The build folder of each kind of build."""
    return native_builds.build(request.param)


class Agent:
    """The agent of one test: started, killed and started again on the same socket and store."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "s"
        self.store = folder / "store"
        self.store.mkdir()
        self._process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.native.agent_peer", "--socket", self.socket,
             "--store", self.store, *options],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self.wait_dead()

    def wait_dead(self) -> None:
        assert self._process
        assert self._process.stdout
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        self._process = None

    def events(self, kind: str) -> list[dict[str, Any]]:
        log = self.store / "events.jsonl"
        written = log.read_text() if log.exists() else ""
        lines = written[: written.rfind("\n") + 1].splitlines()  # the last may be half there
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The event of this kind that is the so many-th."""
        end_s = time.monotonic() + PATIENCE_S
        while len(found := self.events(kind)) < count:
            assert time.monotonic() < end_s, f"the agent noted {len(found)} {kind}"
            time.sleep(0.005)
        return found[count - 1]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.kill()


class Scenario:
    """One running scenario program."""

    def __init__(self, build: Path, name: str, agent: Agent, **environment: str) -> None:
        self._process = subprocess.Popen(
            [build / "native-tests" / "scenarios", name, agent.socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **PATIENT, **SANITIZER_OPTIONS, **environment},
        )  # fmt: skip

    def expect_line(self, line: str) -> None:
        assert self._out.readline() == f"{line}\n", self._rest()

    def answer(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("done\n")
        self._process.stdin.flush()

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout
        return self._process.stdout

    def _rest(self) -> str:
        out, err = self._process.communicate(timeout=PATIENCE_S)
        return f"exit {self._process.returncode}\n{out}\n{err}"

    def held(self) -> str:
        """Wait for the end; every claim held."""
        return self._ended_well()[0]

    def held_saying(self) -> str:
        """Wait for the end; every claim held. Returns what it said on stderr."""
        return self._ended_well()[1]

    def _ended_well(self) -> tuple[str, str]:
        out, err = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, f"{out}\n{err}"
        assert out.endswith("held\n")
        return out, err

    def died(self) -> str:
        """Wait for the end; the process died of a fault. Returns what it said."""
        _, err = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode != 0
        assert "does not hold" not in err
        return err


@pytest.mark.slow
def test_c_tests(build: Path) -> None:
    run(tool("ctest"), "--test-dir", str(build / "native-tests"), "--output-on-failure")


STREAMED = ("--resident", "0,4", "--ring", "2")
STREAMING = ["life_of_an_arena", "reports", "mistakes_of_the_caller", "in_order", "skipping",
             "going_back", "backwards", "leaving_early", "outside_a_job", "unforeseen",
             "lease_alone", "two_threads_with_jobs", "readers_between_jobs",
             "a_job_ended_elsewhere", "writing", "foreign_faults", "forking",
             "many_children", "writing_and_forking", "freeing_and_forking",
             "transfers", "transfers_into", "transfers_while_jobs_run", "other_calls",
             "descriptors_taken_over", "touched_origins", "written_origins",
             "origins_and_forking",
             "origins_of_transfers"]  # fmt: skip


@pytest.mark.parametrize("name", STREAMING)
def test_scenario(build: Path, agent: Agent, name: str) -> None:
    agent.start("--resident", "0,4", "--ring", "2")
    Scenario(build, name, agent).held()
    if name == "writing":
        notices = agent.events("notice")
        assert [n["kind"] for n in notices] == ["LEFT_MANAGEMENT"] * 4
    if name == "reports":
        assert [p["first"] for p in agent.events("profile")] == [0, 744, 0]
        assert agent.events("profile")[0]["names"] == ["x" * 63, "layer 1"]
        assert agent.events("output")[0]["output"] == "ab" * 32


def test_a_write_to_an_origin_in_a_job_ends_the_process(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    said = Scenario(build, "origin_written_in_a_job", agent).died()
    assert "code that keeps its address writes it, in the middle of a job" in said


# ThreadSanitizer has no threads that a fork's child starts.
@pytest.mark.parametrize("build", native_builds.WITHOUT_THREADS, indirect=True)
@pytest.mark.parametrize("name", ["connecting_in_a_child", "ending_and_forking"])
def test_children_and_their_clients(build: Path, agent: Agent, name: str) -> None:
    agent.start(*STREAMED)
    Scenario(build, name, agent).held()


# A sanitizer's runtime has these functions itself.
@pytest.mark.parametrize("build", ["plain"], indirect=True)
@pytest.mark.parametrize("name", ["blocking_all_signals", "started_with_all_blocked"])
def test_weights_are_read_whatever_signals_are_blocked(
    build: Path, agent: Agent, name: str
) -> None:
    agent.start(*STREAMED)
    blocked = signal.valid_signals() if name == "started_with_all_blocked" else []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        program = Scenario(build, name, agent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    program.held()


@pytest.mark.parametrize("build", native_builds.WITHOUT_THREADS, indirect=True)
def test_a_child_of_a_killed_process_is_told_what_is_missing(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    said = Scenario(build, "killed_and_forked", agent).held_saying()
    assert "a weight cannot be read: the process that this one was forked from is gone" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--resident", "", "--ring", "3"),
        ("--resident", "0,1,2,3,4,5,6,7,8", "--ring", "0"),
        ("--resident", "0,2,4,6,8", "--ring", "1"),
    ],
    ids=["nothing resident", "all resident", "a ring of one slot"],
)
def test_placements(build: Path, agent: Agent, options: tuple[str, ...]) -> None:
    agent.start(*options)
    Scenario(build, "backwards", agent).held()


def test_a_revoked_job_reads_right_bytes_slowly(build: Path, agent: Agent) -> None:
    agent.start("--resident", "0,4", "--ring", "2", "--revoke-at", "3")
    Scenario(build, "revoked", agent).held()
    assert agent.wait_for("acknowledged") == {"event": "acknowledged", "job": 1}


MALFORMED = [f"{kind}={how}" for kind in ("Welcome", "Reserved", "Grant", "Fetched", "Ended")
             for how in ("length", "type", "cut", "sequence", "bytes", "other")
             if (kind, how) != ("Ended", "other")]  # fmt: skip


@pytest.mark.parametrize("how", MALFORMED)
def test_a_malformed_reply_is_an_error(agent: Agent, how: str) -> None:
    agent.start("--resident", "0,4", "--ring", "2", "--malform", how)
    Scenario(native_builds.build("address"), "nonsense", agent, TIERLINE_RECONNECT_S="0.05").held()


@pytest.mark.parametrize(
    "options",
    [("--misplace", "slot"), ("--misplace", "count"), ("--misplace", "descriptors"),
     ("--short-fetch",), ("--refuse", "Reserve"), ("--refuse", "Store"), ("--refuse", "Seal"),
     ("--refuse", "JobBegin"), ("--refuse", "JobEnd"), ("--refuse", "Fetch"), ("--refuse", "Hello"),
     ("--refuse", "Free")],
    ids=" ".join,
)  # fmt: skip
def test_nonsense_and_refusals_are_errors(agent: Agent, options: tuple[str, ...]) -> None:
    agent.start("--resident", "0,4", "--ring", "2", *options)
    out = Scenario(
        native_builds.build("address"), "nonsense", agent, TIERLINE_RECONNECT_S="0.05"
    ).held()
    if options[0] == "--refuse":
        assert out.startswith("-4 ")
        assert f"no {options[1]} here" in out


@pytest.mark.parametrize("scenario", ["agent_lost_in_a_job", "job_revoked_by_a_restart"])
def test_an_agent_killed_in_mid_stream(build: Path, agent: Agent, scenario: str) -> None:
    agent.start(*STREAMED, "--hold-at", "3")
    program = Scenario(build, scenario, agent)
    program.expect_line("streaming")
    agent.wait_for("holding")
    agent.kill()
    agent.start(*STREAMED, *(["--revoke-resumed"] if "revoked" in scenario else []))
    program.held()
    assert agent.events("resumed") == [{"event": "resumed", "job": 1, "published": 3}]
    assert [event["token"] for event in agent.events("hello")] == [0, 4711]


def test_an_agent_killed_between_jobs(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "agent_lost_between_jobs", agent)
    for _ in range(2):
        program.expect_line("kill the agent")
        agent.kill()
        program.answer()
        agent.start(*STREAMED)
    program.held()
    assert not agent.events("resumed")


def test_an_idle_program_is_back_before_it_wants_anything(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "agent_lost_between_jobs", agent)
    for times in (1, 2):
        program.expect_line("kill the agent")
        agent.kill()
        agent.start(*STREAMED)
        assert agent.wait_for("hello", 1 + times)["token"] == 4711
        program.answer()
    program.held()


@pytest.mark.parametrize("request_", ["JobBegin", "JobEnd", "Fetch"])
def test_an_agent_killed_by_a_request(build: Path, agent: Agent, request_: str) -> None:
    agent.start(*STREAMED, "--die-on", request_)
    program = Scenario(build, "agent_lost_at_a_request", agent)
    agent.wait_dead()
    agent.start(*STREAMED)
    program.held()


@pytest.mark.parametrize("request_", ["JobBegin", "JobEnd", "Fetch"])
def test_an_agent_that_hangs_up(build: Path, agent: Agent, request_: str) -> None:
    agent.start(*STREAMED, "--hang-up-on", request_)
    Scenario(build, "agent_lost_at_a_request", agent).held()


@pytest.mark.parametrize("request_", ["Reserve", "Store", "Seal"])
def test_an_agent_killed_while_loading(build: Path, agent: Agent, request_: str) -> None:
    agent.start(*STREAMED, "--die-on", request_)
    program = Scenario(build, "loading_again", agent)
    agent.wait_dead()
    program.expect_line("the agent died")
    agent.start(*STREAMED)
    program.answer()
    program.held()


def test_an_agent_gone_for_good_is_an_error(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "agent_gone_for_good", agent, TIERLINE_RECONNECT_S="0.1")
    program.expect_line("kill the agent")
    agent.kill()
    program.answer()
    program.expect_line("start the agent")
    agent.start(*STREAMED)
    program.answer()
    program.held()


def test_a_read_without_an_agent_kills_the_process(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "reading_what_cannot_be_had", agent, TIERLINE_RECONNECT_S="0.1")
    program.expect_line("loaded")
    agent.kill()
    program.answer()
    assert "tierline: a weight cannot be read: the agent at" in program.died()


def test_a_transfer_without_an_agent_says_why(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "transfers_that_fail", agent, TIERLINE_RECONNECT_S="0.1")
    program.expect_line("loaded")
    agent.kill()
    program.answer()
    assert "tierline: a weight cannot be read: the agent at" in program.held_saying()


def test_a_read_of_a_corrupt_extent_kills_the_process(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED, "--corrupt", "5")
    program = Scenario(build, "reading_what_cannot_be_had", agent)
    program.expect_line("loaded")
    program.answer()
    said = program.died()
    assert "tierline: a weight cannot be read: the agent refused: the extent's digest" in said


def test_a_read_before_the_seal_kills_the_process(build: Path, agent: Agent) -> None:
    agent.start(*STREAMED)
    program = Scenario(build, "reading_before_the_seal", agent)
    assert "arena 0 is not sealed yet" in program.died()
