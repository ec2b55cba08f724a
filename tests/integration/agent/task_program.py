"""A task's process: loads content through the real client library and runs jobs as it is told.

Commands come as lines on standard input, each is answered by one line:

    job     one whole job           -> digest of all bytes read
    half    begin a job, read half  -> "half"
    rest    read the rest, end it   -> digest of all bytes read in both
    begin N begin a job due in N s  -> "begun"
    lease   begin one that has the lease alone -> "begun"
    step N  read the next N layers, 0: go back to the start -> the number of the next one
    end     end the job             -> digest of all bytes read
    whole   read all outside a job  -> digest (every streamed extent faults)
    free    give the arena back     -> "freed"
    ready   wait for the start      -> "<epoch_ns> <until_ns>"
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import time

from tests.integration.agent.agent_process import content
from tests.integration.agent.raw_client import DUE_S

from tierline_client import Client

DEADLINE_NS = int(DUE_S * 1e9)


class Program:
    """The task."""

    def __init__(self, socket_path: str, seed: int, extents: int) -> None:
        self.client = self.connect(socket_path)
        self.data = content(seed, extents)
        self.extents = extents
        self.size = self.client.terms().extent_bytes
        self.base = self.load()
        self.job = 0
        self.next = 0
        self.seen = hashlib.sha256()

    def connect(self, socket_path: str) -> Client:
        """Find the agent."""
        return Client(socket_path, "task-program")

    def load(self) -> int:
        """Load the content; returns its address."""
        base = self.client.reserve(0, len(self.data), 0, 1)
        for extent in range(self.extents):
            self.client.store(0, extent, self.part(extent))
        self.client.seal(0, [(extent, extent) for extent in range(self.extents)])
        return base

    def part(self, extent: int) -> bytes:
        return self.data[extent * self.size : (extent + 1) * self.size]

    def begin(self, deadline_ns: int = DEADLINE_NS) -> None:
        now_ns = time.monotonic_ns()
        self.job = self.client.job_begin(0, now_ns, now_ns + deadline_ns)
        self.seen = hashlib.sha256()
        self.next = 0

    def begin_with_lease_alone(self) -> str:
        now_ns = time.monotonic_ns()
        self.job = self.client.job_begin(None, now_ns, now_ns + DEADLINE_NS)
        self.seen = hashlib.sha256()
        return "begun"

    def read(self, first: int, last: int, *, gates: bool = True) -> None:
        for extent in range(first, last):
            if gates:
                self.client.layer_begin(0, extent)
            address = self.base + extent * self.size
            self.seen.update(ctypes.string_at(address, len(self.part(extent))))
            if gates:
                self.client.layer_end(0, extent)

    def end(self) -> str:
        self.client.job_end(self.job)
        return self.seen.hexdigest()

    def job_at_once(self) -> str:
        self.begin()
        self.read(0, self.extents)
        return self.end()

    def half(self) -> str:
        self.begin()
        self.read(0, self.extents // 2)
        return "half"

    def rest(self) -> str:
        self.read(self.extents // 2, self.extents)
        return self.end()

    def whole(self) -> str:
        self.seen = hashlib.sha256()
        self.read(0, self.extents, gates=False)
        return self.seen.hexdigest()

    def free(self) -> str:
        self.client.free(0)
        return "freed"

    def ready(self) -> str:
        epoch_ns, until_ns = self.client.ready()
        return f"{epoch_ns} {until_ns}"

    def step(self, layers: int) -> str:
        if layers == 0:
            self.client.rewind()
            self.seen = hashlib.sha256()
            self.next = 0
            return "0"
        last = min(self.extents, self.next + layers)
        self.read(self.next, last)
        self.next = last
        return str(last)

    def obey(self, command: str) -> str:
        verb, _, number = command.partition(" ")
        if verb == "begin":
            self.begin(int(number) * 10**9)
            return "begun"
        if verb == "step":
            return self.step(int(number))
        plain = {
            "job": self.job_at_once,
            "lease": self.begin_with_lease_alone,
            "half": self.half,
            "rest": self.rest,
            "end": self.end,
            "whole": self.whole,
            "free": self.free,
            "ready": self.ready,
        }
        return plain[verb]()


def main(kind: type[Program] = Program) -> None:
    """Obey what standard input says."""
    socket_path, seed, extents = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = kind(socket_path, seed, extents)
    print("sealed", flush=True)
    for line in sys.stdin:
        print(program.obey(line.strip()), flush=True)
    program.client.close()


if __name__ == "__main__":
    main()
