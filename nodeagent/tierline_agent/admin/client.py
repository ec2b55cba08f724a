"""The agent as this part of it sees it: requests to the administrator's socket, one at a time."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tierline_agent.errors import AgentError


class AgentRefused(AgentError):  # noqa: N818 - what it is
    """The agent refused a request; the sentence is its own."""


class Agent:
    """A connection to the administrator's socket, made when it is needed."""

    def __init__(self, socket: Path, longest_line_bytes: int) -> None:
        self._socket = socket
        self._longest = longest_line_bytes
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask the agent.

        Raises:
            AgentRefused: it refused.
            OSError: it does not answer.
        """
        async with self._turn:
            try:
                answer = await self._exchange({"method": method, **arguments})
            except BaseException:
                self._close()  # a late answer must not be taken for the next one's
                raise
        if not answer.get("ok"):
            raise AgentRefused(str(answer.get("error", "the agent gave no reason")))
        return answer

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(
                str(self._socket), limit=self._longest
            )
        reader, writer = self._streams
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionResetError(f"the agent closed {self._socket}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def close(self) -> None:
        """Close the connection."""
        async with self._turn:
            if self._streams is not None:
                writer = self._streams[1]
                self._close()
                with suppress(OSError):
                    await writer.wait_closed()
