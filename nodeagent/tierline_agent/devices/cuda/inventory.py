"""Which GPUs this machine has: NVML's names and sizes, joined with the driver's numbers.

The driver numbers what it may use (CUDA_VISIBLE_DEVICES, MIG); NVML names everything there is. Both
tell a GPU's uuid, by which they are joined. Without NVML the driver's own knowledge serves.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

import pynvml

from tierline_agent.devices.cuda.driver import call, driver
from tierline_agent.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of one."""

    ordinal: int
    """The driver's number."""
    uuid: str
    """As NVML writes it: GPU-... or MIG-..."""
    product: str
    memory_bytes: int


def list_gpus() -> list[Gpu]:
    """All GPUs that the driver lets this process use. Raises CudaFailed."""
    call("start the CUDA driver", driver.cuInit, 0)
    count = int(call("count the GPUs", driver.cuDeviceGetCount))
    names = _names_by_uuid()
    return [_describe(ordinal, names) for ordinal in range(count)]


def find_gpu(gpus: list[Gpu], index: int | None, name: str | None) -> Gpu:
    """The GPU of a configuration: by uuid if that is given, else by number (0 if neither).

    Raises:
        ConfigError: there is no such GPU.
    """
    known = ", ".join(f"{gpu.ordinal} {gpu.uuid}" for gpu in gpus) or "none"
    if name is not None:
        for gpu in gpus:
            if gpu.uuid == name:
                return gpu
        raise ConfigError(f"there is no GPU {name}; the driver shows {known}")
    ordinal = index or 0
    if ordinal >= len(gpus):
        raise ConfigError(f"there is no GPU number {ordinal}; the driver shows {known}")
    return gpus[ordinal]


def used_bytes(gpu: Gpu) -> int | None:
    """Memory of a GPU that all processes together use now; None if NVML does not tell."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _describe(ordinal: int, names: dict[bytes, str]) -> Gpu:
    attempt = f"learn about GPU {ordinal}"
    device = call(attempt, driver.cuDeviceGet, ordinal)
    raw = bytes(call(attempt, driver.cuDeviceGetUuid, device).bytes)
    product = bytes(call(attempt, driver.cuDeviceGetName, 256, device))
    return Gpu(
        ordinal,
        names.get(raw, f"GPU-{uuid.UUID(bytes=raw)}"),
        product.split(b"\0")[0].decode(errors="replace") or "GPU",
        int(call(attempt, driver.cuDeviceTotalMem, device)),
    )


def _names_by_uuid() -> dict[bytes, str]:
    """NVML's way to write the uuid of each GPU and MIG slice."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.warning("no NVML, so no health of GPUs: %s", error)
        return {}
    try:
        return dict(_uuids())
    finally:
        pynvml.nvmlShutdown()


def _uuids() -> list[tuple[bytes, str]]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = str(pynvml.nvmlDeviceGetUUID(handle))
            found.append((_raw(name), name))
            found += [(_raw(part), part) for part in _mig_slices(handle)]
        except pynvml.NVMLError as error:
            _log.warning("NVML cannot describe GPU %d: %s", index, error)
    return found


def _mig_slices(handle: object) -> list[str]:
    try:
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return []
    names = []
    for index in range(count):
        try:
            slice_handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:  # no slice has this number
            continue
        names.append(str(pynvml.nvmlDeviceGetUUID(slice_handle)))
    return names


def _raw(name: str) -> bytes:
    return uuid.UUID(name.partition("-")[2]).bytes
