"""One client's socket: frames and descriptors in, frames and descriptors out, all bounded.

It knows how to move messages, not what they mean. Reading can be paused, which is how a session
bounds the requests it works on. A client that does not read is closed when `outgoing_bytes` wait.

A client has no more than `_MESSAGES_AT_ONCE` messages worked with in one turn of the event loop,
and begins none later than `_TURN_S`: all others wait that long, their grants and streams, too. The
rest comes in the turns after it, in order, and nothing is read before that: neither more messages,
nor that the client has left.

What a client sends next is often there by the time that its last message has been worked with: it
is looked for once more before `on_quiet`, in which the session does what nobody waits for.

Descriptors arrive with the bytes of their frame, never later; they wait in a queue until the
session takes those that an FDS message announces. Any others are a violation.

Most clients have none to send: only one that was here before a restart has something to offer back.
From the others the agent receives none at all. What it receives it must close, and to close a file
of FUSE waits for the program that serves it, in a way that not even SIGKILL ends: a killed agent
would stay, with all that it holds (`lifecycle.lock`). So bytes are looked at first (MSG_PEEK with
no room for descriptors): the kernel says whether some come with them, and leaves both where they
are. It must not drop them here either, as it would if the bytes were read: whoever drops the last
reference to a socket may wait for its peer. The closer can do both without waiting (`closing`).
A byte out of band is read in its place, so that it is the looked-at bytes that are read.

Descriptors that the kernel does not let through now (`in_flight`) are tried again until it does;
what is to be sent after them waits. A client that does not read what it is lent is not read: it has
what one answer lends it waiting here, and what the small buffer of its socket takes in the kernel.
So unread answers fill neither the agent's table of descriptors nor its user's share of those that
are on their way.

The end of a connection is found out in the middle of many things, also by answering. So `close`
only marks it: what is being done is done to its end, and the handler is told in a turn of its own.

Invariant: every descriptor that was received is owned by this object until `take_descriptors`, and
goes with the socket to its closer (`closing`); every descriptor given to `send` is owned by
this object, and closed once sent. `on_closed` is called once, never inside another call.

No call here waits for a client: the socket does not block, `recvmsg` has room for all descriptors
that one message may bring (else the kernel closes the rest at once), and nothing that a client made
is closed here.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from tierline_agent.errors import ConnectionViolation, NothingToOffer
from tierline_agent.transport import in_flight
from tierline_agent.transport.in_flight import InFlight
from tierline_agent.transport.protocol import (
    MAX_DESCRIPTORS,
    Decoder,
    Message,
    ProtocolError,
    encode,
)
from tierline_agent.transport.readiness import Readiness

_READ_BYTES = 64 << 10
_MESSAGES_AT_ONCE = 32
_TURN_S = 0.002
_DESCRIPTORS_PER_READ = 253  # the kernel's own limit for one message
_ROOM_BYTES = socket.CMSG_LEN(_DESCRIPTORS_PER_READ * array.array("i").itemsize)
_SENT_AHEAD_BYTES = 4096
"""Of the kernel's memory: a dozen messages, each with 64 descriptors, that are not read yet."""
_DESCRIPTORS_QUEUED = 2 * MAX_DESCRIPTORS


class Handler(Protocol):
    """Handles the messages."""

    def on_message(self, sequence: int, message: Message, /) -> None:
        """A message arrived."""
        ...

    def on_quiet(self) -> None:
        """Nothing more is delivered in this turn of the event loop."""
        ...

    def on_violation(self, sequence: int, error: ProtocolError | ConnectionViolation, /) -> None:
        """The client broke the protocol; nothing more will be read."""
        ...

    def on_closed(self) -> None:
        """The connection is gone; called once, in a turn of its own."""
        ...


