"""Opens the devices of a configuration.

The modules of a kind are imported only when it is used: a machine without GPUs needs none of
NVIDIA's packages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tierline_agent.config import DeviceSettings
from tierline_agent.devices.base import Device
from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.errors import ConfigError

if TYPE_CHECKING:
    from tierline_agent.devices.cuda.inventory import Gpu

_log = logging.getLogger(__name__)

Named = tuple[str, Device]
"""A device, and its name on this node: cpu, gpu-0 for the driver's first GPU."""


def prepare_devices(
    settings: Sequence[DeviceSettings], room: Mapping[str, int] | None = None
) -> dict[DeviceSettings, Named]:
    """Make devices, for `open_devices`; they have contexts, and no extents.

    Where another process uses GPUs, `room` has those on which a context may be made, by uuid, and
    what one costs, bytes (0: to be measured). A device that cannot be made is left out.

    Raises:
        ConfigError: there is no such device, or it has less memory.
        OSError: a driver does not start.
    """
    prepared: dict[DeviceSettings, Named] = {}
    for one, gpu in _found(settings):
        if gpu is not None and room is not None and gpu.uuid not in room:
            _log.info("gpu-%d has no room for another context; it is opened later", gpu.ordinal)
            continue
        known = room.get(gpu.uuid) if gpu is not None and room is not None else None
        try:
            prepared[one] = _make(one, gpu, known or None)
        except OSError as error:
            _log.warning("a device is opened later: %s", error)
    return prepared


def open_devices(
    settings: Sequence[DeviceSettings], prepared: Mapping[DeviceSettings, Named]
) -> dict[str, Device]:
    """Open devices, by their names; those that are prepared are taken over.

    Raises:
        ConfigError: there is no such device, or it has less memory.
        OSError: one cannot be used.
    """
    missing = [one for one in settings if one not in prepared]
    made = {**prepared, **{one: _make(one, gpu) for one, gpu in _found(missing)}}
    opened = dict(made[one] for one in sorted(settings, key=lambda one: one.kind == "cpu"))
    for device in opened.values():
        device.check()
        if device.lost:  # since it was prepared
            device.recover()
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


def _found(settings: Sequence[DeviceSettings]) -> list[tuple[DeviceSettings, Gpu | None]]:
    """Each with its GPU, if it is one. Raises ConfigError, and OSError: no driver."""
    if not any(one.kind == "cuda" for one in settings):
        return [(one, None) for one in settings]
    from tierline_agent.devices.cuda.inventory import find_gpu, list_gpus  # noqa: PLC0415

    known = list_gpus()
    found: list[tuple[DeviceSettings, Gpu | None]] = []
    for one in settings:
        gpu = find_gpu(known, one.index, one.uuid) if one.kind == "cuda" else None
        if gpu is not None and one.fast_bytes > gpu.memory_bytes:
            raise ConfigError(
                f"cannot use {one.fast_bytes} bytes of {gpu.product} {gpu.uuid}: it has "
                f"{gpu.memory_bytes}; configure less as device.fast_bytes"
            )
        found.append((one, gpu))
    return found


def _make(settings: DeviceSettings, gpu: Gpu | None, context_bytes: int | None = None) -> Named:
    if gpu is None:
        cpu = CpuDevice(settings.extent_bytes, settings.fast_bytes)
        if cpu.fast_bytes > cpu.memory_bytes:
            raise ConfigError(
                f"cannot use {cpu.fast_bytes} bytes of memory: this machine has "
                f"{cpu.memory_bytes}; configure less as device.fast_bytes"
            )
        return "cpu", cpu
    from tierline_agent.devices.cuda.device import CudaDevice  # noqa: PLC0415 - see above

    made = CudaDevice(gpu, settings.extent_bytes, settings.fast_bytes, context_bytes)
    return f"gpu-{gpu.ordinal}", made
