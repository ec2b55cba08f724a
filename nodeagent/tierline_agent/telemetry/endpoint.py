"""The agent's HTTP endpoint: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.

A process of its own (`listener`) has the port and its connections. Two threads answer what it asks,
one question at a time each, so that a scrape holds up no probe, and a hanging event loop can still
be told of. They change nothing. Metrics are made in a tenth of the time at most, because the event
loop runs by the same interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tierline_agent.concurrency import go_on, note_fault
from tierline_agent.telemetry import listener
from tierline_agent.telemetry.health import Health

_PLAIN = "text/plain; charset=utf-8"
_REST = 9
"""Times as long as making the metrics took, none are made."""
_PAUSE_MS = 20
"""After each probe; so many are answered at most, whoever asks how often."""
_BACKLOG: Final = 512
Answer = tuple[HTTPStatus, str, bytes]
"""Status, type and body."""


class Exposition:
    """The metrics as text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._next_s = 0.0

    def answer(self, question: bytes) -> Answer:
        """The metrics as they are now, or in a while."""
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        began_s = time.monotonic()
        accepted = "application/openmetrics-text" if question == listener.OPENMETRICS else ""
        encoder, kind = choose_encoder(accepted)
        body = encoder(self._registry)
        ended_s = time.monotonic()
        self._next_s = ended_s + _REST * (ended_s - began_s)
        return HTTPStatus.OK, kind, body


def _probed(health: Health, question: bytes) -> Answer:
    if question == listener.READYZ:
        objections = health.unready
    else:
        objections = (health.stuck,) if health.stuck else ()
    status = HTTPStatus.SERVICE_UNAVAILABLE if objections else HTTPStatus.OK
    return status, _PLAIN, "".join(f"{one}\n" for one in objections or ["ok"]).encode()


class Endpoint:
    """Serves from its making until `close`."""

    def __init__(self, registry: CollectorRegistry, health: Health, address: str, port: int):
        """Listen; port 0 takes any free one. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        self._exposition = Exposition(registry)
        self._health = health
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._thread = threading.Thread(
            target=go_on, args=("endpoint", self._serve), name="endpoint", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop serving."""
        with self._changing:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        """Answer what the process asks, until it ends. Raises RuntimeError if nobody ended it."""
        with ExitStack() as undo:
            probes, theirs = map(undo.enter_context, socket.socketpair())
            metrics, others = map(undo.enter_context, socket.socketpair())
            process = self._start(theirs, others)
            if process is None:
                return
            undo.callback(process.wait)
            undo.callback(process.kill)
            theirs.close()
            others.close()
            scrapes = threading.Thread(
                target=_answer, args=(metrics, self._exposition.answer), name="metrics"
            )
            scrapes.start()
            _answer(probes, partial(_probed, self._health))
            metrics.shutdown(socket.SHUT_RDWR)
            scrapes.join()
        if not self._closed:
            raise RuntimeError("the process that answers at the agent's port has ended")

    def _start(self, *lines: socket.socket) -> subprocess.Popen[bytes] | None:
        """The process; None once the endpoint is closed."""
        given = [one.fileno() for one in (self._socket, *lines)]
        libraries = os.environ.get(
            "LD_LIBRARY_PATH"
        )  # without it some builds of Python do not start
        with self._changing:
            if self._closed:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-ISB", listener.__file__, *map(str, given), str(_PAUSE_MS)],
                pass_fds=given,
                cwd="/",
                env={} if libraries is None else {"LD_LIBRARY_PATH": libraries},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            return self._process


def _answer(line: socket.socket, answer: Callable[[bytes], Answer]) -> None:
    """Answer question after question, until nobody asks any more."""
    with suppress(OSError):
        while question := line.recv(1):
            try:
                status, kind, body = answer(question)
            except Exception:
                note_fault("endpoint")
                status, kind = HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN
                body = b"it failed; the agent's log says why\n"
            head = listener.REPLY.pack(status, len(kind), len(body))
            line.sendall(head + kind.encode() + body)
