"""Huge pages change where content lies, not what it is."""

from __future__ import annotations

import os

from tierline_agent.devices.hugepages import HUGE_BYTES, collapse
from tierline_agent.devices.memfd import SharedMemory


def test_content_stays_as_it_was() -> None:
    memory = SharedMemory.create("test", 2 * HUGE_BYTES)
    content = os.urandom(2 * HUGE_BYTES)
    memory.view[:] = content
    memory.use_huge_pages()
    assert memory.view == content
    memory.view[:] = content[::-1]
    assert memory.view == content[::-1]
    memory.close()


def test_what_is_no_whole_huge_page_is_left_alone() -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, HUGE_BYTES // 2)
    assert not collapse(descriptor, HUGE_BYTES // 2)
    os.close(descriptor)


def test_a_refusal_of_the_kernel_is_no_error() -> None:
    descriptor = os.open("/proc/self/exe", os.O_RDONLY | os.O_CLOEXEC)
    collapse(descriptor, HUGE_BYTES)
    os.close(descriptor)
