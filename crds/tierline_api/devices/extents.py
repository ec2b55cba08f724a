"""How large extents may be, and are where nobody chooses; one definition for agent and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tierline_api.devices.device import DeviceKind

EXTENT_SIZES: Final = tuple(2**power for power in range(16, 31))
"""Sizes that an extent may have: 64 KiB to 1 GiB, in bytes."""

USUAL_EXTENT_BYTES: Final[Mapping[str, int]] = {DeviceKind.CPU: 4 << 20, DeviceKind.CUDA: 32 << 20}
"""By kind of device. The chart says the same of its pools (templates/agent/_pool.tpl)."""
