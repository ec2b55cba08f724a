"""Programs on a GPU: captures left open, graphs that are replayed when they may not be, and waits.

Each has an arena in its own address space, as a client of a GPU has it. With its lease, without it
and after it, it has the GPU do what nobody asked for. What it may write is its own: its flag words,
and the ring of its trust domain.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import EXTENT, Wire
from tests.integration.agent.gpu_client import GEQ, READ_WRITE, GpuArena, ok, start_cuda

_EXTENTS = 16
_WHILE_S = 0.2
_NEVER = 0x7FFFFFF0
_CHUNK_BYTES = 32 << 20
_MODES = driver.CUstreamCaptureMode
Record = Callable[["Program"], None]
End = Callable[["Program"], Any]


class Program:
    """A client with an arena, and what its GPU is given to do."""

    def __init__(self, target: Target) -> None:
        # By its path: the loader knows only the environment that this process was started with.
        ctypes.CDLL(str(Path(os.environ["LD_LIBRARY_PATH"]) / "libcuda.so.1"))
        self.wire = Wire(target)
        placement = self.wire.load(_EXTENTS)["placement"]
        lent = self.wire.lent
        start_cuda()
        self.arena = GpuArena(
            0,
            _EXTENTS * EXTENT,
            EXTENT,
            placement,
            lent["RESIDENT"],
            lent["RING"],
            lent["CONTROL"][0],
        )

    def begin_capture(self, mode: Any = _MODES.CU_STREAM_CAPTURE_MODE_GLOBAL) -> None:
        ok(driver.cuStreamBeginCapture(self.arena.stream, mode))

    def graph(self, record: Record) -> Any:
        """What is recorded, ready to be launched."""
        self.begin_capture()
        record(self)
        graph = ok(driver.cuStreamEndCapture(self.arena.stream))
        return ok(driver.cuGraphInstantiate(graph, 0))

    def launch(self, graph: Any) -> None:
        ok(driver.cuGraphLaunch(graph, self.arena.stream))

    def waits(self, count: int = _NEVER) -> None:
        """The stream waits until so many extents are published."""
        ok(driver.cuStreamWaitValue32(self.arena.stream, self.arena.published_there, count, GEQ))

    def writes(self, *, consumed: int | None = None, published: int | None = None) -> None:
        """The stream writes the flag words."""
        arena = self.arena
        for at, value in ((arena.consumed_there, consumed), (arena.published_there, published)):
            if value is not None:
                ok(driver.cuStreamWriteValue32(arena.stream, at, value, 0))


def graphs() -> Iterator[Behaviour]:
    """All of them."""
    for mode in (_MODES.CU_STREAM_CAPTURE_MODE_GLOBAL, _MODES.CU_STREAM_CAPTURE_MODE_RELAXED):
        for what, end in _ENDS.items():
            yield f"a capture of mode {mode.value} is open when it {what}", _captures(mode, end)
    for what, record in _RECORDS.items():
        for how, end in _ENDS.items():
            yield f"a graph {what}, and it {how}", _replays(record, end)
    for what, record in _WAITS.items():
        for how, end in _ENDS.items():
            yield f"its stream {what}, and it {how}", _streams(record, end)
            yield f"its stream {what} without a job, and it {how}", _without(record, end)
    yield "takes all memory of the GPU, and loads again", _takes_all_memory


def kept_graphs() -> Iterator[Behaviour]:
    """They stand still for ever, until the agent does something about it."""
    yield "a graph waits for ever", _replays(Program.waits, lambda _: signal.pause())


def _captures(mode: Any, end: End) -> Any:
    """A job ends, or its program, in the middle of what it records."""

    def run(target: Target) -> None:
        program = Program(target)
        program.wire.job()
        program.begin_capture(mode)
        _reads(program)
        end(program)

    return run


def _replays(record: Record, end: End) -> Any:
    """In a job, and after it."""

    def run(target: Target) -> None:
        program = Program(target)
        graph = program.graph(record)
        program.launch(graph)  # before it has the device
        program.wire.job()
        program.launch(graph)
        end(program)
        end_s = time.monotonic() + _WHILE_S
        while time.monotonic() < end_s:
            program.launch(graph)
            time.sleep(0.001)
        program.wire.settle()

    return run


def _streams(record: Record, end: End) -> Any:
    def run(target: Target) -> None:
        program = Program(target)
        program.wire.job()
        record(program)
        end(program)
        program.wire.settle()

    return run


def _without(record: Record, end: End) -> Any:
    def run(target: Target) -> None:
        program = Program(target)
        record(program)
        program.wire.job()
        program.wire.ask("JobEnd", job=1)
        record(program)
        end(program)

    return run


def _takes_all_memory(target: Target) -> None:
    wire = Program(target).wire
    while driver.cuMemAlloc(_CHUNK_BYTES)[0] == driver.CUresult.CUDA_SUCCESS:
        pass
    wire.ask("Free")
    wire.reserve(_EXTENTS)
    wire.settle()


# -- what is recorded


def _reads(program: Program) -> None:
    arena = program.arena
    for extent in range(_EXTENTS):
        at = extent * EXTENT
        ok(driver.cuMemcpyDtoHAsync(arena.host + at, arena.base + at, EXTENT, arena.stream))


def _reads_in_turn(program: Program) -> None:
    """As a job does, and once more whenever it is replayed."""
    program.arena.enqueue(0, _EXTENTS)


def _spoils_ring(program: Program) -> None:
    program.arena.allow(READ_WRITE)
    for extent in range(_EXTENTS):
        at = program.arena.base + extent * EXTENT
        ok(driver.cuMemsetD32Async(at, 0x6C697665, EXTENT // 4, program.arena.stream))


def _scribbles(program: Program) -> None:
    for value in (0, 5, 0x80000000, 0xFFFFFFFF):
        program.writes(consumed=value, published=value ^ 1)


def _waits_for_itself(program: Program) -> None:
    program.waits(_EXTENTS + 1)
    program.writes(published=_EXTENTS + 1)


_RECORDS: dict[str, Record] = {
    "reads what is not there": _reads,
    "reads in its turn": _reads_in_turn,
    "writes to its ring": _spoils_ring,
    "writes to the flag words": _scribbles,
    "waits for what never comes": Program.waits,
}
_WAITS: dict[str, Record] = {
    "waits for what never comes": Program.waits,
    "waits for what it writes itself after that": _waits_for_itself,
}


# -- how it ends


def _ends_job(program: Program) -> None:
    program.wire.send("JobEnd", job=1)
    program.wire.settle()


def _frees(program: Program) -> None:
    _ends_job(program)
    program.wire.send("Free")
    program.wire.settle()


def _dies(_: Program) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stops(_: Program) -> None:
    """Another process kills it a while later."""
    stopped = os.getpid()
    if os.fork() == 0:
        time.sleep(_WHILE_S)
        os.kill(stopped, signal.SIGKILL)
        os._exit(0)
    os.kill(stopped, signal.SIGSTOP)


_ENDS: dict[str, End] = {
    "ends its job": _ends_job,
    "frees its arena": _frees,
    "dies": _dies,
    "stops": _stops,
}
