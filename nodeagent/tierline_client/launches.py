"""Kernel launches of this process, as the preloaded library sees them.

It works without an agent. One watcher at a time: a job is watched while nothing else runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tierline_client import library


class _Weight(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class _Read(ctypes.Structure):
    _fields_ = (
        ("launch", ctypes.c_uint64),
        ("weight", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("launch", ctypes.c_uint64), ("end_ns", ctypes.c_uint64))


class Launches:
    """The launches of this process, since the last `watching`."""

    def __init__(self) -> None:
        self._library = library.load()
        self._library.tierline_observer_time.argtypes = (ctypes.c_bool,)
        self._library.tierline_observer_time.restype = None
        self._library.tierline_observer_time_graphs.argtypes = (ctypes.c_bool,)
        self._library.tierline_observer_time_graphs.restype = None
        self._library.tierline_graphs_follow.argtypes = (ctypes.c_bool,)
        self._library.tierline_graphs_follow.restype = None
        self._library.tierline_capturing.argtypes = ()
        self._library.tierline_capturing.restype = ctypes.c_bool
        self._library.tierline_interposer_device_bytes.argtypes = (ctypes.c_void_p,)
        self._library.tierline_interposer_device_bytes.restype = ctypes.c_uint64
        self._library.tierline_stack_clear.argtypes = ()
        self._library.tierline_stack_clear.restype = None

    @property
    def active(self) -> bool:
        """Whether the library stands between this process and the CUDA driver."""
        return bool(self._library.tierline_interposer_active())

    @contextmanager
    def watching(self, ranges: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Watch (address, bytes) ranges of device memory, which do not overlap, in the block.

        Raises OSError if the library does not take them.
        """
        weights = (_Weight * len(ranges))(*(_Weight(*one) for one in ranges))
        self._check(self._library.tierline_observer_watch(weights, len(ranges)))
        try:
            yield
        finally:
            self._check(self._library.tierline_observer_watch(None, 0))

    def reads(self) -> list[tuple[int, int]]:
        """(launch, range) pairs in program order, both counted from 0. Inside `watching`."""
        count = self._library.tierline_observer_reads(None, 0)
        found = (_Read * count)()
        count = min(count, self._library.tierline_observer_reads(found, count))
        return [(one.launch, one.weight) for one in found[:count]]

    def addressed(self) -> set[int]:
        """Ranges of which the program has copied addresses to the device. Inside `watching`."""
        return self._indexes(self._library.tierline_observer_addressed)

    def in_memory(self, ranges: Sequence[tuple[int, int]]) -> set[int] | None:
        """Ranges whose addresses lie in the memory of the program; None if nobody could look.

        So it is while a graph is captured, in any thread. Copies all of that memory, and waits for
        the GPU.
        """
        weights = (_Weight * len(ranges))(*(_Weight(*one) for one in ranges))
        named = (ctypes.c_bool * len(ranges))()
        if self._library.tierline_memory_names(weights, len(ranges), named) != 0:
            return None
        return {index for index, one in enumerate(named) if one}

    @property
    def capturing(self) -> bool:
        """Whether a stream is captured, in any thread: nobody may wait for the GPU then."""
        return bool(self._library.tierline_capturing())

    def in_graphs(self) -> set[int]:
        """Ranges that graphs of the program's own name. Inside `watching`."""
        return self._indexes(self._library.tierline_graphs_name)

    def _indexes(self, ask: Callable[..., int]) -> set[int]:
        count = ask(None, 0)
        found = (ctypes.c_uint32 * count)()
        count = min(count, ask(found, count))
        return set(found[:count])

    @property
    def held_bytes(self) -> int:
        """Bytes of the device that this process has from the driver, in no arena."""
        return int(self._library.tierline_interposer_device_bytes(None))

    @contextmanager
    def following(self) -> Iterator[None]:
        """Graphs that this thread makes in the block are made again when weights move."""
        self._library.tierline_graphs_follow(True)
        try:
            yield
        finally:
            self._library.tierline_graphs_follow(False)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time the launches that read a range first, in the block; inside `watching`.

        Those of a graph, too; of its nodes that may run side by side only the last one counts.
        """
        self._library.tierline_observer_time(True)
        try:
            yield
        finally:
            self._library.tierline_observer_time(False)

    def time_graphs(self) -> None:
        """Keep a copy of each graph instantiated from now on: it can then be timed node by node.

        Other graphs are timed as a whole. The first `timing` of a graph prepares the copy, so what
        that job takes is not to be used.
        """
        self._library.tierline_observer_time_graphs(True)

    def times(self) -> list[tuple[int, float]]:
        """(launch, when it ended) pairs in program order; inside `timing`.

        In seconds since just before the first of them began, by the GPU's clock. Waits for them.
        """
        count = self._library.tierline_observer_times(None, 0)
        found = (_Time * count)()
        count = min(count, self._library.tierline_observer_times(found, count))
        return [(one.launch, one.end_ns / 1e9) for one in found[:count]]

    def clear_stack(self) -> None:
        """Clear what earlier calls left on this thread's stack: a launch names nothing by it."""
        self._library.tierline_stack_clear()

    def _check(self, result: int) -> None:
        if result != 0:
            raise OSError(-result, "cannot watch kernel launches")
