"""Starts Python programs of tests without the time that their imports take: `start(module, ...)`.

A started program is a fork of a process that has the modules, and is from then on what `python -m
MODULE` would be in that environment: same standard streams, arguments, exit status. What is read
before Python runs (`LD_LIBRARY_PATH`, `PYTHONPATH`, ...) is the same in all forks of a process;
each of its values has one of its own. A program that is held to what it maps, or to its own times,
begins as users' programs do, with `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock
from typing import IO, Any

_ROOT = Path(__file__).parents[1]
_EARLY = ("LD_", "PYTHON", "GLIBC_", "MALLOC_", "ASAN_", "TSAN_", "UBSAN_", "OMP_", "MKL_")
"""What variables begin with that are read before a program's own code runs."""
_LONGEST_ORDER = 1 << 17
_nurseries: dict[tuple[tuple[str, str], ...], _Nursery] = {}


class Started:
    """A program: what tests use of `subprocess.Popen`."""

    def __init__(self, line: socket.socket, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._reading = Lock()
        with line:
            said, (self._handle,), _, _ = socket.recv_fds(line, 64, 1)
            self.pid = int(said)
            self._line = line.detach()

    def __del__(self) -> None:
        for descriptor in (self._line, self._handle):
            os.close(descriptor)

    def poll(self) -> int | None:
        """The exit status, or the signal as a negative number; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self.returncode is None:
            if not wait([self._line], timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            with self._reading:
                if self.returncode is None:
                    self.returncode = int(os.read(self._line, 64))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    stderr: int | IO[Any],
    stdout: int | IO[Any] | None = None,
) -> Started:
    """`python -m MODULE ARGUMENTS` in the repository's root; a pipe for each stream not given.

    Without `stdout` it also has a pipe for its input; with it, it reads what this process reads.
    """
    early = tuple(sorted(item for item in environment.items() if item[0].startswith(_EARLY)))
    if early not in _nurseries:
        _nurseries[early] = _Nursery(environment)
    order = {"module": module, "arguments": arguments, "environment": dict(environment)}
    if stdout is not None:
        return _nurseries[early].start(order, (0, stdout, stderr), None, None)
    for_it, into = os.pipe()
    out_of, from_it = os.pipe()
    try:
        return _nurseries[early].start(
            order, (for_it, from_it, stderr), os.fdopen(into, "w"), os.fdopen(out_of)
        )
    finally:
        os.close(for_it)
        os.close(from_it)


class _Nursery:
    """A process that forks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._close, os.getpid())

    def start(
        self,
        order: Mapping[str, Any],
        streams: tuple[int | IO[Any], ...],
        stdin: IO[str] | None,
        stdout: IO[str] | None,
    ) -> Started:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptors = [one if isinstance(one, int) else one.fileno() for one in streams]
            given = [*descriptors, theirs.fileno()]
            socket.send_fds(self._orders, [json.dumps(order).encode()], given)
        return Started(line, stdin, stdout)

    def _close(self, owner: int) -> None:
        """Start no more; what runs goes on. Forks of the owner may have the socket, and live."""
        if os.getpid() == owner:
            self._orders.shutdown(socket.SHUT_RDWR)
            self._process.wait()
            self._orders.close()


def _serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork for each order; returns it in the fork, and None at the end."""
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is, and ends it
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in selector.select():
            if key.fd in children:
                selector.unregister(key.fd)
                pid, line = children.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError), line:  # nobody may want to know
                    line.send(b"%d" % os.waitstatus_to_exitcode(status))
                os.close(key.fd)
                continue
            text, descriptors, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, 4)
            if not text:
                return None
            order: dict[str, Any] = json.loads(text)
            _warm(order["module"])
            *streams, number = descriptors
            line = socket.socket(fileno=number)
            if not (pid := os.fork()):
                signal.signal(signal.SIGINT, interrupted)
                for stream, place in zip(streams, range(3), strict=True):
                    os.dup2(stream, place)
                for handle, (_, other) in children.items():
                    os.close(handle)
                    other.close()
                for one in (line, orders, selector):
                    one.close()
                for stream in streams:
                    os.close(stream)
                return order
            handle = os.pidfd_open(pid)
            children[handle] = pid, line
            selector.register(handle, selectors.EVENT_READ)
            for stream in streams:
                os.close(stream)
            socket.send_fds(line, [b"%d" % pid], [handle])


def _warm(module: str) -> None:
    """Have what a module imports; one that cannot be imported says so in its own process.

    The garbage collector passes over that in the forks: to look at it, at the latest when they end,
    copies nearly all of its memory, and takes most of the time of a short program.
    """
    with contextlib.suppress(Exception):
        found = importlib.util.find_spec(module)
        is_package = found is not None and found.submodule_search_locations is not None
        name = f"{module}.__main__" if is_package else module
        if name not in sys.modules:
            importlib.import_module(name)
            gc.collect()
            gc.freeze()


def _become(order: Mapping[str, Any]) -> None:
    module = order["module"]
    sys.argv[1:] = order["arguments"]
    os.environ.clear()
    os.environ.update(order["environment"])
    for name in (module, f"{module}.__main__"):
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)  # it runs as __main__, for the first time
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _orders:
        _order = _serve(_orders)
    if _order is not None:
        _become(_order)
