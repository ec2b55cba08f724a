"""A typed client of the node agent: the verbs of tierline.h, with exceptions.

It adds nothing to the C library but types: rules, waiting and recovery are there.

Invariant: a `Client` owns its handle; after `close` every call raises ClientError (STATE).
"""

from __future__ import annotations

import ctypes
import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tierline_client import library
from tierline_client.afterwards import GiveBack
from tierline_client.errors import ClientError, ErrorCode

_WARMUP = 1
_PINNED = 1
_RECORD_OUTPUTS = 1
_PREEMPTIBLE = 2
_READS_UNSEEN = 32


class Device(enum.IntEnum):
    """Which kind of memory a client's arenas are in."""

    CPU = 0
    CUDA = 1


class NoticeKind(enum.IntEnum):
    """A client's report about itself."""

    STAYS_RESIDENT = 1
    LEFT_MANAGEMENT = 2
    ORDER_CHANGED = 3
    OVER_WORKSPACE = 4
    PINNED = 6


@dataclass(frozen=True)
class Terms:
    """The agent's grant for this task."""

    extent_bytes: int
    period_ns: int
    deadline_ns: int
    record_outputs: bool
    preemptible: bool
    """Whether its jobs are planned to give the device away in the middle."""
    reads_unseen: bool
    """Whether an earlier process of it has read weights where no launch names them."""
    max_arenas: int
    task_name: str
    device_uuid: str
    """Of the GPU, as NVML writes it; empty on the CPU."""


@dataclass(frozen=True)
class LayerProfile:
    """One measured layer: bytes of weights, worst compute time in nanoseconds."""

    weight_bytes: int
    compute_ns: int
    pinned: bool
    name: str


@dataclass(frozen=True)
class Statistics:
    """The agent's counters of this task."""

    jobs: int
    misses: int
    streamed_bytes: int
    response_worst_ns: int


