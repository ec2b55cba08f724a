"""The agent dies at each step of a message, once or twice in a row, and everybody goes on.

The steps are those that the agent makes (`mortal_agent`), however many there are: it dies at the
first, at the second and so on, until it lives through the message. Each time a long job begins,
rewinds, and gives the device away to a short one; both read what they should.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    TIMEOUT_S,
    AgentProcess,
    ProgramKind,
    TaskProcess,
    plan,
    wait_until,
)
from tests.integration.agent.deaths import enduring_program, mortal_agent
from tests.integration.agent.raw_client import ClosedError, RawClient

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

EXTENTS = 6
ENDURING = ProgramKind(enduring_program.__name__, EXTENT_BYTES)
PREEMPTION = {
    **{"scheduling": "RingKeeping", "layer_ns": 10**12, "penalty_ns": 10**9},
    "parked_bytes": 4096,
}
UNHURRIED = {"predictedJobTime": "1000s"}
LATE_S, EARLY_S = 3000, 1000
STALLED_S = 20.0
"""On an idle machine everybody is back within 2 s of the agent; this is for a busy one."""
STRIDE = int(os.environ.get("TIERLINE_DEATHS_STRIDE", "8"))
"""1: at every step. CI takes every eighth, others for a second death than for one."""


class Mortal:
    """An agent that is started again whenever it has died; each dies as its order says."""

    def __init__(self, folder: Path, orders: list[str]) -> None:
        self.agent = AgentProcess(folder, module=mortal_agent.__name__)
        self._orders = iter(orders)
        self.deaths = 0
        self.back_s: list[float] = []
        """When the next agents answered."""
        self.took_s = 0.0
        """How long after the last one all was over."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tend)

    def start(self) -> None:
        self._order()
        self.agent.start()
        self._thread.start()

    def _order(self) -> None:
        self.agent.environment[mortal_agent.VARIABLE] = next(self._orders, "")

    def _tend(self) -> None:
        while not self._done.wait(0.002):
            assert self.agent.process is not None
            if self.agent.process.poll() == -signal.SIGKILL:
                self.deaths += 1
                self._order()
                self.agent.launch()
                self._wait()

    def _wait(self) -> None:
        """Until it answers, or is dead again."""
        assert self.agent.process is not None
        while self.agent.process.poll() is None and not self._done.is_set():
            with suppress(OSError, ValueError):
                self.agent.call("node")
                self.back_s.append(time.monotonic())
                return

    def waiting_jobs(self) -> int:
        """How many wait for the device, as soon as somebody answers."""
        while not self._done.wait(0.002):
            with suppress(OSError, ValueError):
                found: int = self.agent.snapshot()["devices"][0]["waiting_jobs"]
                return found
        return 0

    def register(self) -> None:
        values = {"resident": (1,), "ring": 2}
        long = {**plan(EXTENTS, **values), **UNHURRIED}  # type: ignore[arg-type]
        assert self.agent.register("long", long, preemption=PREEMPTION)["ok"]
        assert self.agent.register("short", {**plan(EXTENTS, ring=2), **UNHURRIED})["ok"]
        lender = plan(1, resident=(0,), ring=0, workspace=2 * EXTENT_BYTES)
        assert self.agent.register("lender", lender, domain="other")["ok"]

    def program(self, task: str, seed: int) -> TaskProcess:
        return self.agent.program(task, seed, EXTENTS, ENDURING)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        assert self.agent.stop() == 0, self.agent.log.read_text()


def stream(program: TaskProcess) -> IO[str]:
    assert program.process.stdout is not None
    return program.process.stdout