class Connection:
    """A non-blocking Unix stream socket in the event loop."""

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        readiness: Readiness,
        handler: Handler,
        outgoing_limit_bytes: int,
        close_elsewhere: Callable[[Iterable[int]], None],
        sending: InFlight,
    ) -> None:
        """Take over the socket, which must be non-blocking; reading begins with `resume`.

        `close_elsewhere` takes over descriptors whose closing may wait.
        """
        self._socket = connection
        self._descriptor = connection.fileno()
        self._loop = loop
        self._readiness = readiness
        self._handler = handler
        self._outgoing_limit_bytes = outgoing_limit_bytes
        self._close_elsewhere = close_elsewhere
        self._in_flight = sending
        self._again: asyncio.TimerHandle | None = None
        """When descriptors that were refused are tried again."""
        self._refused = False
        self._decoder = Decoder()
        self._received: deque[int] = deque()
        self._outgoing: deque[tuple[bytearray, tuple[int, ...]]] = deque()
        """Frames without descriptors in one: a client that never reads has 100,000 of them, and to
        forget so many one by one takes 20 ms."""
        self._outgoing_bytes = 0
        self._unsent = 0
        """Descriptors that wait there."""
        self._held = False
        """Nothing is read, because some do."""
        self.takes_descriptors = False
        """Whether the client may have some to send; before it says so, it has none."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_AHEAD_BYTES)
        self._reading = False
        self._delivering = False
        self._share = 0
        """Messages that may still be delivered in this turn."""
        self._turn_ends_s = 0.0
        self._catching_up = False
        """What has arrived before is delivered in the next turn."""
        self.closed = False

    def send(self, message: Message, sequence: int, descriptors: Sequence[int] = ()) -> None:
        """Send as soon as the socket takes it; the descriptors are closed afterwards.

        Raises:
            ProtocolError: a field does not fit its message.
        """
        try:
            frame = encode(message, sequence)
        except ProtocolError:
            _close_all(descriptors)
            raise
        if self.closed:
            _close_all(descriptors)
            return
        waits = bool(self._outgoing)
        if waits and not descriptors and not self._outgoing[-1][1]:
            self._outgoing[-1][0].extend(frame)
        else:
            self._outgoing.append((bytearray(frame), tuple(descriptors)))
        self._outgoing_bytes += len(frame)
        self._unsent += len(descriptors)
        if not waits:
            self._write()
            if self._outgoing and self._again is None:
                self._readiness.set_writer(self._descriptor, self._writable)
        self._hold()
        if self._outgoing_bytes > self._outgoing_limit_bytes:
            self.close()

    def take_descriptors(self, count: int) -> list[int]:
        """Hand over the next `count` descriptors; the caller owns them.

        Raises:
            ConnectionViolation: fewer have arrived.
        """
        if len(self._received) < count:
            raise ConnectionViolation(
                f"{count} descriptors were announced and {len(self._received)} sent"
            )
        return [self._received.popleft() for _ in range(count)]

    def pause(self) -> None:
        """Read nothing more until `resume`."""
        if self._reading:
            self._reading = False
            self._readiness.set_reader(self._descriptor, None)

    def resume(self) -> None:
        """Read, after first delivering what had arrived before `pause`."""
        if self.closed or self._reading:
            return
        self._reading = True
        if not self._held:
            self._read_on()

    def _read_on(self) -> None:
        self._readiness.set_reader(self._descriptor, self._readable)
        if self._decoder.buffered_bytes and not self._delivering:
            self._catch_up_soon()

    def _hold(self) -> None:
        """Read nothing while descriptors wait to be sent, and go on when none does."""
        held = self._unsent > 0
        if held == self._held or self.closed:
            return
        self._held = held
        if self._reading and held:
            self._readiness.set_reader(self._descriptor, None)
        elif self._reading:
            self._read_on()

    def close(self) -> None:
        """Close; what has not been sent is lost, and nothing is read any more."""
        if self.closed:
            return
        self.closed = True
        self._loop.call_soon(self._handler.on_closed)
        self.pause()
        if self._again is not None:
            self._again.cancel()
        self._readiness.set_writer(self._descriptor, None)
        with contextlib.suppress(OSError):  # the client may have left
            self._socket.shutdown(socket.SHUT_RDWR)
        for _, descriptors in self._outgoing:
            _close_all(descriptors)
        self._outgoing.clear()
        self._descriptor = -1
        self._close_elsewhere([self._socket.detach(), *self._received])
        self._received.clear()

    def _readable(self) -> None:
        if self._catching_up:
            return
        self._begin_turn()
        if self._receive() and self._open_for_reading() and self._share:
            self._receive()
        self._end_turn()

    def _begin_turn(self) -> None:
        self._share = _MESSAGES_AT_ONCE
        self._turn_ends_s = time.monotonic() + _TURN_S

    def _end_turn(self) -> None:
        if self._open_for_reading() and not self._share:
            self._catch_up_soon()
        if not self.closed:
            self._handler.on_quiet()

    def _receive(self) -> bool:
        """Read once, and deliver; returns whether there was anything."""
        try:
            data, descriptors, flags = self._read()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.close()
            return False
        self._received.extend(descriptors)
        if flags & socket.MSG_CTRUNC and not self.takes_descriptors:
            self._violation(NothingToOffer("descriptors were sent, and none are expected"))
            return False
        if flags & socket.MSG_CTRUNC or len(self._received) > _DESCRIPTORS_QUEUED:
            self._violation(ConnectionViolation("too many descriptors were sent"))
            return False
        if not data:
            self.close()
            return False
        self._decoder.feed(data)
        self._deliver()
        return True

    def _read(self) -> tuple[bytes, Sequence[int], int]:
        """Bytes, descriptors and flags. Raises OSError."""
        if self.takes_descriptors:
            # not by recv_fds, which drops its flags: what the agent starts would inherit them
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_BYTES, _ROOM_BYTES, socket.MSG_CMSG_CLOEXEC
            )
            return data, _descriptors_in(ancillary), flags
        seen, _, flags, _ = self._socket.recvmsg(_READ_BYTES, 0, socket.MSG_PEEK)
        if seen and not flags & socket.MSG_CTRUNC:
            seen, _, flags, _ = self._socket.recvmsg(len(seen))
        return seen, (), flags

    def _check_descriptors(self) -> None:
        """None is left after the last message."""
        if self._received and not self._decoder.buffered_bytes:
            self._violation(ConnectionViolation("descriptors were sent without an FDS message"))

    def _catch_up_soon(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        self._begin_turn()
        self._deliver()
        self._end_turn()

    def _deliver(self) -> None:
        if self._delivering or not self._open_for_reading():
            return
        self._delivering = True
        try:
            for sequence, message in islice(self._decoder, self._share):
                self._share -= 1
                self._handler.on_message(sequence, message)
                if not self._open_for_reading():
                    break
                if time.monotonic() > self._turn_ends_s:
                    self._share = 0
                    break
        except (ProtocolError, ConnectionViolation) as error:
            self._violation(error)
        finally:
            self._delivering = False
        self._check_descriptors()

    def _open_for_reading(self) -> bool:
        return self._reading and not self._held and not self.closed

    def _violation(self, error: ProtocolError | ConnectionViolation) -> None:
        if not self.closed:
            self.pause()
            self._handler.on_violation(self._decoder.sequence, error)

    def _writable(self) -> None:
        self._write()
        if not self._outgoing and not self.closed:
            self._readiness.set_writer(self._descriptor, None)
        self._hold()

    def _write(self) -> None:
        while self._outgoing:
            frame, descriptors = self._outgoing[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [frame], descriptors)
                else:
                    sent = self._socket.send(frame)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as failure:
                if failure.errno == errno.ETOOMANYREFS:
                    self._try_again()
                else:
                    self.close()
                return
            self._refused = False
            _close_all(descriptors)
            self._unsent -= len(descriptors)
            self._outgoing_bytes -= sent
            if sent == len(frame):
                self._outgoing.popleft()
            else:
                del frame[:sent]
                self._outgoing[0] = (frame, ())

    def _try_again(self) -> None:
        """The kernel lets no descriptors through now: that is no client's end."""
        if not self._refused:
            self._refused = True
            self._in_flight.refused()
        self._readiness.set_writer(self._descriptor, None)
        self._again = self._loop.call_later(in_flight.AGAIN_S, self._write_again)

    def _write_again(self) -> None:
        self._again = None
        self._write()
        if self._outgoing and self._again is None and not self.closed:
            self._readiness.set_writer(self._descriptor, self._writable)
        self._hold()


def _descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def _close_all(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
