from __future__ import annotations

import os

import pytest

from tierline_agent.config import DeviceSettings
from tierline_agent.devices.opening import prepare_devices
from tierline_agent.errors import ConfigError

EXTENT_BYTES = 64 << 10
MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def settings(fast_bytes: int) -> DeviceSettings:
    return DeviceSettings(kind="cpu", fast_bytes=fast_bytes, extent_bytes=EXTENT_BYTES)


def test_a_machine_has_no_more_fast_memory_than_memory() -> None:
    ((name, device),) = prepare_devices([settings(MACHINE_BYTES)]).values()
    assert (name, device.fast_bytes) == ("cpu", MACHINE_BYTES)
    device.close()
    with pytest.raises(ConfigError, match=f"this machine has {MACHINE_BYTES}; configure less as"):
        prepare_devices([settings(MACHINE_BYTES + 1)])
