"""What becomes of what a client had when it leaves, at bad times."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    TIMEOUT_S,
    AgentProcess,
    plan,
    wait_until,
)

from tierline_agent.scheduling.recovery import ClientBook
from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

STOPS_SLOWLY = """
import sys
from pathlib import Path
from tierline_agent import app
from tierline_agent.__main__ import main

class Thread:
    def __init__(self, config, *_):
        self.end = Path(config.run_dir) / "end"
    def start(self): pass
    def stop(self): self.end.read_bytes()

app.KubernetesThread = Thread
sys.exit(main())
"""
"""An agent with a Kubernetes thread that ends only when somebody opens a pipe."""


STORES_SLOWLY = """
import fcntl
import sys
from pathlib import Path
from tierline_agent.__main__ import main
from tierline_agent.tiers import Store

gate = Path(sys.argv[-1]).with_name("gate")
put = Store.put

def slowly(*arguments):
    with gate.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return put(*arguments)

Store.put = slowly
sys.exit(main())
"""
"""An agent with tiers that store nothing while somebody has the lock of a file."""


class SlowlyStopping(AgentProcess):
    """An agent that goes on serving for a while after SIGTERM."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            kubernetes={
                "pods_dir": str(folder / "run" / "tasks"),
                **{name: str(folder) for name in ("cdi_dir", "plugin_dir", "registry_dir")},
                "library_dir": str(folder / "lib"),
            },
        )
        self.run_dir.mkdir()
        os.mkfifo(self.run_dir / "end")

    def _launch(self, config: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", STOPS_SLOWLY, "--config", str(config)],
                stderr=log,
                stdout=log,
                env=environment,
            )

    def begin_to_stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        wait_until(self._stops, "the agent stops")

    def stop(self) -> int:
        assert self.process is not None
        if not self._stops():
            self.begin_to_stop()
        (self.run_dir / "end").write_bytes(b"")
        self.process.wait(TIMEOUT_S)
        return super().stop()

    def _stops(self) -> bool:
        return "stopping; " in self.log.read_text()


class SlowlyStoring(AgentProcess):
    """An agent that is in the middle of each STORE from `hold` on, until `let_go`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._gate = (folder / "gate").open("w")

    def _launch(self, config: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", STORES_SLOWLY, "--config", str(config)],
                stderr=log,
                stdout=log,
                env=environment,
            )

    def hold(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)

    def let_go(self) -> None:
        self._gate.close()


def terms(name: str, plan: dict[str, Any]) -> dict[str, Any]:
    times = {"period_ns": 10**9, "deadline_ns": 10**9}
    return {"name": name, "domain": "default", **times, "plan": plan}


def test_a_client_that_dies_while_the_agent_stops_leaves_the_device_to_others(
    tmp_path: Path,
) -> None:
    agent = SlowlyStopping(tmp_path)
    agent.start()
    try:
        agent.register("holder", plan(2))
        agent.register("waiting", plan(2))
        holder, waiting = agent.client("holder"), agent.client("waiting")
        assert waiting.welcome is not None
        holder.begin(p.NO_ARENA)
        job = waiting.begin(p.NO_ARENA, wait=False)
        assert isinstance(waiting.ask(p.Stats(), p.Statistics), p.Statistics)
        agent.begin_to_stop()
        holder.close()
        assert waiting.expect(p.Grant).job == job
    finally:
        assert agent.stop() == 0, agent.log.read_text()
    written = ClientBook(agent.run_dir / "clients.json").load()
    assert [one.token for one in written] == [waiting.welcome.reattach_token], "the next agent's"


def test_a_plan_stays_until_a_client_that_left_is_done_with_its_memory(tmp_path: Path) -> None:
    agent = SlowlyStoring(tmp_path)
    agent.start()  # it stores something itself, to measure its tiers
    agent.hold()
    try:
        agent.register("vision", plan(4, ring=3))
        leaver = agent.client("vision")
        leaver.reserve(4 * EXTENT_BYTES)
        leaver.send(p.Store(0, 0, 0, EXTENT_BYTES))
        leaver.close()
        wait_until(lambda: not agent.task("vision")["clients"], "the leaver is gone")
        smaller = terms("vision", plan(4, ring=2))
        assert agent.call("revise", **smaller) == {"ok": True, "complete": False}
        assert agent.extents()["ring"] == 3

        following = agent.client("vision")
        following.send(p.Reserve(0, 1, 4 * EXTENT_BYTES, 0))
        following.ask(p.Stats(), p.Statistics)  # a program that starts again waits for that memory
        following.close()
        wait_until(lambda: not agent.task("vision")["clients"], "that program is gone, too")
        again = agent.client("vision")
        again.ask(p.Stats(), p.Statistics)  # a turn later, that one has given all up
        assert not agent.call("revise", **smaller)["complete"], "the leaver is not done yet"

        agent.let_go()
        wait_until(lambda: agent.call("revise", **smaller)["complete"], "the plan is the new one")
        assert agent.extents()["ring"] == 2
        assert len(again.reserve(4 * EXTENT_BYTES).ring) == 2, "and is served then"
    finally:
        agent.let_go()
        assert agent.stop() == 0, agent.log.read_text()


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen"])
def test_a_client_that_comes_back_waits_for_what_its_connection_still_did(
    tmp_path: Path, seen: bool
) -> None:
    agent = SlowlyStoring(tmp_path)
    agent.start()
    try:
        agent.register("vision", plan(2, resident=(0,)))
        client = agent.client("vision")
        loaded = client.load(os.urandom(2 * EXTENT_BYTES))
        assert client.welcome is not None
        agent.hold()
        asked = p.Store(0, 1, 0, EXTENT_BYTES)  # the same weights, between two jobs
        if seen:
            client.send(asked)
            client.socket.close()
            wait_until(lambda: not agent.task("vision")["clients"], "its connection is gone")
        else:  # of a client that has asked for so much nothing is read, not even its end
            client.send_together(*[asked] * 40)
            client.socket.close()
        back = agent.connect("vision")
        back.send(p.Hello(back.device, client.welcome.reattach_token, "test", p.MINOR))
        agent.client("vision").close()  # a turn later
        agent.let_go()
        back.welcomed()
        back.attach(loaded)
    finally:
        agent.stop()


def test_a_job_that_ended_after_many_messages_is_counted_though_its_client_left(
    shared_agent: AgentProcess,
) -> None:
    shared_agent.register("talker", plan(2))
    client = shared_agent.client("talker")
    job = client.begin(p.NO_ARENA)
    notices = [p.encode(p.Notice(p.NoticeKind.ORDER_CHANGED, 1, "x"), 1)] * 200
    client.send_bytes(b"".join([*notices, p.encode(p.JobEnd(job, 1, 0, 0, 0), 2)]))
    client.close()
    wait_until(lambda: not shared_agent.task("talker")["clients"], "the client is gone")
    assert shared_agent.task("talker")["jobs"] == 1
    assert shared_agent.task("talker")["broken"] == 0
