"""The process that answers at the agent's port; it asks the agent, a line of bytes at a time.

Whoever reaches the port may ask, as often as he likes, or connect and ask nothing. None of that is
done by the agent's interpreter, by which its event loop runs: here connections are accepted, read,
dropped. The agent hears one question at a time on each of two lines (probes, metrics), and at most
so many a second; all that wait for an answer get the same one.

It runs as nobody where it may, has no file of the agent's but its lines and the port, and ends with
the agent. It needs nothing but Python.

Invariants: there are at most `MOST` connections; one more ends the oldest that has not asked, or
the oldest. What somebody is answered was asked of the agent after he asked.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

MOST = 1000
ASKS_S = 5.0
"""A peer that has not asked for so long is dropped."""
READS_S = 30.0
"""So is one that waits for its answer, or does not read it, for so long."""
_HEAD_BYTES = 8 << 10
_AT_ONCE = 64
"""Connections that are accepted before those that are there have their turn."""
_NICE = 5
_NOBODY = 65534
_SPARE_FILES = 32
REPLY = struct.Struct("!HBI")
"""An answer of the agent's: HTTP status, length of its type, length of its body."""
HEALTHZ, READYZ, TEXT, OPENMETRICS = b"h", b"r", b"t", b"o"
"""Questions."""
_PATHS = {"/healthz": HEALTHZ, "/readyz": READYZ, "/metrics": TEXT}
_PLAIN = "text/plain; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def response(status: int, kind: str, body: bytes) -> bytes:
    """An answer as HTTP has it."""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def question(head: bytes) -> bytes:
    """The question in a request, or the whole response to one that is none."""
    line, *fields = head.decode("latin-1").split("\r\n")
    words = line.split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return response(400, _PLAIN, b"this is not HTTP/1.1\n")
    if words[0] != "GET":
        return response(405, _PLAIN, b"there is only GET\n")
    asked = _PATHS.get(words[1].partition("?")[0])
    if asked is None:
        return response(404, _PLAIN, b"there are /metrics, /healthz and /readyz\n")
    accepts = (one.lower() for one in fields if one.lower().startswith("accept:"))
    if asked == TEXT and any("application/openmetrics-text" in one for one in accepts):
        return OPENMETRICS
    return asked


