"""An agent of one's own for the length of a command: started, waited for, stopped, cleaned up."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.local.admin_client import AdminClient
from tierline_cli.local.place import Place

_START_TIMEOUT_S = 120.0  # the tiers are preallocated and the links measured first
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_PREFIX = "tl-"
_SOCKET = "tasks/{task}/tierline.sock"
_LONGEST_SOCKET = 107  # bytes of a path in a sockaddr_un


@dataclass(frozen=True)
class TierSpec:
    """One tier that the agent shall own."""

    name: str
    path: Path
    size_bytes: int
    temporary: bool  # made for this command alone, and removed with it


def short_folder(longest_task: int = 63) -> Path:
    """Make a folder whose name is short enough for the socket of a task with such a name below it.

    Raises:
        CommandError: none of the folders for what is temporary is, or can be written.
    """
    below = f"/{_PREFIX}12345678/run/{_SOCKET.format(task='x' * longest_task)}"
    room = _LONGEST_SOCKET - len(below)
    places = (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/dev/shm")  # noqa: S108
    for place in filter(None, places):
        if len(os.fsencode(place)) <= room and os.access(place, os.W_OK):
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    raise CommandError(
        f"no folder for the agent's sockets: of {', '.join(filter(None, places))} none can be "
        f"written and has a name of at most {room} bytes; set TMPDIR to one",
        EXIT_BAD_INPUT,
    )


@dataclass
class LocalAgent:
    """The agent's process and the folders it works in."""

    fast_bytes: int
    extent_bytes: int
    tiers: list[TierSpec]
    place: Place = field(default_factory=Place)
    metrics_port: int | None = None
    margin: float | None = None
    """That of the plans made for it; None for what is usual."""
    work_dir: Path = field(default_factory=short_folder)
    """A folder of its own."""
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    @property
    def run_dir(self) -> Path:
        """Where the sockets are."""
        return self.work_dir / "run"

    @property
    def log_path(self) -> Path:
        """The agent's log."""
        return self.work_dir / "agent.log"

    def task_socket(self, task: str) -> Path:
        """The socket of one task's processes."""
        return self.run_dir / _SOCKET.format(task=task)

    def start(self) -> AdminClient:
        """Start the agent and wait until it answers.

        Raises:
            CommandError: it ended, or did not answer in time; carries what it said last.
        """
        config_path = self.work_dir / "agent.json"
        config_path.write_text(json.dumps(self._config(), indent=1))
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tierline_agent", "--config", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.wait_until_ready()

    def wait_until_ready(self) -> AdminClient:
        """Wait until the agent answers on its admin socket."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        admin = self.run_dir / "admin.sock"
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise CommandError(f"the agent ended at its start: {self.last_words()}")
            if admin.exists():
                try:
                    client = AdminClient(admin)
                    client.call("node")
                except CommandError:
                    pass
                else:
                    return client
            time.sleep(_POLL_S)
        raise CommandError(f"the agent did not answer within {_START_TIMEOUT_S:.0f} s")

    def last_words(self) -> str:
        """The last line of the agent's log."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    @property
    def pid(self) -> int:
        """The agent's process; 0 before `start`."""
        return 0 if self._process is None else self._process.pid

    def poll(self) -> int | None:
        """The agent's exit status, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End the agent and remove its folders and stores."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for tier in self.tiers:
            if tier.temporary:
                tier.path.unlink(missing_ok=True)
        shutil.rmtree(self.work_dir, ignore_errors=True)

    def _config(self) -> dict[str, Any]:
        device = {
            **self.place.settings,
            "fast_bytes": self.fast_bytes,
            "extent_bytes": self.extent_bytes,
            "margin": self.margin,
        }
        return {
            "state_dir": str(self.work_dir / "state"),
            "run_dir": str(self.run_dir),
            "device": device,
            "tiers": [
                {"name": t.name, "path": str(t.path), "size_bytes": t.size_bytes}
                for t in self.tiers
            ],
            "metrics_port": self.metrics_port,
        }
