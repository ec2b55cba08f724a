"""The agent's HTTP endpoint: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.

Threads of its own answer, so that a scrape holds up no job, and a hanging event loop can still be
told of. It changes nothing.

Whoever reaches the port may ask, as often as he likes, or connect and ask nothing. So there are at
most `MOST` connections: one more ends the oldest, and the kubelet's probes, which take
milliseconds, are answered however many others wait. Metrics are made in a tenth of the time at
most, because the event loop runs by the same interpreter: who asks meanwhile waits, and all who
have waited get the same.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tierline_agent.concurrency import go_on
from tierline_agent.telemetry.health import Health

_TEXT = "text/plain; charset=utf-8"
_PATIENCE_S = 30.0
"""A peer that neither asks nor reads for so long is dropped."""
MOST = 32
_REST = 9
"""Times as long as making the metrics took, none are made."""
_POLL_S = 0.02
"""How long `close` may wait for its thread; nobody serves meanwhile. Python's default is 0.5 s."""


class Exposition:
    """The metrics as text, for many threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._making = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}
        """By content type, from when on, and the text."""
        self._next_s = 0.0

    def text(self, kind: str, encoder: Callable[[CollectorRegistry], bytes]) -> bytes:
        """The metrics as they are now or later, of a content type."""
        asked_s = time.monotonic()
        with self._making:
            began_s, text = self._made.get(kind, (0.0, b""))
            if began_s < asked_s:
                time.sleep(max(0.0, self._next_s - time.monotonic()))
                began_s = time.monotonic()
                text = encoder(self._registry)
                self._made[kind] = began_s, text
                ended_s = time.monotonic()
                self._next_s = ended_s + _REST * (ended_s - began_s)
            return text


class Endpoint:
    """Serves from its making until `close`."""

    def __init__(self, registry: CollectorRegistry, health: Health, address: str, port: int):
        """Listen; port 0 takes any free one. Raises OSError."""
        exposition = Exposition(registry)

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    encoder, kind = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(HTTPStatus.OK, kind, exposition.text(kind, encoder))
                elif path == "/healthz":
                    self._probe([health.stuck] if health.stuck else [])
                elif path == "/readyz":
                    self._probe(health.unready)
                else:
                    text = b"there are /metrics, /healthz and /readyz\n"
                    self._answer(HTTPStatus.NOT_FOUND, _TEXT, text)

            def _probe(self, objections: tuple[str, ...] | list[str]) -> None:
                status = HTTPStatus.SERVICE_UNAVAILABLE if objections else HTTPStatus.OK
                self._answer(
                    status, _TEXT, "".join(f"{o}\n" for o in objections or ["ok"]).encode()
                )

            def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes come every few seconds; they are no news."""

        changing = threading.Lock()
        connections: dict[socket.socket, None] = {}

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 2 * MOST
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

            def server_bind(self) -> None:
                """Do not ask the name service for the own name, which may take long to fail."""
                TCPServer.server_bind(self)
                self.server_name, self.server_port = address, self.server_address[1]

            def process_request(self, request: Any, client_address: Any) -> None:
                """Answer in a thread; the oldest of too many connections ends."""
                with changing:
                    connections[request] = None
                    oldest = next(iter(connections)) if len(connections) > MOST else None
                    if oldest is not None:
                        del connections[oldest]
                if oldest is not None:
                    with suppress(OSError):  # it has ended by itself
                        oldest.shutdown(socket.SHUT_RDWR)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                """It is over."""
                with changing:
                    connections.pop(request, None)
                super().shutdown_request(request)

            def handle_error(self, *_: object) -> None:
                """The client left before the answer: that is no news either."""

        self._server = Server((address, port), Handler)
        self._thread = threading.Thread(
            target=go_on,
            args=("endpoint", lambda: self._server.serve_forever(_POLL_S)),
            name="endpoint",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