class Connection:
    """Of one peer: reads what it asks, then writes what it is answered."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.asked = False
        self._head = bytearray()
        self._left = memoryview(b"")

    def read(self) -> bytes | None:
        """A question or a response, once the peer has asked; None before. OSError at its end."""
        got = self.peer.recv(_HEAD_BYTES)
        if not got:
            raise ConnectionError("it asked nothing")
        self._head += got
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) <= _HEAD_BYTES:
            return None
        self.asked = True
        if end < 0:
            return response(431, _PLAIN, b"the request is too long\n")
        return question(bytes(self._head[:end]))

    def answer(self, whole: bytes) -> None:
        """Write this from now on."""
        self._left = memoryview(whole)

    def write(self) -> bool:
        """Write on; whether that was all. Raises OSError."""
        with suppress(BlockingIOError):
            self._left = self._left[self.peer.send(self._left) :]
        return not self._left


class Line:
    """One line to the agent: one question at a time, and a pause after each."""

    def __init__(self, agent: socket.socket, pause_s: float) -> None:
        self.agent = agent
        self._pause_s = pause_s
        self._free_s = 0.0
        self._under_way: list[Connection] = []
        self._waiting: dict[bytes, list[Connection]] = {}
        self._got = bytearray()
        self._busy = False

    def ask(self, what: bytes, asker: Connection) -> None:
        """Queue a question of a connection; all that ask the same get one answer."""
        self._waiting.setdefault(what, []).append(asker)

    @property
    def due_s(self) -> float | None:
        """When the next question may be asked; None if there is none, or one is under way."""
        return self._free_s if self._waiting and not self._busy else None

    def go_on(self, now_s: float) -> None:
        """Ask the next question, if it is time."""
        due_s = self.due_s
        if due_s is not None and due_s <= now_s:
            what = next(iter(self._waiting))
            self._under_way = self._waiting.pop(what)
            self._busy = True
            self.agent.sendall(what)

    def read(self, now_s: float) -> tuple[bytes, list[Connection]] | None:
        """The response that has come, and for whom; None if not all of it has. EOFError: ended."""
        got = self.agent.recv(1 << 18)
        if not got:
            raise EOFError
        self._got += got
        if len(self._got) < REPLY.size:
            return None
        status, kind_bytes, body_bytes = REPLY.unpack_from(self._got)
        end = REPLY.size + kind_bytes + body_bytes
        if len(self._got) < end:
            return None
        kind = self._got[REPLY.size : REPLY.size + kind_bytes].decode()
        whole = response(status, kind, bytes(self._got[REPLY.size + kind_bytes : end]))
        del self._got[:end]
        whom, self._under_way, self._busy = self._under_way, [], False
        self._free_s = now_s + self._pause_s
        return whole, whom


class Listener:
    """Serves until the agent ends."""

    def __init__(self, port: socket.socket, probes: Line, metrics: Line) -> None:
        self._port = port
        self._lines = {HEALTHZ: probes, READYZ: probes, TEXT: metrics, OPENMETRICS: metrics}
        self._selector = selectors.DefaultSelector()
        self._silent: dict[Connection, float] = {}
        """By when each must have asked, in the order in which they came."""
        self._asked: dict[Connection, float] = {}
        """By when each must have read its answer."""
        port.setblocking(False)
        self._on(port, selectors.EVENT_READ, self._accept)
        for line in (probes, metrics):
            self._on(line.agent, selectors.EVENT_READ, partial(self._hear, line))

    def serve(self) -> None:
        """Serve connections; raises EOFError when the agent has ended."""
        lines = set(self._lines.values())
        while True:
            now_s = time.monotonic()
            for line in lines:
                line.go_on(now_s)
            late = [line.due_s for line in lines]
            late += [next(iter(those.values()), None) for those in (self._silent, self._asked)]
            next_s = min((one for one in late if one is not None), default=None)
            for key, _ in self._selector.select(
                None if next_s is None else max(0.0, next_s - now_s)
            ):
                key.data()
            self._drop_late()

    def _on(self, what: socket.socket, events: int, do: Callable[[], None]) -> None:
        self._selector.register(what, events, do)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                peer, _ = self._port.accept()
            except OSError:  # nobody, or no descriptor: whoever is there ends soon
                return
            peer.setblocking(False)
            one = Connection(peer)
            self._silent[one] = time.monotonic() + ASKS_S
            self._on(peer, selectors.EVENT_READ, partial(self._read, one))
            if len(self._silent) + len(self._asked) > MOST:
                self._end(next(iter(self._silent or self._asked)))

    def _read(self, one: Connection) -> None:
        if one not in self._silent:
            return  # it was ended by another event of this turn
        try:
            asked = one.read()
        except BlockingIOError:
            return
        except OSError:
            self._end(one)
            return
        if asked is None:
            return
        del self._silent[one]
        self._asked[one] = time.monotonic() + READS_S
        self._selector.unregister(one.peer)
        line = self._lines.get(asked)
        if line is not None:
            line.ask(asked, one)
        else:
            self._answer(one, asked)

    def _hear(self, line: Line) -> None:
        heard = line.read(time.monotonic())
        if heard is not None:
            whole, whom = heard
            for one in whom:
                if one in self._asked:
                    self._answer(one, whole)

    def _answer(self, one: Connection, whole: bytes) -> None:
        one.answer(whole)
        self._on(one.peer, selectors.EVENT_WRITE, partial(self._write, one))

    def _write(self, one: Connection) -> None:
        if one not in self._asked:
            return
        try:
            over = one.write()
        except OSError:
            over = True
        if over:
            self._end(one)

    def _end(self, one: Connection) -> None:
        self._silent.pop(one, None)
        self._asked.pop(one, None)
        with suppress(KeyError):
            self._selector.unregister(one.peer)
        one.peer.close()

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for those in (self._silent, self._asked):
            while those and next(iter(those.values())) <= now_s:
                self._end(next(iter(those)))


def _be_nobody() -> None:
    os.nice(_NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + _SPARE_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))
    with suppress(OSError):  # an agent without these rights
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def main(port: int, probes: int, metrics: int, pause_ms: int) -> None:
    """Serve by these descriptors, with `pause_ms` after each probe."""
    _be_nobody()
    lines = (socket.socket(fileno=probes), socket.socket(fileno=metrics))
    listener = Listener(
        socket.socket(fileno=port), Line(lines[0], pause_ms / 1000), Line(lines[1], 0.0)
    )
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        listener.serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
