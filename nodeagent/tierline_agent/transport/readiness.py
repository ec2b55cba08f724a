"""When sockets can be read or written: an epoll of our own inside the event loop.

uvloop's `add_reader` must not be used for clients' sockets. When a peer closes while it has unread
data, the kernel reports an error condition (EPOLLERR) for our end; libuv then stops watching the
descriptor and uvloop tells nobody, so that the death of a client in the middle of a reply would
never be noticed, and its lease never freed. An epoll descriptor has no error condition itself, so
the loop watches that one, and errors and hang-ups are given to the reader (or writer), whose next
call on the socket says what happened.

Invariant: a descriptor is registered while it has a reader or a writer, and not otherwise; a
hang-up without anybody to handle it would be reported for ever.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from dataclasses import dataclass

_FAILED = select.EPOLLERR | select.EPOLLHUP
_EVENTS_AT_ONCE = 4
"""Others in the event loop have their turn in between; the kernel hands out events in turns, too.
"""

Callback = Callable[[], None]


@dataclass
class _Interest:
    reader: Callback | None = None
    writer: Callback | None = None

    @property
    def mask(self) -> int:
        return (select.EPOLLIN if self.reader else 0) | (select.EPOLLOUT if self.writer else 0)


class Readiness:
    """Readers and writers of descriptors. For the event loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._interests: dict[int, _Interest] = {}
        loop.add_reader(self._epoll.fileno(), self._dispatch)

    def set_reader(self, descriptor: int, reader: Callback | None) -> None:
        """Call `reader` whenever the descriptor can be read or has failed; None ends that."""
        interest = self._interests.get(descriptor) or _Interest()
        self._register(descriptor, _Interest(reader, interest.writer))

    def set_writer(self, descriptor: int, writer: Callback | None) -> None:
        """Call `writer` whenever the descriptor can be written or has failed; None ends that."""
        interest = self._interests.get(descriptor) or _Interest()
        self._register(descriptor, _Interest(interest.reader, writer))

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._interests.clear()

    def _register(self, descriptor: int, interest: _Interest) -> None:
        known = descriptor in self._interests
        if interest.mask == 0:
            if known:
                del self._interests[descriptor]
                self._epoll.unregister(descriptor)
            return
        self._interests[descriptor] = interest
        if known:
            self._epoll.modify(descriptor, interest.mask)
        else:
            self._epoll.register(descriptor, interest.mask)

    def _dispatch(self) -> None:
        # A callback may close a descriptor, and another may get its number in the same round. Its
        # callback is then called without cause once, finds nothing to do, and returns.
        for descriptor, events in self._epoll.poll(0, _EVENTS_AT_ONCE):
            interest = self._interests.get(descriptor)
            if interest and interest.reader and events & (select.EPOLLIN | _FAILED):
                interest.reader()
                interest = self._interests.get(descriptor)
            if interest and interest.writer and events & (select.EPOLLOUT | _FAILED):
                interest.writer()
