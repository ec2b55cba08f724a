from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ways_to_write import WAYS_TO_WRITE

from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.errors import DescriptorRefused

SIZE = 1 << 16
LEASE_BREAKS_S = int(Path("/proc/sys/fs/lease-break-time").read_text())
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memfd(size: int = SIZE, seals: int = SEALS, mode: int = 0o600) -> int:
    descriptor = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.fchmod(descriptor, mode)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize("deed", WAYS_TO_WRITE, ids=lambda deed: deed.__name__)
@pytest.mark.parametrize("mode", [None, os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_nobody_can_write_to_what_is_lent_sealed(
    mode: int | None, deed: Callable[[int], object]
) -> None:
    """Not by opening it again either, which the agent's own user can, and so root of a pod."""
    memory = SharedMemory.create("test", SIZE)
    memory.view[:5] = b"right"
    lent = memory.export(writable=False, sealed=True)
    tried = lent if mode is None else os.open(f"/proc/self/fd/{lent}", mode)
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the deed
        deed(tried)
    assert os.fstat(lent).st_size == SIZE
    assert bytes(memory.view[:5]) == b"right"
    memory.view[:5] = b"other"
    assert os.pread(lent, 5, 0) == b"other", "the agent goes on writing"
    for descriptor in {lent, tried}:
        os.close(descriptor)
    memory.close()


def test_what_an_agent_lent_sealed_the_next_one_can_read() -> None:
    memory = SharedMemory.create("test", SIZE)
    memory.view[:3] = b"abc"
    lent = memory.export(writable=False, sealed=True)
    memory.close()
    again = SharedMemory.adopt(lent, SIZE, "it", to_read=True)
    assert (bytes(again.view[:3]), again.writable) == (b"abc", False)
    assert not again.fits(sealed=True)
    with pytest.raises(DescriptorRefused, match="nobody can write"):
        SharedMemory.adopt(lent, SIZE, "it")
    os.close(lent)
    again.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_what_was_lent_once_is_lent_so_again(sealed: bool) -> None:
    memory = SharedMemory.create("test", SIZE)
    assert memory.fits(sealed=True)
    assert memory.fits(sealed=False)
    os.close(memory.export(writable=False, sealed=sealed))
    assert memory.fits(sealed=sealed)
    assert not memory.fits(sealed=not sealed)
    memory.close()


def test_what_was_lent_can_be_taken_back_writable() -> None:
    memory = SharedMemory.create("test", SIZE)
    lent = memory.export(writable=True)
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


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK])
def test_nobody_has_a_lease_on_what_the_agent_opens(kind: int, writable: bool) -> None:
    memory = SharedMemory.create("test", SIZE)
    lent = memory.export(writable=writable)
    again = os.open(f"/proc/self/fd/{lent}", os.O_RDONLY)
    for descriptor in (lent, again):
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    os.close(again)
    os.close(lent)
    memory.close()


def test_what_somebody_has_a_lease_on_is_refused_without_waiting() -> None:
    offered = memfd()
    lease = os.open(f"/proc/self/fd/{offered}", os.O_RDONLY)
    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which tells of an open
    began_s = time.monotonic()
    with pytest.raises(DescriptorRefused, match="Resource temporarily unavailable"):
        SharedMemory.adopt(offered, SIZE, "it")
    assert time.monotonic() - began_s < LEASE_BREAKS_S
    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    os.close(lease)
    os.close(offered)
