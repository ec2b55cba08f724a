"""One device's primary context, current in whichever thread asks.

Every thread that calls the driver for a device enters its context first; threads serve several
devices in turn. Invariant: `handle` is the context in which all memory and streams of the device
live, until `reset` replaces it or `release` ends it.
"""

from __future__ import annotations

from typing import Any

from tierline_agent.devices.cuda.driver import NOT_READY, SUCCESS, call, driver, failure_of
from tierline_agent.devices.cuda.kept import KeptCalls


class Context:
    """The primary context of the device number `ordinal`."""

    def __init__(self, ordinal: int, kept: KeptCalls) -> None:
        """Raises CudaFailed."""
        self.ordinal = ordinal
        self._kept = kept
        self._device = call(f"open GPU {ordinal}", driver.cuDeviceGet, ordinal)
        self.handle = self._retain()

    def enter(self) -> None:
        """Make it current in this thread. Raises CudaFailed."""
        self._kept.make_current(self.handle)

    def check(self) -> None:
        """Raise CudaFailed if it does not work any more."""
        self.enter()
        result = driver.cuStreamQuery(0)[0]
        if result not in (SUCCESS, NOT_READY):
            raise failure_of(f"use GPU {self.ordinal}", result)

    def reset(self) -> None:
        """Destroy the context with all that is in it, and make a new one. Raises CudaFailed."""
        self.release()
        self.handle = self._retain()

    def release(self) -> None:
        """Destroy it with all that is in it, for good."""
        driver.cuDevicePrimaryCtxReset(self._device)  # of a lost device it may answer its loss

    def location(self) -> Any:
        """Where this device's memory is."""
        here = driver.CUmemLocation()
        here.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        here.id = self.ordinal
        return here

    def _retain(self) -> int:
        attempt = f"make a context on GPU {self.ordinal}"
        return int(call(attempt, driver.cuDevicePrimaryCtxRetain, self._device))
