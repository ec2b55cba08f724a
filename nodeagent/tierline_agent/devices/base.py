"""The interface of a device to the rest of the agent.

A device makes extents, lends them to clients as descriptors, puts bytes into one, carries the flag
words of a job, and runs its stream. It knows nothing of tasks, domains or quotas; those are the
pool's and the sessions'.

The shape serves the host and a GPU alike:

* `fill` runs a *read* that wants host memory to read into. The host device hands out the extent's
  own mapping; a GPU hands out pinned memory and copies it over before `fill` returns. So a link
  worker is never concerned with where an extent is. `load` does the same for a source, which a GPU
  may copy straight from where it lies.
* `Words` are one arena's two flag words. On the host both sides use futexes, on a GPU stream memory
  operations.
* a *stream* brings the streamed extents of a job through the ring (`StreamOrder`). On the host the
  tiers' links write into the ring (`host_stream`), on a GPU the device's own copy engine does.

Invariant: an extent's memory stays mapped in the agent from `create_extent` or `adopt_extent`
until `destroy_extent`; no mapping is edited while a job runs.

All methods may raise OSError. Those that take a descriptor leave it open: the caller owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from tierline_agent.errors import StreamFailed
from tierline_agent.tiers import MappedMedium
from tierline_agent.tiers.sources import Source


@dataclass(frozen=True)
class Identity:
    """The identity of memory, by which it is recognised when its descriptor comes back.

    On the host it is the file's own and holds across a restart; on a GPU it is a number that this
    agent gave to an open file.
    """

    device: int
    inode: int


class Extent(Protocol):
    """One extent of fast memory."""

    @property
    def identity(self) -> Identity:
        """The memory's identity."""
        ...

    @property
    def offered(self) -> bool:
        """Whether a client offered it and nothing proves that an earlier agent made it.

        Such memory serves only the trust domain that offered it, and is never used again once it
        is given up: nobody knows which other processes have it.
        """
        ...

    @property
    def writable(self) -> bool:
        """Whether the agent can write to it; not what an earlier one had lent only for reading."""
        ...

    def fits(self, *, sealed: bool) -> bool:
        """Whether it can be lent again, so that nobody but the agent can write, or not so."""
        ...

    @property
    def mapped(self) -> bool:
        """Whether the agent still has it."""
        ...


class Words(Protocol):
    """The flag words of one arena. Everything the client writes is hostile."""

    @property
    def published(self) -> int:
        """Streamed extents in place."""
        ...

    @property
    def consumed(self) -> int:
        """Streamed extents that the client will not read again in this job."""
        ...

    def reset(self, published: int = 0) -> None:
        """Set both words before a job is granted: so many extents are in place, none consumed."""
        ...

    def ask(self) -> None:
        """Ask for the device at the job's next gate, and wake the client if it waits for data."""
        ...

    def ask_no_more(self) -> None:
        """Withdraw that; the client may have seen it already."""
        ...

    def restart(self, published: int, consumed: int) -> None:
        """Set both words, before a job goes on that gave the device away; asks for nothing."""
        ...

    def interrupt(self) -> None:
        """End every wait for the client: the job is over, its words mean nothing any more."""
        ...

    def export(self) -> int:
        """Return a descriptor of the control page that the caller owns, writable."""
        ...

    def close(self) -> None:
        """Give the page back."""
        ...


class Staging(Protocol):
    """Memory through which a client sends and gets the bytes of single extents."""

    def slot(self, index: int, length: int) -> memoryview:
        """The first `length` bytes of a slot; the client may change them at any time."""
        ...

    def export(self) -> int:
        """Return a descriptor that the caller owns, writable."""
        ...

    def close(self) -> None:
        """Give the memory back, once no view of a slot is left."""
        ...


class KeptMemory(Protocol):
    """The memory of a backup, which its client keeps for an agent to come."""

    @property
    def saved(self) -> bool:
        """Whether the content is here; else it is in the extents."""
        ...

    @saved.setter
    def saved(self, here: bool) -> None: ...

    def export(self) -> int:
        """Return a descriptor that the caller owns. Raises OSError."""
        ...


