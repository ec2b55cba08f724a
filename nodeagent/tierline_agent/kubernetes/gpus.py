"""How a pod gets its GPU: by NVIDIA's own CDI device where the node has one, else by device nodes.

NVIDIA's description (nvidia-ctk cdi generate, the GPU operator) also mounts the driver's libraries;
without it a pod's image or volumes must bring them. A slice of a GPU (MIG) is known to NVIDIA's
description alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memnode import Device

_log = logging.getLogger(__name__)
NVIDIA: Final = "nvidia.com/gpu"
STATIC: Final = Path("/etc/cdi")
"""Where descriptions lie that are made once; the others lie in the runtime's own folder."""
_SHARED: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True)
class Access:
    """Access to a device for a container."""

    described: tuple[str, ...] = ()
    """Names of CDI devices."""
    nodes: tuple[str, ...] = ()
    """Device nodes."""


def access_to(device: Device, known: Iterable[str], minor: int | None, dev: Path) -> Access:
    """How a pod gets `device`: `known` are NVIDIA's names of devices, `minor` is that of its node.

    Raises:
        FileNotFoundError: neither is there.
    """
    if device.kind is DeviceKind.CPU:
        return Access()
    known = frozenset(known)
    for name in (device.uuid or "", device.name.removeprefix("gpu-")):
        if name in known:
            return Access(described=(f"{NVIDIA}={name}",))
    own = dev / f"nvidia{minor}"
    if minor is None or not own.exists():
        raise FileNotFoundError(
            f"cannot give {device.name} to a pod: NVIDIA's CDI description does not name it, and "
            f"{own} is not there; run nvidia-ctk cdi generate on the node"
        )
    nodes = [own, *(dev / name for name in _SHARED if (dev / name).exists())]
    return Access(nodes=tuple(map(str, nodes)))


def nvidia_devices(folders: Iterable[Path]) -> set[str]:
    """The names of devices in NVIDIA's descriptions; what cannot be read names none."""
    return {
        str(device.get("name"))
        for folder in folders
        for description in _descriptions(folder)
        if description.get("kind") == NVIDIA
        for device in description.get("devices") or ()
    }


def minor_of(uuid: str) -> int | None:
    """The number of a GPU's device node; None if NVML does not tell."""
    import pynvml  # noqa: PLC0415  # only where there is a GPU

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return int(pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _descriptions(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in {".json", ".yaml", ".yml"}:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            held = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, yaml.YAMLError) as error:
            _log.warning("cannot read %s: %s", path, error)
            continue
        if isinstance(held, Mapping):
            yield held
