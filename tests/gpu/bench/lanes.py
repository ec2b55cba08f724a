"""What stands between two copies of a stream: flags, events, and what would take less.

    python -m tests.gpu.bench.lanes [--extent-mib N...] [--extents N] [--rounds N] [--json FILE]

No agent and no client: extents from pinned memory to the device, one after another, all enqueued at
once, with what the agent's copy stream puts around each (`devices/cuda/copies.py`) and with other
ways of saying the same. All waits are satisfied beforehand. For each way: the time per extent
beyond that of copies alone in the same round, median and worst of the rounds, and whether no count
was published before its extent had arrived: a kernel's place is taken by a second stream that waits
for each count and copies the extent's last bytes away at once.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from tests.bench.machine import describe, keep, print_head
from tests.integration.agent.gpu_client import GEQ, ok, start_cuda

_MARK_BYTES = 4096
"""The end of each extent, which says which one it is."""
_NO_TIMING = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
_TIMING = driver.CUevent_flags.CU_EVENT_DEFAULT


@dataclass(frozen=True)
class Extents:
    """Where the copies come from and go to."""

    extent_bytes: int
    count: int
    host: int
    there: int
    published: int
    """The address of a word of pinned memory; the word of what is consumed lies 64 bytes on."""
    streams: tuple[Any, Any, Any]

    @property
    def consumed(self) -> int:
        """The address of the word that all waits are for."""
        return self.published + 64

    def source(self, number: int) -> int:
        """Where an extent lies in pinned memory."""
        return self.host + number * self.extent_bytes

    def target(self, number: int) -> int:
        """Where it goes."""
        return self.there + number * self.extent_bytes

    def copy(self, number: int, stream: Any) -> None:
        """Enqueue the copy alone."""
        ok(
            driver.cuMemcpyHtoDAsync(
                self.target(number), self.source(number), self.extent_bytes, stream
            )
        )


class Events:
    """Events, made once and used again in each round."""

    def __init__(self, flags: Any) -> None:
        self._flags = int(flags)
        self._made: list[Any] = []
        self._next = 0

    def record(self, stream: Any) -> Any:
        """Record the next one."""
        if self._next == len(self._made):
            self._made.append(ok(driver.cuEventCreate(self._flags)))
        event = self._made[self._next]
        self._next += 1
        ok(driver.cuEventRecord(event, stream))
        return event

    def again(self) -> None:
        """A new round."""
        self._next = 0


_timed, _plain = Events(_TIMING), Events(_NO_TIMING)


def _wait(extents: Extents, stream: Any) -> None:
    ok(driver.cuStreamWaitValue32(stream, extents.consumed, 1, GEQ))


def _publish(extents: Extents, stream: Any, number: int) -> None:
    ok(driver.cuStreamWriteValue32(stream, extents.published, number + 1, 0))


def _bare(extents: Extents) -> None:
    for number in range(extents.count):
        extents.copy(number, extents.streams[0])


def _as_the_agent(extents: Extents, *, begin: bool = True, events: Events = _timed) -> None:
    stream = extents.streams[0]
    for number in range(extents.count):
        _wait(extents, stream)
        if begin:
            events.record(stream)
        extents.copy(number, stream)
        _publish(extents, stream, number)
        events.record(stream)


def _in_batches(extents: Extents) -> None:
    """What publishes an extent and the wait for the next slot are one operation."""
    stream = extents.streams[0]
    for number in range(extents.count):
        extents.copy(number, stream)
        _timed.record(stream)
        write, wait = (driver.CUstreamBatchMemOpParams() for _ in range(2))
        write.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
        write.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
        write.writeValue.address, write.writeValue.value = extents.published, number + 1
        wait.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
        wait.waitValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
        wait.waitValue.address, wait.waitValue.value = extents.consumed, 1
        ok(driver.cuStreamBatchMemOp(stream, 2, [write, wait], 0))


def _in_two_lanes(extents: Extents, later: int) -> None:
    """Flags of one stream while the other copies, `later` copies after the one that it awaits."""
    copied: list[Any] = []
    published: list[Any] = []
    for number in range(extents.count):
        stream = extents.streams[number % 2]
        _wait(extents, stream)
        if number >= later:
            ok(driver.cuStreamWaitEvent(stream, copied[number - later], 0))
        extents.copy(number, stream)
        copied.append(_plain.record(stream))
        if number:  # counts rise by one
            ok(driver.cuStreamWaitEvent(stream, published[-1], 0))
        _publish(extents, stream, number)
        published.append(_timed.record(stream))


def _flags_elsewhere(extents: Extents, *, waits_too: bool) -> None:
    """Copies alone in one stream; another one publishes them, and a third one waits for room."""
    copies, counts, room = extents.streams
    for number in range(extents.count):
        if waits_too:
            _wait(extents, room)
            ok(driver.cuStreamWaitEvent(copies, _plain.record(room), 0))
        else:
            _wait(extents, copies)
        extents.copy(number, copies)
        ok(driver.cuStreamWaitEvent(counts, _timed.record(copies), 0))
        _publish(extents, counts, number)


WAYS: dict[str, Callable[[Extents], None]] = {
    "as the agent does": _as_the_agent,
    "without the event before a copy": lambda extents: _as_the_agent(extents, begin=False),
    "events that keep no time": lambda extents: _as_the_agent(extents, events=_plain),
    "one event, which keeps no time": lambda extents: _as_the_agent(
        extents, begin=False, events=_plain
    ),
    "count and next wait in one": _in_batches,
    "two streams, one copy at a time": lambda extents: _in_two_lanes(extents, 1),
    "two streams, two copies at a time": lambda extents: _in_two_lanes(extents, 2),
    "counts by a stream of their own": lambda extents: _flags_elsewhere(extents, waits_too=False),
    "counts and waits by their own": lambda extents: _flags_elsewhere(extents, waits_too=True),
}


@contextmanager
def _extents(extent_bytes: int, count: int) -> Iterator[Extents]:
    host = int(ok(driver.cuMemHostAlloc(extent_bytes * count, 0)))
    words = int(ok(driver.cuMemHostAlloc(_MARK_BYTES, 0)))
    there = int(ok(driver.cuMemAlloc(extent_bytes * count)))
    flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    streams = tuple(ok(driver.cuStreamCreate(flags)) for _ in range(3))
    for number in range(count):
        mark = host + (number + 1) * extent_bytes - _MARK_BYTES
        (ctypes.c_uint32 * (_MARK_BYTES // 4)).from_address(mark)[:] = [number + 1] * (
            _MARK_BYTES // 4
        )
    try:
        yield Extents(extent_bytes, count, host, there, words, (streams[0], streams[1], streams[2]))
    finally:
        for stream in streams:
            ok(driver.cuStreamDestroy(stream))
        ok(driver.cuMemFree(there))
        for memory in (host, words):
            ok(driver.cuMemFreeHost(memory))


def _time_s(extents: Extents, way: Callable[[Extents], None]) -> float:
    """From the first copy to the last, everything enqueued before the first may begin."""
    first, *others = extents.streams
    _reset(extents)
    begin = ok(driver.cuEventCreate(int(_TIMING)))
    end = ok(driver.cuEventCreate(int(_TIMING)))
    gate = extents.consumed + 64
    ok(driver.cuStreamWaitValue32(first, gate, 1, GEQ))
    ok(driver.cuEventRecord(begin, first))
    for other in others:
        ok(driver.cuStreamWaitEvent(other, begin, 0))
    way(extents)
    for other in others:
        ok(driver.cuStreamWaitEvent(first, _plain.record(other), 0))
    ok(driver.cuEventRecord(end, first))
    _set(gate, 1)
    ok(driver.cuStreamSynchronize(first))
    took_s = float(ok(driver.cuEventElapsedTime(begin, end))) / 1e3
    for event in (begin, end):
        ok(driver.cuEventDestroy(event))
    return took_s


def _reset(extents: Extents) -> None:
    for offset, value in ((0, 0), (64, 1), (128, 0)):
        _set(extents.published + offset, value)
    ok(driver.cuMemsetD8(extents.there, 0, extents.extent_bytes * extents.count))
    ok(driver.cuCtxSynchronize())
    _timed.again()
    _plain.again()


def _set(word: int, value: int) -> None:
    ctypes.c_uint32.from_address(word).value = value


def _is_right(extents: Extents, way: Callable[[Extents], None]) -> bool:
    """Whether a stream that waits for each count finds that extent's end whole."""
    flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    reader = ok(driver.cuStreamCreate(flags))
    seen = int(ok(driver.cuMemAlloc(_MARK_BYTES * extents.count)))
    _reset(extents)
    for number in range(extents.count):
        ok(driver.cuStreamWaitValue32(reader, extents.published, number + 1, GEQ))
        end = extents.target(number) + extents.extent_bytes - _MARK_BYTES
        ok(driver.cuMemcpyDtoDAsync(seen + number * _MARK_BYTES, end, _MARK_BYTES, reader))
    way(extents)
    ok(driver.cuCtxSynchronize())
    found = bytearray(_MARK_BYTES * extents.count)
    ok(driver.cuMemcpyDtoH(found, seen, len(found)))
    ok(driver.cuMemFree(seen))
    ok(driver.cuStreamDestroy(reader))
    words = memoryview(found).cast("I")
    each = _MARK_BYTES // 4
    return all(
        set(words[number * each : (number + 1) * each]) == {number + 1}
        for number in range(extents.count)
    )


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extent-mib", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--extents", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    start_cuda()
    gpu = ok(driver.cuDeviceGetName(64, 0)).split(b"\0")[0].decode()
    about = {**describe(), "gpu": gpu}
    print_head(about)
    print(f"{'extent':>10}  {'way':<36}{'copies':>10}{'median':>10}{'worst':>10}  counts")
    rows = []
    for mib in arguments.extent_mib:
        with _extents(mib << 20, arguments.extents) as extents:
            _time_s(extents, _bare)
            for name, way in WAYS.items():
                beyond_us, bare_s = [], []
                for _ in range(arguments.rounds):
                    bare_s.append(_time_s(extents, _bare))
                    taken_s = _time_s(extents, way)
                    beyond_us.append((taken_s - bare_s[-1]) / extents.count * 1e6)
                row = Row(
                    extent_bytes=mib << 20,
                    way=name,
                    copy_us=statistics.median(bare_s) / extents.count * 1e6,
                    beyond_us=statistics.median(beyond_us),
                    worst_us=max(beyond_us),
                    right=_is_right(extents, way),
                )
                rows.append(row)
                print(
                    f"{mib:>6} MiB  {name:<36}{row.copy_us:>7.1f} us{row.beyond_us:>7.2f} us"
                    f"{row.worst_us:>7.2f} us  {'right' if row.right else 'TOO EARLY'}",
                    flush=True,
                )
    keep(arguments.json, {**about, "rows": [asdict(row) for row in rows]})


@dataclass(frozen=True)
class Row:
    """One way of copying extents of one size. Microseconds an extent."""

    extent_bytes: int
    way: str
    copy_us: float
    beyond_us: float
    worst_us: float
    right: bool


if __name__ == "__main__":
    main()
