"""A task's process on a GPU: loads content, runs jobs as it is told (commands of `task_program`).

job            one whole job            -> digest of all bytes read
passes N       one job, the arena read N times, rewound in between -> digests, if all are equal
half           begin a job, read half   -> "half"
rest           read the rest, end it    -> digest of all bytes read in both
granted        wait until the ring holds the first extents, run a job -> how many were published
early N        a job that reads its last extent when the next one's extent N lies there, which it
               runs at once     -> its digest, after "late" if that did not come in time
counts         a job, and at once another one -> what was published of that, until its ring is full
stall          begin a job and wait for its first extent -> "stalled"
reattach       connect again after the agent was restarted, offer the arena -> "back"
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from tests.integration.agent.agent_process import content, wait_until
from tests.integration.agent.gpu_client import GpuArena, GpuClient, start_cuda

EARLY_S = 5.0
"""An extent that is copied early is there within a few copies' times; any other one comes after the
job, and is not waited for in vain."""


class Program:
    """The task."""

    def __init__(self, socket_path: Path, seed: int, extents: int) -> None:
        ordinal = int(os.environ.get("TASK_GPU", "0"))
        start_cuda(ordinal)
        GpuArena.ordinal = ordinal
        self.path = socket_path
        self.client = GpuClient(socket_path)
        welcome = self.client.hello()
        self.token = welcome.reattach_token
        self.extents = extents
        self.content = content(seed, extents, extent_bytes=welcome.extent_bytes)
        self.arena = self.client.load_arena(self.content)
        self.job = 0
        self.seen = b""

    def obey(self, command: str) -> str:
        middle = self.extents // 2
        verb, _, argument = command.partition(" ")
        if verb == "job":
            verb, argument = "passes", "1"
        if verb in {"granted", "counts"}:
            return (self.granted if verb == "granted" else self.counts)()
        if verb in {"passes", "early"}:
            return (self.passes if verb == "passes" else self.early)(int(argument))
        if verb == "half":
            self.job = self.client.begin(0)
            self.seen = self.arena.read_in_job(0, middle)
            return "half"
        if verb == "rest":
            self.seen += self.arena.read_in_job(middle)
            self.client.end(self.job)
            return hashlib.sha256(self.seen).hexdigest()
        if verb == "stall":
            self.job = self.client.begin(0)
            self.arena.enqueue(0, 1)
            self.arena.synchronise()
            return "stalled"
        assert verb == "reattach", verb
        self.client.close()
        self.client = GpuClient(self.path)
        self.client.hello(self.token)
        self.client.attach(self.arena, job=self.job)
        return "back"

    def early(self, extent: int) -> str:
        job, last = self.client.begin(0), self.extents - 1
        self.arena.read_in_job(0, last)
        # One that no later extent of this job displaced lies there before the last has arrived.
        wait_until(lambda: self.arena.published == self.extents, "the last extent arrived")
        end_s = time.monotonic() + EARLY_S
        while not (lies := self.lies(extent)) and time.monotonic() < end_s:
            pass
        self.arena.read_in_job(last)
        self.client.end(job)
        return self.passes(1) if lies else f"late {self.passes(1)}"

    def granted(self) -> str:
        wait_until(self.ring_is_filled, "the ring holds the first extents")
        job = self.client.begin(0)
        published = self.arena.published
        assert self.arena.read_in_job() == self.content
        self.client.end(job)
        return str(published)

    def counts(self) -> str:
        self.passes(1)
        job = self.client.begin(0)
        seen = [self.arena.published]
        while seen[-1] < len(self.arena.ring):
            seen += [now for now in [self.arena.published] if now != seen[-1]]
        assert self.arena.read_in_job() == self.content
        self.client.end(job)
        return " ".join(map(str, seen))

    def ring_is_filled(self) -> bool:
        return all(map(self.lies, self.arena.streamed[: len(self.arena.ring)]))

    def lies(self, extent: int) -> bool:
        size = self.arena.extent_bytes
        return self.arena.look(extent) == self.content[extent * size :][:size]

    def passes(self, count: int) -> str:
        job = self.client.begin(0)
        digests = []
        for number in range(count):
            if number:
                self.client.rewind(job)
            digests.append(hashlib.sha256(self.arena.read_in_job()).hexdigest())
        self.client.end(job)
        return digests[0] if len(set(digests)) == 1 else " ".join(digests)


def main() -> None:
    program = Program(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print("sealed", flush=True)
    for line in sys.stdin:
        print(program.obey(line.strip()), flush=True)
    program.client.close()


if __name__ == "__main__":
    main()
