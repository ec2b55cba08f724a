"""The agent's admin socket, seen from the command line: one JSON object a line each way."""

import json
import socket
from pathlib import Path
from typing import Any

from tierline_cli.errors import CommandError

_REPLY_TIMEOUT_S = 60.0


class AdminClient:
    """A connection to one agent. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Connect to the admin socket at `path`.

        Raises:
            CommandError: nobody listens there.
        """
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(_REPLY_TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise CommandError(
                f"cannot reach an agent at {path}: {error.strerror}; "
                "name the folder of one with --run-dir: `tierline run` tells its own when it runs, "
                "that of `tierline agent` is run_dir in its settings"
            ) from error
        self._lines = self._socket.makefile("rb")

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask the agent for `method` and return its answer.

        Raises:
            CommandError: the agent refused, or is gone.
        """
        request = json.dumps({"method": method, **arguments}).encode() + b"\n"
        try:
            self._socket.sendall(request)
            line = self._lines.readline()
        except OSError as error:
            raise CommandError(
                f"lost the agent at {self._path} during {method}: {error}"
            ) from error
        if not line:
            raise CommandError(f"the agent at {self._path} closed the connection during {method}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.get("ok"):
            raise CommandError(
                f"the agent refused {method}: {answer.get('error', 'no reason given')}"
            )
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
