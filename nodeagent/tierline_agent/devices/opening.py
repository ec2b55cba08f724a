"""Opens the device of a configuration.

The modules of a kind are imported only when it is used: a machine without GPUs needs none of
NVIDIA's packages.
"""

from __future__ import annotations

from tierline_agent.config import DeviceSettings
from tierline_agent.devices.base import Device
from tierline_agent.devices.cpu import CpuDevice


def open_device(settings: DeviceSettings) -> Device:
    """Open a device.

    Raises:
        ConfigError: there is no such device.
        OSError: it cannot be used.
    """
    if settings.kind == "cpu":
        return CpuDevice(settings.extent_bytes, settings.fast_bytes)
    return _open_gpu(settings)


def _open_gpu(settings: DeviceSettings) -> Device:
    from tierline_agent.devices.cuda.device import CudaDevice  # noqa: PLC0415 - see above
    from tierline_agent.devices.cuda.inventory import find_gpu, list_gpus  # noqa: PLC0415

    gpu = find_gpu(list_gpus(), settings.index, settings.uuid)
    return CudaDevice(gpu, settings.extent_bytes, settings.fast_bytes)
