"""What becomes of what a client had when it leaves, at bad times."""

from __future__ import annotations

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
    content,
    plan,
    wait_until,
)

from tierline_agent import protocol as p
from tierline_agent.recovery import ClientBook

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
"""An agent whose part that speaks to Kubernetes ends only when somebody opens a pipe."""


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


def test_a_plan_stays_until_a_client_that_left_is_done_with_its_memory(agent: AgentProcess) -> None:
    agent.register("before", plan(2, resident=(0, 1), ring=0))
    agent.register("vision", plan(4, ring=3))
    before = agent.client("before")
    assert before.welcome is not None
    kept = before.load(content(1, 2))
    agent.kill()
    agent.start()

    leaver = agent.client("vision")
    leaver.reserve(4 * EXTENT_BYTES)
    leaver.send(p.Store(0, 0, 0, EXTENT_BYTES))  # nothing is stored before that client is back
    leaver.close()
    wait_until(lambda: not agent.task("vision")["clients"], "the leaver is gone")
    smaller = terms("vision", plan(4, ring=2))
    assert agent.call("revise", **smaller) == {"ok": True, "complete": False}
    assert agent.extents()["ring"] == 3

    following = agent.client("vision")
    assert len(following.reserve(4 * EXTENT_BYTES).ring) == 3, "a program started anew is served"

    again = agent.client("before", before.welcome.reattach_token)
    again.attach(kept)
    following.close()
    wait_until(lambda: agent.call("revise", **smaller)["complete"], "the plan is the new one")
    assert agent.extents()["ring"] == 2


def test_a_job_that_ended_behind_many_messages_is_counted_though_its_client_left(
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
