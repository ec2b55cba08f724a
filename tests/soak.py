"""Bad behaviours in random order, and a flooded port, minute after minute: `make soak`.

Two agents, one of each kind of device, each with a good task, a mean one and a prober (`rig`). Each
minute is a row; the last three columns say what the agent has after it. It ends with status 1 where
an output of the good task was wrong, a behaviour failed, a turn of the event loop was long, or the
agent has more at the end than after the first minutes.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from tests.integration.agent.behaviours import Behaviour
from tests.integration.agent.hostile import measured_agent
from tests.integration.agent.hostile.rig import (
    CPU,
    CUDA,
    FORKED,
    ON_ALL,
    ON_GPU,
    Rig,
    cpu_rig,
    gpu_rig,
    held,
    misbehave,
    quiet,
    witness,
)

AT_ONCE = 8
"""Behaviours between two looks at the clock."""
A_SECOND = 1000
"""Connections to the port."""
KEPT = 3000
"""The newest of them, which stay open."""
SETTLED = 3
"""Minutes after which nothing may grow: by then each cache has what it keeps."""
DESCRIPTORS = 8
MEMORY_BYTES = 48 << 20
THREADS = 4
SAID = (b"", b"GET /healthz HTTP/1.1\r\nA: b", b"GET /metrics HTTP/1.1\r\n\r\n", b"\0" * 64)
"""The four kinds of connection: silent, slow, one that does not read its answer, nonsense."""


@dataclass(frozen=True)
class Minute:
    """What a minute did, and what the agent has after it."""

    device: str
    behaviours: int
    jobs: int
    response_s: float
    wait_s: float
    probe_s: float
    faults: list[str]
    descriptors: int
    memory_bytes: int
    threads: int
    log_bytes: int


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def flood(port: int, done: threading.Event) -> None:
    """Connections of the four kinds, some closed by a reset, until it is done."""
    kept: deque[socket.socket] = deque()
    began_s = time.monotonic()
    for number in itertools.count():
        if done.wait(max(0.0, began_s + number / A_SECOND - time.monotonic())):
            break
        with suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), timeout=1)
            kept.append(one)
            one.sendall(SAID[number % len(SAID)])
        if len(kept) > KEPT:
            oldest = kept.popleft()
            if number % 2:
                oldest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            oldest.close()
    for one in kept:
        one.close()


@contextmanager
def flooded(port: int) -> Iterator[list[float]]:
    """The port is flooded meanwhile; how long each answer to a probe took, in seconds."""
    done, took_s = FORKED.Event(), [0.0]
    flooding = FORKED.Process(target=flood, args=(port, done))
    flooding.start()

    def probe() -> None:
        while not done.wait(0.1):
            began_s = time.monotonic()
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
                assert answer.read() == b"ok\n"
            took_s.append(time.monotonic() - began_s)

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        yield took_s
    finally:
        done.set()
        flooding.join()
        probing.join()


def minute(rig: Rig, device: str, port: int, next_one: Callable[[], Behaviour], s: float) -> Minute:
    """So many seconds of the mean task's behaviours, with the port flooded."""
    agent = rig.agent
    begin = agent.log.stat().st_size
    end_s, count, faults = time.monotonic() + s, 0, []
    with flooded(port) as probes_s, witness(rig) as seen:
        while time.monotonic() < end_s:
            done = misbehave(rig, [next_one() for _ in range(AT_ONCE)])
            faults += [f"{name}: {why}" for name, why in done.failed.items()]
            count += len(done.took_s)
    quiet(agent)
    if seen.outputs != {rig.program.expected}:
        faults.append("an output of the good task is wrong")
    log = agent.log.read_bytes()[begin:].decode(errors="replace")
    faults += [line for line in log.splitlines() if measured_agent.WORDS in line]
    descriptors, memory_bytes = held(agent)
    assert agent.process is not None
    threads = len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))
    return Minute(
        device,
        count,
        len(seen.responses_s),
        max(seen.responses_s),
        max(seen.waits_s),
        max(probes_s),
        faults,
        descriptors,
        memory_bytes,
        threads,
        len(log),
    )


def row(number: int, one: Minute) -> str:
    """A line of the table."""
    return (
        f"{number:>4} {one.device:>5} {one.behaviours:>6} {one.jobs:>6} "
        f"{one.response_s * 1e3:>9.1f} {one.wait_s * 1e3:>8.1f} {one.probe_s * 1e3:>8.1f} "
        f"{one.descriptors:>5} {one.memory_bytes >> 10:>8} {one.threads:>4} {one.log_bytes:>8}"
    )


def grown(minutes: list[Minute]) -> list[str]:
    """What an agent has more of at the end than when it was settled."""
    if len(minutes) <= SETTLED:
        return []
    first, last = minutes[SETTLED - 1], minutes[-1]
    found = {
        "descriptors": last.descriptors - first.descriptors > DESCRIPTORS,
        "memory": last.memory_bytes - first.memory_bytes > MEMORY_BYTES,
        "threads": last.threads - first.threads > THREADS,
    }
    return [f"{last.device}: its {name} have grown" for name, grew in found.items() if grew]


def main() -> int:
    """Run it; its status."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=int, default=60)
    arguments.add_argument("--seconds", type=float, default=60.0, help="of each")
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = arguments.parse_args()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    chance = random.Random(given.seed)  # noqa: S311 - no secret
    print(f"{platform.node()}, {platform.machine()}, seed {given.seed}")
    print("minute, device, behaviours, jobs of the good task, their worst response (ms),")
    print("worst wait of the prober (ms), worst probe of the port (ms); descriptors, memory (KiB),")
    print("threads, bytes of the log in this minute")
    rows: dict[str, list[Minute]] = {"cpu": [], "cuda": []}
    faults: list[str] = []
    with ExitStack() as rigs:
        agents: dict[str, tuple[Rig, int, list[Behaviour]]] = {}
        for name, make, kinds, device in (
            ("cpu", cpu_rig, ON_ALL, CPU),
            ("cuda", gpu_rig, ON_GPU, CUDA),
        ):
            folder = Path(rigs.enter_context(tempfile.TemporaryDirectory()))
            port = free_port()
            rig = rigs.enter_context(make(folder, metrics_port=port))
            all_of_them = [one for kind in kinds.values() for one in kind(device)]
            agents[name] = rig, port, all_of_them
        for number, name in zip(range(given.minutes), itertools.cycle(agents), strict=False):
            rig, port, behaviours = agents[name]
            seen = minute(rig, name, port, partial(chance.choice, behaviours), given.seconds)
            rows[name].append(seen)
            print(row(number + 1, seen), flush=True)
            for fault in seen.faults:
                print(f"     {fault}", flush=True)
            faults += seen.faults
    faults += [one for of_one in rows.values() for one in grown(of_one)]
    print("\n".join(faults) if faults else "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
