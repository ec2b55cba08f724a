from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable

import pytest

from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.errors import DescriptorRefused

SIZE = 1 << 16
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memfd(size: int = SIZE, seals: int = SEALS, mode: int = 0o600) -> int:
    descriptor = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.fchmod(descriptor, mode)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_a_client_can_neither_write_resize_nor_seal_what_it_is_lent() -> None:
    memory = SharedMemory.create("test", SIZE)
    lent = memory.export(writable=False)
    with pytest.raises(PermissionError):
        mmap.mmap(lent, SIZE, prot=mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(lent, 1)
    with pytest.raises(PermissionError):
        fcntl.fcntl(lent, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(lent)
    memory.close()


def test_what_was_lent_can_be_taken_back_writable() -> None:
    memory = SharedMemory.create("test", SIZE)
    lent = memory.export(writable=False)
    again = SharedMemory.adopt(lent, SIZE, "it")
    assert again.identity == memory.identity
    again.view[:3] = b"abc"
    assert bytes(memory.view[:3]) == b"abc"
    os.close(lent)
    again.close()
    memory.close()
    assert not memory.mapped


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: memfd(size=SIZE // 2), "bytes instead of"),
        (lambda: memfd(seals=fcntl.F_SEAL_SHRINK), "not sealed"),
        (lambda: memfd(mode=0o666), "did not make it"),
        (lambda: os.open("/dev/null", os.O_RDONLY), "not a memfd"),
        (lambda: os.open("/", os.O_RDONLY), "not a memfd"),
    ],
    ids=["size", "seals", "mode", "device", "folder"],
)
def test_other_things_are_refused(make: Callable[[], int], why: str) -> None:
    descriptor = make()
    with pytest.raises(DescriptorRefused, match=why):
        SharedMemory.adopt(descriptor, SIZE, "it")
    os.close(descriptor)