class Backup(Protocol):
    """Host memory that keeps the content of a workspace's extents while others have them.

    `save` and `restore` block; for worker threads, one at a time. `close` is the event loop's.
    """

    @property
    def memory(self) -> KeptMemory:
        """Where it lies."""
        ...

    def save(self, extents: Sequence[Extent]) -> None:
        """Copy the first extents of the workspace here. Raises OSError."""
        ...

    def restore(self, extents: Sequence[Extent]) -> None:
        """Copy back what `save` copied. Raises OSError."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class Stream(Protocol):
    """The streamed extents of one job, on their way.

    It may begin *ahead* of its job (`StreamOrder.ahead`). Then it copies the first extents, few at
    a time, each as soon as its slot is free (`policy.prefetch`); it changes no flag word, and never
    finishes by itself unless it fails, until `go` makes it the stream of a job.

    `on_finished` of its order is called once, in the event loop, and after it nothing of this
    stream writes to a slot or touches the flag words.
    """

    @property
    def words(self) -> Words:
        """The flag words of its job."""
        ...

    @property
    def streamed_bytes(self) -> int:
        """Bytes that it has brought in so far."""
        ...

    @property
    def in_place(self) -> int:
        """Streamed extents that have arrived, without a gap; those before it began are among them.

        Unlike the flag word it counts what ended after `cancel`.
        """
        ...

    @property
    def finished(self) -> asyncio.Future[None]:
        """Done in the event loop, before `on_finished`."""
        ...

    def cancel(self, *, resumable: bool = False) -> None:
        """Stop as soon as what is in flight has ended. For the event loop's thread.

        Unless it is `resumable`, the job is over and the client's flag word with it. A resumable
        stream leaves both words as they are, for the next agent; so does one without a job.
        """
        ...

    def hold(self) -> None:
        """Without a job, leave the interpreter to the event loop for the moment.

        It works with the end of a job, and with the begin of the next one. Over with the next call,
        whichever that is.
        """
        ...

    def ring_is_free(self) -> None:
        """A stream without a job may use all slots from now on."""
        ...

    def go(self, order: StreamOrder) -> bool:
        """Become the stream of a job that was granted with no more in place than is.

        False, and nothing is changed, if it was cancelled or has failed.
        """
        ...

    @property
    def follower(self) -> Stream | None:
        """The stream ahead that it has begun itself, to follow it (`StreamOrder.following`)."""
        ...

    def stay(self) -> None:
        """Begin no follower from now on; there may be one already."""
        ...


class Ahead(Enum):
    """When a stream that begins before its job may use a slot."""

    AFTER_A_JOB = auto()
    """Where the job that runs has consumed the last extent that it will have there."""
    BETWEEN_JOBS = auto()
    """At once."""


@dataclass(frozen=True)
class StreamOrder:
    """An order to a stream: sources, places, and its calls; the first two in the event loop."""

    sources: Sequence[Source]
    ring: Sequence[Extent]
    words: Words
    deadline_ns: int
    published: int
    """The first so many are in place already."""
    on_finished: Callable[[Stream], None]
    on_failure: Callable[[Stream, StreamFailed], None]
    on_placed: Callable[[int, float], None] | None = None
    """Told the bytes of each extent that is in place, and the seconds since it was asked for."""
    ahead: Ahead | None = None
    """None: its job was granted."""
    following: StreamOrder | None = None
    """What may be copied ahead as soon as all of this has arrived, without asking the event loop:
    its link would stand still meanwhile. A device may leave that to `Device.open_stream`."""
    yields: bool = False
    """Its job may give the device away: then the job that gets it waits for what is under way, for
    which its plan has `policy.transfers.IN_FLIGHT` extents (P3)."""
    measures: bool = False
    """The time of each copy is wanted; else that of some is enough."""
    on_demand: bool = False
    """No copy is begun for which there is no place yet, until the client has consumed something:
    its job came here out of turn, may go elsewhere next, and would wait for what was begun."""


class Device(Protocol):
    """One device."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        ...

    @property
    def uuid(self) -> str:
        """A GPU's name for itself as NVML writes it; empty on the host."""
        ...

    @property
    def memory_bytes(self) -> int:
        """All memory that the device has, bytes."""
        ...

    @property
    def context_bytes(self) -> int:
        """Device memory that each process costs in addition to what it allocates; 0 on the host."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it cannot be used at the moment."""
        ...

    on_lost: Callable[[str], None] | None
    """Told, in any thread, why the device is lost: once, until `recover`."""

    def check(self) -> None:
        """Find out whether it still works; a loss is told to `on_lost`. Does not block."""
        ...

    def recover(self) -> None:
        """Make a lost device usable again, without any of its extents and words. Blocks.

        Its streams have ended, its extents and words were given up. Raises OSError: not yet.
        """
        ...

    @property
    def makes_at_once(self) -> bool:
        """Whether making memory waits for nothing; else it may wait for all jobs of the device."""
        ...

    @property
    def copies_itself(self) -> bool:
        """Whether it copies from media that are memory without a link's worker."""
        ...

    @property
    def extent_bytes(self) -> int:
        """Size of an extent, bytes."""
        ...

    @property
    def fast_bytes(self) -> int:
        """Fast memory that may be used, bytes."""
        ...

    @property
    def product(self) -> str:
        """The hardware's own name."""
        ...

    def create_extent(self) -> Extent:
        """Make an extent; its bytes are zero."""
        ...

    def adopt_extent(self, descriptor: int) -> Extent:
        """Take back an extent that an earlier agent made, from a client's descriptor.

        It may be one that this device has already, which is then returned again.

        Raises:
            DescriptorRefused: it is not memory of the right kind, size and seals.
        """
        ...

    def destroy_extent(self, extent: Extent) -> None:
        """Unmap and close; the memory is free when the last client that maps it is gone."""
        ...

    def export_extent(self, extent: Extent, *, writable: bool = False, sealed: bool = False) -> int:
        """Return a descriptor that the caller owns; a GPU's are always writable.

        `sealed`: only this agent can write to it from now on, whatever process opens it again.
        """
        ...

    def fill(self, extent: Extent, read: Callable[[memoryview], int]) -> int:
        """Let `read` put bytes at the extent's start; returns how many. Blocks; for link workers.

        What `read` raises passes through; the extent's bytes are then undefined.
        """
        ...

    def load(self, extent: Extent, source: Source) -> int:
        """Put a source's bytes at the extent's start; returns how many. Blocks; for link workers.

        It counts what it moves by the source's link itself.
        Raises what the source raises; the extent's bytes are then undefined.
        """
        ...

    def attach_media(self, media: Mapping[MappedMedium, int]) -> None:
        """Prepare to copy from these media that are memory, and from no others.

        Given is where on each the content begins, bytes. Before any load or stream; it may be a
        medium that was not claimed yet.
        """
        ...

    def open_stream(self, order: StreamOrder) -> Stream:
        """Begin to stream, as soon as the stream before has ended. For the event loop's thread."""
        ...

    def close(self) -> None:
        """End the device's threads; cancel its stream before. Memory stays, with its clients."""
        ...

    def give_back(self) -> None:
        """End a device that was never used, and give back the memory that its context takes."""
        ...

    def create_words(self) -> Words:
        """Make a control page."""
        ...

    def adopt_words(self, descriptor: int) -> Words:
        """Take back a control page. Raises DescriptorRefused as `adopt_extent`."""
        ...

    def create_staging(self, slots: int) -> Staging:
        """Make staging memory of `slots` extents."""
        ...

    def create_backup(self, extents: int) -> Backup:
        """Make room for a copy of so many extents. Blocks; for worker threads."""
        ...

    def adopt_backup(self, descriptor: int, extents: int) -> Backup:
        """Take back a backup that an earlier agent made. Blocks; for worker threads.

        Raises:
            DescriptorRefused: it is not one for so many extents.
        """
        ...
