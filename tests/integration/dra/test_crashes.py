"""Preparing and unpreparing, killed at every single step, with a real agent and real files."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.dra.claims import NODE, claim
from tests.integration.dra.crasher import prepared_in

from tierline_agent.admin.client import Agent
from tierline_agent.kubernetes.grants import Grant, grant_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # also on a busy machine
MOST_STEPS = 200


class Machine:
    """A node's folders, its agent, and a way to prepare claims that may be cut off."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.folder = agent.folder
        bundle = self.folder / "opt" / "1" / "python"
        bundle.mkdir(parents=True)
        (bundle / "plugin.py").write_text("# the plugin")
        (bundle.parent / "libtierline.so").write_text("the library")
        self._crasher = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.dra.crasher", str(self.folder)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        with self._crasher:
            assert self._crasher.stdin is not None
            self._crasher.stdin.close()

    def cut_off(self, what: str, body: dict[str, Any], last: int) -> bool:
        """Begin to prepare or unprepare and die at step `last`; whether it came so far."""
        assert self._crasher.stdin is not None
        assert self._crasher.stdout is not None
        order = {"act": what, "claim": body, "node": NODE, "last": last}
        self._crasher.stdin.write(json.dumps(order) + "\n")
        self._crasher.stdin.flush()
        answer = self._crasher.stdout.readline().strip()
        assert answer in {"killed", "done 0"}, answer
        return answer == "killed"

    def prepare(self, body: dict[str, Any]) -> None:
        self._place("prepare", grant_of(body, NODE))

    def unprepare(self, uid: str) -> None:
        self._place("unprepare", uid)

    def settle(self, grants: dict[str, Grant | None]) -> None:
        self._place("settle", lambda: grants)

    def _place(self, method: str, argument: Any) -> None:
        async def act() -> None:
            agent = Agent(self.agent.run_dir / "admin.sock", 1 << 20)
            prepared = prepared_in(self.folder, agent)
            await getattr(prepared, method)(argument)
            prepared.remove_unused_versions()
            await agent.close()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(act())

    def description(self, uid: str) -> Path:
        return self.folder / "cdi" / f"tierline.io-claim-{uid}.json"

    def is_prepared(self, uid: str) -> bool:
        """Whether a pod could start; asserts that nothing it needs is missing then."""
        if not self.description(uid).exists():
            return False
        edits = json.loads(self.description(uid).read_text())["devices"][0]["containerEdits"]
        for mount in edits["mounts"]:
            assert Path(mount["hostPath"]).is_dir(), mount
        home = Path(edits["mounts"][0]["hostPath"])
        assert (home / "libtierline.so").read_text() == "the library"
        assert (home / "python").is_dir()
        assert (home / "tierline.sock").is_socket()
        assert uid in self.tasks()
        return True

    def tasks(self) -> set[str]:
        return {task["name"] for task in self.agent.snapshot()["tasks"]}

    def assert_clean(self) -> None:
        assert self.tasks() == set()
        for folder in ("run/tasks", "cdi"):
            path = self.folder / folder
            assert not path.is_dir() or list(path.iterdir()) == []
        assert len(list((self.folder / "lib").iterdir())) == 1


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with TemporaryDirectory(prefix="tl-") as folder:  # short: sockets have long names in it
        agent = AgentProcess(Path(folder))
        agent.start()
        made = Machine(agent)
        try:
            yield made
        finally:
            made.close()
            agent.stop()


def test_preparing_goes_on_from_a_crash_at_any_step(machine: Machine) -> None:
    for last in count(1):
        assert last < MOST_STEPS
        body = claim()
        uid = body["metadata"]["uid"]
        shutil.rmtree(machine.folder / "lib", ignore_errors=True)
        if not machine.cut_off("prepare", body, last):
            break
        machine.is_prepared(uid)
        machine.prepare(body)
        assert machine.is_prepared(uid)
        machine.prepare(body)  # the kubelet asks again
        machine.unprepare(uid)
        machine.assert_clean()
    assert last > 15, "too few steps were seen: does the audit hook still hear them?"
    machine.unprepare(uid)


def test_a_claim_that_went_during_a_crash_leaves_nothing(machine: Machine) -> None:
    for last in count(1):
        assert last < MOST_STEPS
        body = claim()
        cut = machine.cut_off("prepare", body, last)
        machine.settle({})
        machine.assert_clean()
        if not cut:
            break


def test_unpreparing_goes_on_from_a_crash_at_any_step(machine: Machine) -> None:
    for last in count(1):
        assert last < MOST_STEPS
        body = claim()
        uid = body["metadata"]["uid"]
        machine.prepare(body)
        cut = machine.cut_off("unprepare", body, last)
        machine.is_prepared(uid)
        if cut:
            machine.settle({uid: grant_of(body, NODE)})  # the claim is still there
            machine.is_prepared(uid)
        machine.unprepare(uid)
        machine.assert_clean()
        if not cut:
            break
