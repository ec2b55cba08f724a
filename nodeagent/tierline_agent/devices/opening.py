"""Opens the devices of a configuration.

The modules of a kind are imported only when it is used: a machine without GPUs needs none of
NVIDIA's packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from tierline_agent.config import DeviceSettings
from tierline_agent.devices.base import Device
from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.errors import ConfigError


def prepare(settings: Sequence[DeviceSettings]) -> None:
    """Do what `open_devices` can do before a device is free: load modules, start the driver.

    It takes no memory of a device, and makes no context. Raises OSError: the driver does not start.
    """
    if any(one.kind == "cuda" for one in settings):
        import_module("tierline_agent.devices.cuda.device")
        from tierline_agent.devices.cuda.inventory import list_gpus  # noqa: PLC0415 - see above

        list_gpus()


def open_devices(settings: Sequence[DeviceSettings]) -> dict[str, Device]:
    """Open devices; by their names on this node: cpu, gpu-0 for the driver's first GPU.

    Raises:
        ConfigError: there is no such device, or it has less memory.
        OSError: one cannot be used.
    """
    gpus = [one for one in settings if one.kind == "cuda"]
    opened = _open_gpus(gpus) if gpus else {}
    for one in settings:
        if one.kind == "cpu":
            opened["cpu"] = CpuDevice(one.extent_bytes, one.fast_bytes)
    return opened


def watch_errors(
    devices: Mapping[str, Device], on_error: Callable[[str, int], None]
) -> Callable[[], None]:
    """Have the hardware's errors reported: the device's name and the error's number, in a thread.

    Returns what ends that.
    """
    uuids = {name: device.uuid for name, device in devices.items() if device.uuid}
    if not uuids:
        return lambda: None
    from tierline_agent.devices.cuda.xids import XidWatch  # noqa: PLC0415 - see above

    return XidWatch(uuids, on_error).close


def _open_gpus(settings: Sequence[DeviceSettings]) -> dict[str, Device]:
    from tierline_agent.devices.cuda.device import CudaDevice  # noqa: PLC0415 - see above
    from tierline_agent.devices.cuda.inventory import find_gpu, list_gpus  # noqa: PLC0415

    known = list_gpus()
    opened: dict[str, Device] = {}
    for one in settings:
        gpu = find_gpu(known, one.index, one.uuid)
        if one.fast_bytes > gpu.memory_bytes:
            raise ConfigError(
                f"cannot use {one.fast_bytes} bytes of {gpu.product} {gpu.uuid}: it has "
                f"{gpu.memory_bytes}; configure less as device.fast_bytes"
            )
        opened[f"gpu-{gpu.ordinal}"] = CudaDevice(gpu, one.extent_bytes, one.fast_bytes)
    return opened
