"""The agent's HTTP endpoint: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.

Threads of its own answer, so that a scrape holds up no job, and a hanging event loop can still be
told of. It changes nothing.
"""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tierline_agent.health import Health

_TEXT = "text/plain; charset=utf-8"
_PATIENCE_S = 30.0
"""A peer that neither asks nor reads for so long is dropped."""
_POLL_S = 0.02
"""How long `close` may wait for its thread; nobody serves meanwhile. Python's default is 0.5 s."""


class Endpoint:
    """Serves from its making until `close`."""

    def __init__(self, registry: CollectorRegistry, health: Health, address: str, port: int):
        """Listen; port 0 takes any free one. Raises OSError."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    encoder, kind = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(HTTPStatus.OK, kind, encoder(registry))
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

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

            def server_bind(self) -> None:
                """Do not ask the name service for the own name, which may take long to fail."""
                TCPServer.server_bind(self)
                self.server_name, self.server_port = address, self.server_address[1]

            def handle_error(self, *_: object) -> None:
                """Whoever asked left before the answer: that is no news either."""

        self._server = Server((address, port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="endpoint", daemon=True
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
