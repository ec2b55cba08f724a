"""Watches and times launches, and graphs of them, by the Python binding, on a simulated driver.

Run with libtierline.so preloaded and named by TIERLINE_LIBRARY (test_launches.py does so).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from tierline_client.launches import Launches
from tierline_torch.learning.launch_times import layer_times_s

COUNT, SIZE = 3, 1 << 16
DURATION_S = 0.002


def ok(answer: tuple[Any, ...]) -> Any:
    """The values of a call that succeeded."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def main() -> None:
    """Three weights, read in another order than they lie in; the first one twice."""
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
    base = int(ok(driver.cuMemAlloc((COUNT + 1) * SIZE)))
    scratch = base + COUNT * SIZE
    module = ok(driver.cuModuleLoadData(b"simcuda kernels"))
    kernel = ok(driver.cuModuleGetFunction(module, b"sim_gemm_like"))
    launches = Launches()
    assert launches.active

    def launch(weight: int, duration_s: float = DURATION_S, stream: Any = 0) -> None:
        values = (base + weight * SIZE, SIZE, scratch, scratch + 8, int(duration_s * 1e9))
        ok(
            driver.cuLaunchKernel(
                *(kernel, 1, 1, 1, 1, 1, 1, 0, stream), (values, (ctypes.c_uint64,) * 5), 0
            )
        )

    ranges = [(base + n * SIZE, SIZE) for n in range(COUNT)]
    check_launches(launches, ranges, launch)
    check_graph(launches, ranges, launch)
    check_tables(launches, ranges, scratch)
    ok(driver.cuCtxSynchronize())


def check_launches(
    launches: Launches, ranges: list[tuple[int, int]], launch: Callable[[int], None]
) -> None:
    """One weight is read twice, and counts once."""
    with launches.watching(ranges):
        with launches.timing():
            for weight in (2, 0, 2, 1):
                launch(weight)
            assert launches.reads() == [(0, 2), (1, 0), (2, 2), (3, 1)]
            times = launches.times()
        assert [number for number, _ in times] == [0, 1, 3]
        before_s = 0.0
        for number, end_s in times:
            assert end_s - before_s >= DURATION_S * (2 if number == 3 else 1) * 0.99
            before_s = end_s
        assert launches.times() == []


def check_graph(
    launches: Launches, ranges: list[tuple[int, int]], launch: Callable[[int, float, Any], None]
) -> None:
    """A captured program's time is in the layers that take it, and together it is the job's."""
    took_s = (0.001, 0.008, 0.003)
    launches.time_graphs()
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    ok(driver.cuStreamBeginCapture(stream, mode))
    for weight, duration_s in enumerate(took_s):
        launch(weight, duration_s, stream)
        launch(weight, 0.001, stream)  # not the first to read it: part of what follows
    graph = ok(driver.cuStreamEndCapture(stream))
    replayed = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphDestroy(graph))
    begin, end = (ok(driver.cuEventCreate(0)) for _ in range(2))
    for _ in range(2):
        with launches.watching(ranges), launches.timing():
            ok(driver.cuEventRecord(begin, stream))
            ok(driver.cuGraphLaunch(replayed, stream))
            ok(driver.cuEventRecord(end, stream))
            ok(driver.cuEventSynchronize(end))
            total_s = ok(driver.cuEventElapsedTime(begin, end)) / 1e3
            times = layer_times_s([[0], [1], [2]], launches.reads(), launches.times(), total_s)
        assert abs(sum(times) - total_s) < 1e-6
        for layer_s, least_s in zip(times, (0.001, 0.009, 0.005), strict=True):
            assert layer_s >= least_s * 0.99
    ok(driver.cuGraphExecDestroy(replayed))


def check_tables(launches: Launches, ranges: list[tuple[int, int]], scratch: int) -> None:
    """Memory that could not be searched says nothing: not that it holds no address."""
    table = (ctypes.c_uint64 * 1)(ranges[1][0] + 64)
    ok(driver.cuMemcpyHtoD(scratch, table, ctypes.sizeof(table)))
    assert launches.in_memory(ranges) == {1}
    captures, looked = threading.Event(), threading.Event()

    def capture() -> None:
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ok(driver.cuStreamBeginCapture(stream, mode))
        captures.set()
        looked.wait()
        ok(driver.cuGraphDestroy(ok(driver.cuStreamEndCapture(stream))))

    other = threading.Thread(target=capture)
    other.start()
    captures.wait()
    found = launches.in_memory(ranges)
    capturing = launches.capturing
    looked.set()
    other.join()
    assert found is None
    assert capturing
    assert not launches.capturing
    assert launches.in_memory(ranges) == {1}


if __name__ == "__main__":
    main()