class Client:
    """A connection to the agent of this node. Safe for several threads, except `close`.

    Every method raises ClientError when the agent refuses or cannot be reached.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        process_name: str,
        device: Device = Device.CPU,
    ) -> None:
        """Connect. `process_name` is what the administrator sees (cut at 63 bytes).

        A process has one client on a GPU at most. Its gates are at launches, which takes the
        library in LD_PRELOAD; arenas lie in the context that is current when they are reserved.
        """
        self._library = library.load()
        self._handle = ctypes.c_void_p()
        self._number = ctypes.c_uint64()
        """Of the job that was begun last; 0 when it was ended."""
        name = process_name.encode().replace(b"\0", b"")
        self._check(
            self._library.tierline_connect_device(
                os.fsencode(socket_path), name, int(device), ctypes.byref(self._handle)
            )
        )
        self._touched = ctypes.c_uint32.from_address(self._library.tierline_touched(self._handle))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; the arenas' addresses become invalid. May be called twice."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._touched = ctypes.c_uint32()
        self._library.tierline_close(handle)

    def _check(self, result: int) -> None:
        if result != 0:
            sentence = self._library.tierline_last_error() or b""
            raise ClientError(ErrorCode(result), sentence.decode(errors="replace"))

    def terms(self) -> Terms:
        """Return the terms of this task."""
        raw = library.Terms()
        self._check(self._library.tierline_get_terms(self._handle, ctypes.byref(raw)))
        return Terms(
            extent_bytes=raw.extent_bytes,
            period_ns=raw.period_ns,
            deadline_ns=raw.deadline_ns,
            record_outputs=bool(raw.flags & _RECORD_OUTPUTS),
            preemptible=bool(raw.flags & _PREEMPTIBLE),
            reads_unseen=bool(raw.flags & _READS_UNSEEN),
            max_arenas=raw.max_arenas,
            task_name=raw.task_name.decode(),
            device_uuid=raw.device_uuid.decode(),
        )

    def reserve(
        self, arena: int, weight_bytes: int, pinned_bytes: int, largest_span_extents: int
    ) -> int:
        """Reserve an arena and return its address, which stays the same until `free`.

        ClientError RETRY: the connection broke; reserve again.
        """
        base = ctypes.c_void_p()
        self._check(
            self._library.tierline_reserve(
                self._handle,
                arena,
                weight_bytes,
                pinned_bytes,
                largest_span_extents,
                ctypes.byref(base),
            )
        )
        return base.value or 0

    def store(self, arena: int, extent: int, data: bytes | bytearray | memoryview) -> None:
        """Store an extent's bytes (contiguous, at most extent_bytes); returns when durable.

        ClientError RETRY: the connection broke; free the arena and load all of it again.
        """
        view = memoryview(data).cast("B")
        if view.readonly:
            kept = data if isinstance(data, bytes) else bytes(view)
            address = ctypes.cast(ctypes.c_char_p(kept), ctypes.c_void_p)
            self._check(
                self._library.tierline_store(self._handle, arena, extent, address, view.nbytes)
            )
            return
        window = (ctypes.c_char * view.nbytes).from_buffer(view)
        self._check(
            self._library.tierline_store(
                self._handle, arena, extent, ctypes.addressof(window), view.nbytes
            )
        )

    def written(self, arena: int) -> list[int]:
        """Extents of a sealed arena on a GPU that the program may have written since.

        While there are any, `job_begin` raises ClientError WRITTEN; each is to be stored again.
        """
        count = ctypes.c_uint32()
        extents = (ctypes.c_uint32 * 0)()
        while True:
            self._check(
                self._library.tierline_written(
                    self._handle, arena, extents, len(extents), ctypes.byref(count)
                )
            )
            if count.value <= len(extents):
                return extents[: count.value]
            extents = (ctypes.c_uint32 * count.value)()

    def weights(self, arena: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which (offset, bytes) of an arena on a GPU are tensors, before `seal`.

        A launch is known to read a weight by an address inside its range.
        """
        raw = (library.WeightRange * len(ranges))(*(library.WeightRange(*one) for one in ranges))
        self._check(self._library.tierline_weights(self._handle, arena, raw, len(ranges)))

    def seal(self, arena: int, layers: Sequence[tuple[int, int]]) -> bytes:
        """End the loading; returns the arena's digest.

        `layers[l]` are the first and the last extent that layer l reads, in the order of use; a
        layer without weights has last < first.
        ClientError RETRY: the connection broke; free the arena and load all of it again.
        """
        spans = (library.Layer * len(layers))(*(library.Layer(*span) for span in layers))
        digest = ctypes.create_string_buffer(library.DIGEST_BYTES)
        self._check(self._library.tierline_seal(self._handle, arena, spans, len(layers), digest))
        return digest.raw

    def free(self, arena: int) -> None:
        """Unmap an arena and give it back."""
        self._check(self._library.tierline_free(self._handle, arena))

    def origins(self, arena: int, weights: Sequence[tuple[int, int, int]]) -> int:
        """Give up the memory that weights of a sealed arena on the CPU lay in before; once.

        A weight is its old address, its bytes and its offset in the arena. That memory must not be
        freed before the arena. Returns how many, the first ones, were given up: for the others the
        process has no further mappings.
        """
        raw = (library.Origin * len(weights))(*(library.Origin(*one) for one in weights))
        closed = ctypes.c_uint32()
        self._check(
            self._library.tierline_origins(
                self._handle, arena, raw, len(weights), ctypes.byref(closed)
            )
        )
        return closed.value

    def vacated(self, arena: int, places: Sequence[tuple[int, int]]) -> None:
        """Keep the (address, bytes) at which weights of an arena on a GPU lay before from others.

        Once the program has given that memory back: what has kept such an address faults.
        """
        raw = (library.Place * len(places))(*(library.Place(*one) for one in places))
        self._check(self._library.tierline_vacated(self._handle, arena, raw, len(places)))

    @property
    def touched(self) -> bool:
        """Whether there may be memory to give back."""
        return bool(self._touched.value)

    def give_back(self) -> list[tuple[int, int, bool]]:
        """Return (arena, which of its `origins`, touched) of all that is to be given back.

        Code touched it, or the weight was written in the arena. It is the program's memory again;
        the weight's tensors should view it from now on.
        """
        cursor, arena, index, touched = (
            ctypes.c_uint64(),
            ctypes.c_uint32(),
            ctypes.c_uint32(),
            ctypes.c_uint32(),
        )
        found: list[tuple[int, int, bool]] = []
        while True:
            result = self._library.tierline_give_back(
                self._handle,
                ctypes.byref(cursor),
                ctypes.byref(arena),
                ctypes.byref(index),
                ctypes.byref(touched),
            )
            if result == ErrorCode.STATE:
                return found
            self._check(result)
            found.append((arena.value, index.value, bool(touched.value)))

    def job_begin(
        self, arena: int | None, release_ns: int, deadline_ns: int, *, warmup: bool = False
    ) -> int:
        """Wait for the lease and return the job's number; None streams no arena.

        Times are CLOCK_MONOTONIC. A second thread waits until the first one's job has ended.
        """
        number = self._number
        number.value = 0
        result = self._library.tierline_job_begin(
            self._handle,
            library.NO_ARENA if arena is None else arena,
            _WARMUP if warmup else 0,
            release_ns,
            deadline_ns,
            ctypes.byref(number),
        )
        if result != 0:  # looked at here, and at the end, as that is a call less in each job
            self._check(result)
        return number.value

    def job_end(self, job: int, workspace_peak_bytes: int = 0) -> None:
        """Give the lease back. ClientError REVOKED: it was lost before, and the job is over."""
        result = self._library.tierline_job_end(self._handle, job, workspace_peak_bytes)
        self._number.value = 0
        if result != 0:
            self._check(result)

    @property
    def job_over(self) -> GiveBack:
        """Ends the job in progress, if one is: for `afterwards`."""
        return partial(self._library.tierline_job_end, self._handle, self._number, 0)

    def rewind(self) -> None:
        """Let the job in progress read its arena from the start again.

        Without it, what the job has passed is read slowly. On a GPU launches rewind by themselves.
        """
        self._check(self._library.tierline_rewind(self._handle))

    def layer_begin(self, arena: int, layer: int) -> None:
        """Wait until the layer's extents can be read.

        ClientError REVOKED: the job lost its lease; what it reads is right, but slow.
        """
        self._check(self._library.tierline_layer_begin(self._handle, arena, layer))

    def layer_end(self, arena: int, layer: int) -> None:
        """Give back what no later layer reads."""
        self._check(self._library.tierline_layer_end(self._handle, arena, layer))

    def output(self, job: int, input_digest: bytes, output_digest: bytes) -> None:
        """Report what a job computed, as two digests of 32 bytes."""
        if len(input_digest) != library.DIGEST_BYTES or len(output_digest) != library.DIGEST_BYTES:
            raise ClientError(ErrorCode.ARGUMENT, "an output's digests must be 32 bytes each")
        self._check(self._library.tierline_output(self._handle, job, input_digest, output_digest))

    def ready(self, flags: int = 0) -> tuple[int, int]:
        """Wait for the start of releases: (epoch_ns, until_ns), until 0 for ever."""
        epoch, until = ctypes.c_uint64(), ctypes.c_uint64()
        self._check(
            self._library.tierline_ready(
                self._handle, flags, ctypes.byref(epoch), ctypes.byref(until)
            )
        )
        return epoch.value, until.value

    def profile(self, arena: int, layers: Sequence[LayerProfile], workspace_bytes: int) -> None:
        """Report measured layers, in the order of use."""
        raw = (library.Profile * len(layers))(
            *(
                library.Profile(
                    layer.weight_bytes,
                    layer.compute_ns,
                    _PINNED if layer.pinned else 0,
                    0,
                    _cut(layer.name, 63),
                )
                for layer in layers
            )
        )
        self._check(
            self._library.tierline_profile(self._handle, arena, raw, len(layers), workspace_bytes)
        )

    def notice(self, kind: NoticeKind, size_bytes: int, text: str) -> None:
        """Tell the administrator something (cut at 191 bytes)."""
        self._check(
            self._library.tierline_notice(self._handle, int(kind), size_bytes, _cut(text, 191))
        )

    @property
    def waits(self) -> bool:
        """Whether a thread waits for the agent now: for the lease, at a gate, at a fault."""
        return bool(self._library.tierline_waiting(self._handle))

    @property
    def wanted(self) -> bool:
        """Whether others wait for what this client was granted; only a task that trains is told."""
        return bool(self._library.tierline_wanted(self._handle))

    def statistics(self) -> Statistics:
        """Return the agent's counters of this task."""
        raw = library.Counters()
        self._check(self._library.tierline_get_statistics(self._handle, ctypes.byref(raw)))
        return Statistics(raw.jobs, raw.misses, raw.streamed_bytes, raw.response_worst_ns)


def _cut(text: str, size_bytes: int) -> bytes:
    """UTF-8 without NUL, at most so long, cut at a whole character."""
    raw = text.encode(errors="replace").replace(b"\0", b"")[:size_bytes]
    return raw.decode(errors="ignore").encode()
