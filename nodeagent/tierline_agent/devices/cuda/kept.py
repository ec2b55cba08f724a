"""The driver calls of the copy path, made without letting go of the interpreter's lock.

`cuda-bindings` releases the lock around every call, which is right for calls that block. A call
that only enqueues takes 1 to 4 us; were the lock released each time, any busy thread could take it
and keep it for a switch interval, several times for each extent. So these few go through
function pointers that keep it. None of them blocks: at most a few hundred operations are ever
enqueued in a stream.

Handles and addresses are plain numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tierline_agent.devices.cuda.driver import NOT_READY, SUCCESS, call, driver, failure_of

_INTERFACE_VERSION = 12000  # the driver answers with the symbol that CUDA 12 programs use
_HANDLE, _ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
_WORD, _FLAGS = ctypes.c_uint32, ctypes.c_uint
_WAIT_GEQ = 0
_NO_FLAGS = 0
_WRITE_DEFAULT = 0  # with a barrier: earlier work is visible to all that see the value


class KeptCalls:
    """Typed function pointers of the driver."""

    def __init__(self) -> None:
        """Raises CudaFailed: the driver lacks one."""
        self._set_current = _find("cuCtxSetCurrent", _HANDLE)
        self._copy = _find("cuMemcpyHtoDAsync", _ADDRESS, _HANDLE, _SIZE, _HANDLE)
        self._wait = _find("cuStreamWaitValue32", _HANDLE, _ADDRESS, _WORD, _FLAGS)
        self._write = _find("cuStreamWriteValue32", _HANDLE, _ADDRESS, _WORD, _FLAGS)
        self._record = _find("cuEventRecord", _HANDLE, _HANDLE)
        self._wait_for = _find("cuStreamWaitEvent", _HANDLE, _HANDLE, _FLAGS)
        self._query = _find("cuEventQuery", _HANDLE)
        self._query_stream = _find("cuStreamQuery", _HANDLE)
        self._elapsed = _find(
            "cuEventElapsedTime", ctypes.POINTER(ctypes.c_float), _HANDLE, _HANDLE
        )

    def make_current(self, context: int) -> None:
        """Make a context this thread's. Raises CudaFailed."""
        _check("enter a context", self._set_current(context))

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from pinned host memory. Raises CudaFailed."""
        _check("copy to the device", self._copy(target, source, size_bytes, stream))

    def wait_at_least(self, stream: int, word: int, value: int) -> None:
        """Let the stream wait until a word has at least a value (cyclic). Raises CudaFailed."""
        _check("wait for a flag word", self._wait(stream, word, value, _WAIT_GEQ))

    def write(self, stream: int, word: int, value: int) -> None:
        """Let the stream set a word, after all that is before it. Raises CudaFailed."""
        _check("set a flag word", self._write(stream, word, value, _WRITE_DEFAULT))

    def record(self, event: int, stream: int) -> None:
        """Note a moment of the stream. Raises CudaFailed."""
        _check("record an event", self._record(event, stream))

    def wait_for(self, stream: int, event: int) -> None:
        """Let the stream wait until the event's stream has come to where it was recorded last.

        Raises CudaFailed.
        """
        _check("wait for an event", self._wait_for(stream, event, _NO_FLAGS))

    def has_passed(self, event: int) -> bool:
        """Whether the stream has come to the event.

        Raises:
            CudaFailed: an earlier operation failed.
        """
        result = self._query(event)
        if result == NOT_READY:
            return False
        _check("copy to the device", result)
        return True

    def is_idle(self, stream: int) -> bool:
        """Whether all that was enqueued in a stream has run.

        Raises:
            CudaFailed: something of it failed.
        """
        result = self._query_stream(stream)
        if result == NOT_READY:
            return False
        _check("copy to the device", result)
        return True

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two events that have passed. Raises CudaFailed."""
        milliseconds = ctypes.c_float()
        _check("time a copy", self._elapsed(ctypes.byref(milliseconds), begin, end))
        return milliseconds.value / 1e3


def _find(name: str, *types: type) -> Callable[..., int]:
    address, _ = call(
        f"find {name} in the CUDA driver",
        driver.cuGetProcAddress,
        name.encode(),
        _INTERFACE_VERSION,
        0,
    )
    function: Callable[..., int] = ctypes.PYFUNCTYPE(ctypes.c_int, *types)(int(address))
    return function


def _check(attempt: str, result: int) -> None:
    if result != SUCCESS:
        raise failure_of(attempt, result)
