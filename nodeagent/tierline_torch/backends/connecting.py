"""This process's connection to the agent, and the names on its wire."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tierline_client import Client, ClientError, Device
from tierline_torch.errors import TierlineError

_NAME_BYTES = 63


def connected(socket_path: str, device: Device = Device.CPU, *, name: str = "") -> Client:
    """A client of the agent at TIERLINE_SOCKET; by default it has the program's name.

    Raises TierlineError.
    """
    name = name or Path(sys.argv[0] or sys.executable).name
    try:
        return Client(socket_path, fit(f"{name} ({os.getpid()})"), device)
    except (ClientError, OSError) as error:
        raise TierlineError(
            f"could not connect to the agent at TIERLINE_SOCKET={socket_path}: {error}"
        ) from error


def fit(name: str) -> str:
    """A name for the wire; of a long one the end says more."""
    encoded = name.encode()
    if len(encoded) <= _NAME_BYTES:
        return name
    return "…" + encoded[len("…".encode()) - _NAME_BYTES :].decode(errors="ignore")
