"""A file that QEMU's emulated NVDIMM presents and Linux brings up as /dev/dax0.0 by itself.

No ndctl is needed: the file carries the info block that `ndctl create-namespace --mode=devdax`
would write (struct nd_pfn_sb, drivers/nvdimm/pfn.h, version 1.4), at byte 4096. Byte X of the
device is byte DATA_OFFSET + X of the file.
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

ALIGN_BYTES = 2 << 20
DATA_OFFSET = 2 << 20

_INFO_OFFSET = 4096
_INFO_BYTES = 4096
_CHECKSUM_OFFSET = _INFO_BYTES - 8
_PAGE_BYTES = 4096
_STRUCT_PAGE_BYTES = 64
_MODE_DEVDAX_MAP_IN_MEMORY = 1


def make_backing(path: Path, device_bytes: int) -> None:
    """Write a sparse backing file for a devdax device of `device_bytes` bytes, all zero."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into(
        "<16s16s16sIHHQQIIIIIH",
        info,
        0,
        b"NVDIMM_DAX_INFO\0",
        uuid.uuid4().bytes,
        bytes(16),  # no parent namespace label
        0,  # flags
        1,  # major version
        4,  # minor version
        DATA_OFFSET,
        device_bytes // _PAGE_BYTES,
        _MODE_DEVDAX_MAP_IN_MEMORY,
        0,  # padding at the start
        0,  # padding at the end
        ALIGN_BYTES,
        _PAGE_BYTES,
        _STRUCT_PAGE_BYTES,
    )
    struct.pack_into("<Q", info, _CHECKSUM_OFFSET, _fletcher64(info))
    with path.open("wb") as file:
        file.truncate(DATA_OFFSET + device_bytes)
        file.seek(_INFO_OFFSET)
        file.write(info)


def _fletcher64(block: bytearray) -> int:
    """The kernel's nd_fletcher64 over little-endian words; the checksum field is still zero."""
    low = high = 0
    for (word,) in struct.iter_unpack("<I", block):
        low = (low + word) & 0xFFFFFFFF
        high = (high + low) & 0xFFFFFFFF
    return high << 32 | low
