"""A proxy between an operator and the API server that sees every write, and can hold or lose it.
It can cut watches off, too, and say what becomes of those that follow.

The operator speaks plain HTTP to it; it speaks to the API server with the operator's certificate.
Watches are passed on line by line. A test says what becomes of each write by a function that is
called before the write goes on and once more when the server has answered.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.integration.operator.running import USER

from tierline_cluster.control_plane import ControlPlane


@dataclass(frozen=True)
class Write:
    """A request that changes something."""

    number: int
    """Counts from 1."""
    method: str
    path: str
    status: int = 0
    """What the server answered; 0 before it was asked."""

    @property
    def is_lease(self) -> bool:
        """Whether it is about the Lease."""
        return "/leases" in self.path

    @property
    def is_event(self) -> bool:
        """Whether it is an event."""
        return "/events" in self.path

    @property
    def allocates(self) -> bool:
        """Whether it allocates a claim."""
        return "/resourceclaims/" in self.path and "/status" in self.path


Watcher = Callable[[Write], None]
Watch = Callable[[str], str]
"""What to ask for a watch of that path; raises ConnectionError to refuse it."""


def as_asked(path: str) -> str:
    """Every watch is passed on."""
    return path


def unheard(_events: bytes) -> None:
    """Nobody listens to what watches say."""


@dataclass
class Proxy:
    """A running proxy."""

    kubeconfig: Path
    on_write: Watcher
    on_watch: Watch = as_asked
    on_events: Callable[[bytes], None] = unheard
    """Called with what was passed on of a watch: as a rule an event."""
    writes: int = 0
    """How many were seen."""
    watches: set[HTTPSConnection] = field(default_factory=set)
    """Those that are open."""

    def cut(self) -> None:
        """Break off every watch."""
        for upstream in list(self.watches):
            if upstream.sock is not None:
                with suppress(OSError):
                    upstream.sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(plane: ControlPlane, folder: Path, on_write: Watcher) -> Iterator[Proxy]:
    """A proxy to `plane`; the Lease's and events pass unseen."""
    certificate = plane.certificate_for(USER)
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    context.load_cert_chain(certificate.certificate, certificate.key)
    place = urlsplit(plane.server)
    counter = threading.Lock()
    proxy = Proxy(folder / "proxy.kubeconfig", on_write)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.pass_on(None)

        def write(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            write = Write(0, self.command, self.path)
            if write.is_lease or write.is_event:
                self.pass_on(body)
                return
            with counter:
                proxy.writes += 1
                write = Write(proxy.writes, self.command, self.path)
            proxy.on_write(write)
            self.pass_on(body, write)

        do_POST = do_PATCH = do_PUT = do_DELETE = write  # noqa: N815

        def pass_on(self, body: bytes | None, write: Write | None = None) -> None:
            upstream = HTTPSConnection(place.hostname or "", place.port, context=context)
            wanted = {"Content-Type", "Accept", "Content-Length"}
            headers = {k: v for k, v in self.headers.items() if k in wanted}
            path = self.path
            try:
                if "watch=true" in path:
                    path = proxy.on_watch(path)
                    proxy.watches.add(upstream)
                upstream.request(self.command, path, body, headers)
                with upstream.getresponse() as answer:
                    if write is not None:
                        data = answer.read()
                        done = Write(write.number, write.method, write.path, answer.status)
                        proxy.on_write(done)
                        self.send(answer.status, data)
                    elif upstream in proxy.watches:
                        self.stream(answer)
                    else:
                        self.send(answer.status, answer.read())
            except (OSError, HTTPException, ValueError):
                self.close_connection = True
            finally:
                proxy.watches.discard(upstream)
                upstream.close()

        def send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self, answer) -> None:  # type: ignore[no-untyped-def]
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.close_connection = True
            while chunk := answer.read1(65536):
                self.wfile.write(chunk)
                self.wfile.flush()
                proxy.on_events(chunk)

        def handle(self) -> None:
            with suppress(OSError):  # the operator was killed
                super().handle()

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    named = [{"name": "proxy", "cluster": {"server": address}}]
    context_ = {"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}
    proxy.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    proxy.kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": named,
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [context_],
                "current-context": "proxy",
            }
        )
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        proxy.cut()  # nobody reads them any more
        server.server_close()
        thread.join()
