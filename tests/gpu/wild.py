"""A kernel that writes where nothing is: what an illegal access of one task is to the others."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver, nvrtc

_NOWHERE = 0xDEAD0000
_SOURCE = b"""
extern "C" __global__ void wild(unsigned long long *at) { *at = 1; }
"""


def _ok(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]) != 0:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else None


def access(device: int = 0) -> None:
    """Launch it on the current context's default stream; what comes after fails."""
    place = _ok(driver.cuDeviceGet(device))
    attribute = driver.CUdevice_attribute
    major, minor = (
        _ok(driver.cuDeviceGetAttribute(which, place))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    program = _ok(nvrtc.nvrtcCreateProgram(_SOURCE, b"wild.cu", 0, [], []))
    option = f"--gpu-architecture=sm_{major}{minor}".encode()
    _ok(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    code = b" " * _ok(nvrtc.nvrtcGetCUBINSize(program))
    _ok(nvrtc.nvrtcGetCUBIN(program, code))
    kernel = _ok(driver.cuModuleGetFunction(_ok(driver.cuModuleLoadData(code)), b"wild"))
    parameters = ((_NOWHERE,), (ctypes.c_uint64,))
    _ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0))