def give_way(long: TaskProcess, short: TaskProcess, mortal: Mortal) -> None:
    """Have the long job go on until it stands at a gate, and the short one has the device.

    If the agent dies at that gate the long job may go through it: it waits there for the next agent
    alone, which may grant it the device before the short one is back; that one has the next gate.
    """
    done = ""
    while done != str(EXTENTS):
        wait_until(lambda: mortal.waiting_jobs() == 1, "the short job waits")
        long.tell("step 1")
        readable = wait([stream(long).fileno(), stream(short).fileno()], TIMEOUT_S)
        if stream(short).fileno() in readable:
            assert short.answer() == "begun"
            return
        done = long.answer()
    pytest.fail("the long job was never asked to give the device away")


def come_back(mortal: Mortal) -> None:
    """There is something to be offered back."""
    long, short = mortal.program("long", 1), mortal.program("short", 2)
    mortal.agent.kill()
    go_on(long, short, mortal)


def have_jobs(mortal: Mortal) -> None:
    go_on(mortal.program("long", 1), mortal.program("short", 2), mortal)


def go_on(long: TaskProcess, short: TaskProcess, mortal: Mortal) -> None:
    assert long.do(f"begin {LATE_S}") == "begun"
    assert long.do("step 3") == "3"
    assert long.do("step 0") == "0"
    assert long.do("step 2") == "2"
    short.tell(f"begin {EARLY_S}")
    give_way(long, short, mortal)
    assert short.do(f"step {EXTENTS}") == str(EXTENTS)
    assert short.do("end") == short.expected
    long.answer()
    assert long.do(f"step {EXTENTS}") == str(EXTENTS)
    assert long.do("end") == long.expected
    for program in (short, long):
        assert program.do("job") == program.expected


def borrow(mortal: Mortal) -> None:
    """A client asks for a workspace until it has it, and can have its arena, too."""
    token, lent = 0, False
    while not lent:
        mortal.waiting_jobs()
        with suppress(ClosedError, OSError):
            client = mortal.agent.connect("lender", RawClient)
            token = client.hello(token).reattach_token
            asked = p.Workspace(2 * EXTENT_BYTES, p.WorkspaceFlags.PRESERVE)
            count = client.ask(asked, p.WorkspaceLent).extent_count
            for kind, number in (("WORKSPACE", count), ("BACKUP", 1)):
                for one in client.expect_descriptors(p.DescriptorKind[kind], number):
                    os.close(one)
            client.ask(p.Stats(), p.Statistics)
            lent = True
    client.reserve(EXTENT_BYTES)
    client.end(client.begin(p.NO_ARENA))


def survives(folder: Path, orders: list[str], run: Callable[[Mortal], None]) -> Mortal:
    folder.mkdir()
    mortal = Mortal(folder, orders)
    try:
        mortal.start()
        mortal.register()
        run(mortal)
        end_s = time.monotonic()
    finally:
        mortal.stop()
    if mortal.back_s:
        mortal.took_s = end_s - mortal.back_s[-1]
        assert mortal.took_s < STALLED_S, orders
    return mortal


@pytest.mark.parametrize("deaths", [1, 2])
@pytest.mark.parametrize(
    ("message", "before", "run"),
    [
        ("Reserve", [], have_jobs),
        ("Seal", [], have_jobs),
        ("JobBegin", [], have_jobs),
        ("Rewind", [], have_jobs),
        ("Yield", [], have_jobs),
        ("Attach", [""], come_back),  # the first one is killed when nobody wants anything
        ("Workspace", [], borrow),
    ],
)
def test_everybody_goes_on_whenever_the_agent_dies(
    tmp_path: Path, message: str, before: list[str], run: Callable[[Mortal], None], deaths: int
) -> None:
    worst_s, died = 0.0, 0
    for step in itertools.count(1 + (deaths - 1) * STRIDE // 2, STRIDE):
        orders = [*before, *[f"{message} {step}"] * deaths]
        mortal = survives(tmp_path / str(step), orders, run)
        if mortal.deaths == len(before):
            break
        died += 1
        worst_s = max(worst_s, mortal.took_s)
    print(f"{message}: {died} of {step - 1} steps, {deaths} in a row: over in {worst_s:.2f} s")
    assert died
