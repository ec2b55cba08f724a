"""Watches and times launches through the Python binding, on the simulated driver.

Run with libtierline.so preloaded and named by TIERLINE_LIBRARY (test_launches.py does so).
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from tierline_client.launches import Launches

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

    def launch(weight: int) -> None:
        values = (base + weight * SIZE, SIZE, scratch, scratch + 8, int(DURATION_S * 1e9))
        ok(
            driver.cuLaunchKernel(
                *(kernel, 1, 1, 1, 1, 1, 1, 0, 0), (values, (ctypes.c_uint64,) * 5), 0
            )
        )

    with launches.watching([(base + n * SIZE, SIZE) for n in range(COUNT)]):
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
    ok(driver.cuCtxSynchronize())


if __name__ == "__main__":
    main()
