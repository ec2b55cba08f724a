"""A real agent in a process of its own, with an administrator's connection to it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from tests import nursery
from tests.integration.agent.raw_client import RawClient

Process = nursery.Started | subprocess.Popen[bytes]

EXTENT_BYTES = 64 << 10
TIMEOUT_S = 120.0
_ROOT = Path(__file__).parents[3]
PATIENCE = {"TIERLINE_RECONNECT_S": "300"}
"""Of programs with an agent that starts again, on a busy machine; it has its own with them."""


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and return its value; fails with `what` was waited for.

    To look takes the time of the test and mostly the agent's: it looks less often the longer it
    waits.
    """
    begin = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - begin
        assert waited_s < TIMEOUT_S, f"never happened: {what}"
        time.sleep(min(0.002 + waited_s / 20, 0.02))
    return value


class AgentProcess:
    """One agent's folders, its process now, and how to talk to it.

    `environment` is added to that of the agent and of the programs. `module` is the agent as it is
    run, `errors` a descriptor for its log instead of the file; a `fresh` one is no fork.
    """

    def __init__(
        self,
        folder: Path,
        fast_extents: int = 16,
        *,
        environment: Mapping[str, str] | None = None,
        module: str = "tierline_agent",
        errors: int | None = None,
        fresh: bool = False,
        dram_bytes: int = 8 << 20,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.module = module
        self.errors = errors
        self.fresh = fresh
        self.environment = {**os.environ, **PATIENCE, **(environment or {})}
        self.run_dir = folder / "run"
        self.config = folder / "agent.json"
        self.log = folder / "agent.log"
        self.store = Path("/dev/shm") / f"tierline-test-{uuid4().hex}"  # noqa: S108 - dram is a tmpfs
        values = {
            "state_dir": str(folder / "state"),
            "run_dir": str(self.run_dir),
            "device": {
                "kind": "cpu",
                "fast_bytes": fast_extents * EXTENT_BYTES,
                "extent_bytes": EXTENT_BYTES,
            },
            "tiers": [{"name": "dram", "path": str(self.store), "size_bytes": dram_bytes}],
            "recovery_s": 30,
            "holder_grace_s": 300,
            "job_limit_s": 3000,
            "revoke_grace_s": 300,  # a silent client is killed, the test's process too
            **settings,
        }
        self._values = values
        self.config.write_text(json.dumps(values))
        self.process: Process | None = None
        self._clients: list[RawClient] = []
        self._programs: list[TaskProcess] = []
        self._following: list[NextAgent] = []

    def start(self) -> None:
        """Start the agent and wait until it answers, and its log has what it said before that."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        self.launch()
        wait_until(self._answers, "the agent answers")
        if self.errors is None:
            wait_until(lambda: b"ready in" in self.log.read_bytes()[begin:], "that is in its log")

    def launch(self) -> None:
        """Start the agent."""
        self.process = self._launch(self.config, self.environment)

    def stand_by(
        self,
        environment: Mapping[str, str] | None = None,
        until: str = "ready for the end",
        **settings: Any,
    ) -> NextAgent:
        """Start the next agent, with other settings.

        Returns when it has said `until`: by default, that it has prepared what it could.
        """
        folder = self.folder / "next"
        folder.mkdir(exist_ok=True)
        kubernetes = {
            "hand_over": True,
            "pods_dir": str(self.run_dir / "tasks"),
            **{name: str(folder) for name in ("cdi_dir", "plugin_dir", "registry_dir")},
            "library_dir": str(folder / "lib"),
        }
        config = folder / "agent.json"
        config.write_text(json.dumps({**self._values, "kubernetes": kubernetes, **settings}))
        begin = self.log.stat().st_size
        process = self._launch(config, {**self.environment, **(environment or {})})
        following = NextAgent(process, self.log, begin)
        self._following.append(following)
        following.await_words(until)
        return following

    def take_over(self, following: NextAgent) -> None:
        """Have the next agent be this one; the one before has ended."""
        self.process = following.process
        following.await_words("ready in")

    def _launch(self, config: Path, environment: Mapping[str, str]) -> Process:
        words = self.module, "--config", str(config)
        with self.log.open("ab") as log:
            errors = log if self.errors is None else self.errors
            if not self.fresh:
                return nursery.start(*words, environment=environment, stderr=errors, stdout=log)
            python = [sys.executable, "-m", *words]
            return subprocess.Popen(python, cwd=_ROOT, env=environment, stderr=errors, stdout=log)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.call("node"))
        except OSError:
            return False

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask the administrator's socket; returns the answer, good or bad."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(TIMEOUT_S)
            admin.connect(str(self.run_dir / "admin.sock"))
            admin.sendall(json.dumps({"method": method, **arguments}).encode() + b"\n")
            with admin.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        return answer

    def register(self, name: str, plan: dict[str, Any], **values: Any) -> dict[str, Any]:
        """Register a task; see `plan`."""
        registration = {
            "name": name,
            "domain": "default",
            "period_ns": 10**9,
            "deadline_ns": 10**9,
            "plan": plan,
            **values,
        }
        return self.call("register", **registration)

    def client(self, task: str, token: int = 0, held: int = 0) -> RawClient:
        """A client of a task that has said HELLO, and which job has the lease alone."""
        client = self.connect(task)
        client.hello(token, held=held)
        return client

    def connect(self, task: str, kind: type[RawClient] = RawClient) -> RawClient:
        """A connection to a task's socket on which nothing was said yet."""
        client = kind(self.run_dir / "tasks" / task / "tierline.sock")
        self._clients.append(client)
        return client

    def snapshot(self) -> dict[str, Any]:
        """The agent's state now."""
        answer: dict[str, Any] = self.call("snapshot")["snapshot"]
        return answer

    def program(
        self, task: str, seed: int, extents: int, kind: ProgramKind | None = None
    ) -> TaskProcess:
        """A process of the task that has loaded its content."""
        path = self.run_dir / "tasks" / task / "tierline.sock"
        log = self.folder / f"{task}.log"
        program = TaskProcess(path, seed, extents, log, kind or HOST_PROGRAM, self.environment)
        self._programs.append(program)
        assert program.answer() == "sealed"
        return program

    def task(self, name: str) -> dict[str, Any]:
        """What the snapshot says of a task."""
        tasks = self.snapshot()["tasks"]
        found: dict[str, Any] = next(task for task in tasks if task["name"] == name)
        return found

    def extents(self) -> dict[str, int]:
        """Extents by state."""
        counts: dict[str, int] = self.snapshot()["extents"]
        return counts

    def lent(self) -> int:
        """Extents that clients have, or that dead ones had and that are not free yet."""
        counts = self.extents()
        return counts["resident"] + counts["workspace"] + counts["draining"]

    def forget_tasks(self) -> None:
        """End all clients and remove all tasks."""
        self._end_clients()
        for task in self.snapshot()["tasks"]:
            assert self.call("remove", name=task["name"])["ok"]

    def _end_clients(self) -> None:
        for client in self._clients:
            client.close()
        for program in self._programs:
            program.close()
        self._clients.clear()
        self._programs.clear()

    def kill(self) -> None:
        """SIGKILL the agent."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """End the agent and leave its clients; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def restart_with(self, **settings: Any) -> None:
        """Stop the agent and start it with other settings."""
        self.terminate()
        self.config.write_text(json.dumps({**self._values, **settings}))
        self.start()

    def metrics_address(self) -> str:
        """Where the agent says that its metrics are."""
        found = re.findall(r"metrics at (\S+)", self.log.read_text())
        return str(found[-1])

    def run_second(self) -> subprocess.CompletedProcess[str]:
        """Start another agent on the same folders and wait for its end."""
        return subprocess.run(
            [sys.executable, "-m", "tierline_agent", "--config", str(self.config)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def stop(self) -> int:
        """Stop the agent as an administrator does; returns its exit status."""
        assert self.process is not None
        self._end_clients()
        for following in self._following:
            if following.process is not self.process:
                following.kill()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(TIMEOUT_S)
        self.store.unlink(missing_ok=True)
        return status


@dataclass(frozen=True)
class NextAgent:
    """An agent that stands by; it writes to the log of the one that serves."""

    process: Process
    log: Path
    begin: int
    """Where in the log it begins."""

    def said(self) -> str:
        """What was said since it began."""
        return self.log.read_bytes()[self.begin :].decode()

    def await_words(self, words: str) -> None:
        """Wait until it was said."""

        def says() -> bool:
            assert self.process.poll() is None, self.said()
            return words in self.said()

        wait_until(says, f"the next agent says {words!r}")

    def maps(self, path: Path) -> set[str]:
        """The address ranges at which it has a file mapped."""
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return {line.split()[0] for line in lines if line.endswith(f" {path}")}

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class ProgramKind:
    """A program that obeys `task_program`'s commands, and the extents that it expects."""

    module: str
    extent_bytes: int


HOST_PROGRAM = ProgramKind("tests.integration.agent.task_program", EXTENT_BYTES)
LEAVING_PROGRAM = ProgramKind("tests.integration.agent.leaving_program", EXTENT_BYTES)


class TaskProcess:
    """A task's program in a process of its own."""

    def __init__(
        self,
        socket_path: Path,
        seed: int,
        extents: int,
        log: Path,
        kind: ProgramKind,
        environment: Mapping[str, str],
    ) -> None:
        self.log = log
        data = content(seed, extents, extent_bytes=kind.extent_bytes)
        self.expected = hashlib.sha256(data).hexdigest()
        with log.open("ab") as errors:
            self.process = nursery.start(
                *(kind.module, str(socket_path), str(seed), str(extents)),
                environment=environment,
                stderr=errors,
            )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return line.strip()

    def do(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def plan(
    extents: int,
    *,
    resident: tuple[int, ...] = (),
    ring: int = 2,
    workspace: int = 0,
    extent_bytes: int = EXTENT_BYTES,
    homes: tuple[tuple[str, int], ...] = (),
) -> dict[str, Any]:
    """A plan as the API writes it; all extents at home in dram unless `homes` says otherwise."""
    return {
        "extentBytes": extent_bytes,
        "extentCount": extents,
        "residentExtents": list(resident),
        "ringExtents": ring,
        "workspaceBytes": workspace,
        "homes": [
            {"tier": tier, "extents": count}
            for tier, count in homes or (("dram", extents),)
            if extents
        ],
        "predictedJobTime": "100ms",
        "predictedResponseTime": "200ms",
    }


def content(seed: int, extents: int, tail: int = 100, *, extent_bytes: int = EXTENT_BYTES) -> bytes:
    """Bytes of so many extents, the last one short."""
    return Random(seed).randbytes((extents - 1) * extent_bytes + tail)  # noqa: S311 - filler
