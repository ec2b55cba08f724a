from __future__ import annotations

import array
import asyncio
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.errors import ConnectionViolation, NothingToOffer
from tierline_agent.transport import protocol as p
from tierline_agent.transport.connection import Connection
from tierline_agent.transport.in_flight import InFlight
from tierline_agent.transport.readiness import Readiness

LIMIT_BYTES = 1 << 17
AT_ONCE = 32
"""Messages that one turn of the event loop delivers at most."""
FLOOD = 500


@dataclass
class Peer:
    """A connection in the loop, its handler, and the client's blocking end."""

    messages: list[p.Message] = field(default_factory=list)
    violations: list[Exception] = field(default_factory=list)
    closed: int = 0
    takes_s: float = 0
    """A message keeps the event loop for so long."""
    pauses: bool = False
    sends_on: bool = False
    """The client sends the next message while one is worked with."""
    closes_at: int = 0
    """The connection is closed at this message."""
    taken: list[list[int]] = field(default_factory=list)
    """The descriptors of each FDS message."""
    takes_descriptors: bool = True
    closed_elsewhere: list[int] = field(default_factory=list)
    """What the connection gave up: itself, and what was sent to it."""
    quiet: list[int] = field(default_factory=list)
    """How many messages there were at each `on_quiet`."""

    def __post_init__(self) -> None:
        self.client, ours = socket.socketpair()
        ours.setblocking(False)
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.readiness = Readiness(loop)
        self.connection = Connection(
            ours,
            loop,
            self.readiness,
            self,
            LIMIT_BYTES,
            self.closed_elsewhere.extend,
            InFlight(lambda: None),
        )
        self.connection.takes_descriptors = self.takes_descriptors
        self.connection.resume()

    def on_message(self, _sequence: int, message: p.Message) -> None:
        self.messages.append(message)
        if self.takes_s:
            time.sleep(self.takes_s)
        if self.pauses:
            self.connection.pause()
        if self.sends_on:
            self.sends_on = False
            self.client.sendall(p.encode(p.Ended(2), 2))
        if isinstance(message, p.Fds):
            self.taken.append(self.connection.take_descriptors(message.count))
        if len(self.messages) == self.closes_at:
            self.connection.close()
        self.changed.set()

    def on_quiet(self) -> None:
        self.quiet.append(len(self.messages))

    def on_violation(self, _sequence: int, error: p.ProtocolError | ConnectionViolation) -> None:
        self.violations.append(error)
        self.changed.set()

    def on_closed(self) -> None:
        self.closed += 1
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def end(self) -> None:
        self.connection.close()
        self.client.close()
        self.readiness.close()
        for descriptor in self.closed_elsewhere:
            os.close(descriptor)
        self.closed_elsewhere.clear()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ended(count: int) -> list[p.Message]:
    return [p.Ended(job) for job in range(1, count + 1)]


def frames(count: int) -> bytes:
    return b"".join(p.encode(message, 1) for message in ended(count))


def identities(descriptors: list[int]) -> list[tuple[int, bool]]:
    """Which pipes these are, and which end; they are closed."""
    found = []
    for descriptor in descriptors:
        writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        found.append((os.fstat(descriptor).st_ino, writes))
        os.close(descriptor)
    return found


def count_turns(peer: Peer) -> list[int]:
    """How many messages there are in each turn of the event loop, from now on."""
    loop = asyncio.get_running_loop()
    turns: list[int] = []

    def count() -> None:
        turns.append(len(peer.messages))
        loop.call_soon(count)

    count()
    return turns


def most_at_once(turns: list[int]) -> int:
    return max(after - before for before, after in pairwise(turns))


@in_loop
async def test_frames_in_any_pieces_become_messages() -> None:
    peer = Peer()
    data = frames(5)
    for begin in range(0, len(data), 7):
        peer.client.sendall(data[begin : begin + 7])
    await peer.until(lambda: len(peer.messages) == 5)
    assert peer.messages == ended(5)
    peer.end()


@in_loop
async def test_a_paused_connection_delivers_nothing_until_it_is_resumed() -> None:
    peer = Peer(pauses=True)
    peer.client.sendall(p.encode(p.Ended(1), 1) + p.encode(p.Ended(2), 2))
    await peer.until(lambda: peer.messages)
    assert peer.messages == [p.Ended(1)]
    peer.connection.resume()
    await peer.until(lambda: len(peer.messages) == 2)
    assert peer.quiet == [1, 2], "also after what was delivered late"
    peer.end()


@in_loop
async def test_what_arrives_meanwhile_is_delivered_before_it_is_quiet() -> None:
    peer = Peer(sends_on=True)
    peer.client.sendall(p.encode(p.Ended(1), 1))
    await peer.until(lambda: len(peer.messages) == 2)
    assert peer.quiet == [2]
    peer.end()


@in_loop
async def test_a_flood_is_delivered_in_many_turns_and_in_order() -> None:
    peer, other = Peer(), Peer()
    peer.client.sendall(frames(FLOOD))
    other.client.sendall(frames(1))
    await other.until(lambda: other.messages)
    assert len(peer.messages) <= 2 * AT_ONCE, "of this turn, and of the one in which this goes on"
    await peer.until(lambda: len(peer.messages) == FLOOD)
    assert peer.messages == ended(FLOOD)
    assert most_at_once([0, *peer.quiet]) == AT_ONCE, "what nobody waits for is done in each turn"
    peer.end()
    other.end()


@in_loop
async def test_no_turn_delivers_more_however_much_is_there() -> None:
    peer = Peer()
    turns = count_turns(peer)
    data = frames(20 * FLOOD)
    sending = asyncio.get_running_loop().run_in_executor(None, peer.client.sendall, data)
    await peer.until(lambda: len(peer.messages) == 20 * FLOOD)
    await sending
    # what was left of one read and the begin of the next one may fall into one turn
    assert most_at_once(turns) < 2 * AT_ONCE
    assert peer.messages == ended(20 * FLOOD)
    peer.end()


@in_loop
async def test_messages_that_take_long_have_a_turn_each() -> None:
    peer = Peer(takes_s=0.003)
    turns = count_turns(peer)
    peer.client.sendall(frames(AT_ONCE))
    await peer.until(lambda: len(peer.messages) == AT_ONCE)
    assert most_at_once(turns) <= 2
    assert peer.messages == ended(AT_ONCE)
    peer.end()


@in_loop
async def test_all_that_a_client_sent_before_it_left_is_delivered() -> None:
    peer = Peer()
    peer.client.sendall(frames(FLOOD))
    peer.client.close()
    await peer.until(lambda: peer.closed)
    assert len(peer.messages) == FLOOD
    assert peer.quiet[-1] == FLOOD
    assert peer.violations == []
    peer.end()


@in_loop
async def test_what_was_held_back_by_a_pause_is_delivered_before_the_end_is_noticed() -> None:
    peer = Peer(pauses=True)
    peer.client.sendall(frames(3))
    peer.client.close()
    for count in range(1, 4):
        await peer.until(partial(lambda n: len(peer.messages) == n, count))
        # as when a request ends: from the loop itself, which looks for what can be read right after
        asyncio.get_running_loop().call_soon(peer.connection.resume)
    await peer.until(lambda: peer.closed)
    assert peer.messages == ended(3)
    peer.end()


@in_loop
async def test_a_pause_in_a_flood_holds_and_gives_no_second_share() -> None:
    peer = Peer()
    peer.client.sendall(frames(FLOOD))
    await peer.until(lambda: peer.messages)
    turns = count_turns(peer)
    peer.connection.pause()
    held = len(peer.messages)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(peer.messages) == held < FLOOD
    for _ in range(3):
        peer.connection.resume()
        peer.connection.pause()
    peer.connection.resume()
    await peer.until(lambda: len(peer.messages) == FLOOD)
    assert most_at_once(turns) == AT_ONCE
    peer.end()


@in_loop
async def test_nothing_is_delivered_after_a_close_in_a_flood() -> None:
    before = open_descriptors()
    peer = Peer(closes_at=AT_ONCE + 5)
    socket.send_fds(peer.client, [frames(FLOOD)], [0, 0])
    await peer.until(lambda: peer.closed)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(peer.messages) == AT_ONCE + 5
    assert peer.closed == 1
    peer.end()
    assert open_descriptors() == before


@in_loop
async def test_a_violation_in_a_flood_is_reported_after_what_came_before_it() -> None:
    peer = Peer()
    peer.client.sendall(frames(AT_ONCE + 5) + b"\xff" * 100 + frames(1))
    await peer.until(lambda: peer.violations)
    assert len(peer.messages) == AT_ONCE + 5
    peer.end()


@in_loop
async def test_descriptors_stay_next_to_their_messages_in_a_flood() -> None:
    peer = Peer()
    sent = []
    for number in range(4):
        reader, writer = os.pipe()
        announced = p.encode(p.Fds(number, p.DescriptorKind.RING, 0, 2), number)
        data = frames(FLOOD) + announced + frames(FLOOD)
        socket.send_fds(peer.client, [data], [reader, writer])
        sent.append(identities([reader, writer]))
    await peer.until(lambda: len(peer.messages) == 4 * (2 * FLOOD + 1))
    assert [identities(taken) for taken in peer.taken] == sent
    peer.end()


@in_loop
async def test_descriptors_go_to_who_closes_them_whoever_ends_the_connection() -> None:
    before = open_descriptors()
    peer = Peer()
    announced = p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 3), 1)
    socket.send_fds(peer.client, [announced], [0, 0, 0])
    socket.send_fds(peer.client, [p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 3), 2)[:10]], [0] * 3)
    await peer.until(lambda: peer.messages)
    peer.client.close()
    await peer.until(lambda: peer.closed)
    assert len(peer.closed_elsewhere) == 1 + 3, "the socket, and what waited"
    for descriptor in peer.taken[0]:
        os.close(descriptor)
    peer.end()
    assert open_descriptors() == before
    assert peer.closed == 1


@in_loop
@pytest.mark.parametrize(
    "data",
    [frames(1), frames(3), p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 1), 1)],
    ids=["with a message", "with several", "more than were announced"],
)
async def test_descriptors_that_nobody_expects_are_a_violation(data: bytes) -> None:
    peer = Peer()
    socket.send_fds(peer.client, [data], [0, 0])
    await peer.until(lambda: peer.violations)
    peer.end()


@in_loop
async def test_what_a_client_sends_is_inherited_by_no_child() -> None:
    peer = Peer()
    fds = p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 2), 1)
    socket.send_fds(peer.client, [fds], [0, 1])
    await peer.until(lambda: peer.taken)
    assert len(peer.taken[0]) == 2
    for descriptor in peer.taken[0]:
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    peer.end()


@in_loop
@pytest.mark.parametrize("before", [b"", frames(2), frames(1)[:5]], ids=["", "others", "a part"])
async def test_from_one_that_has_nothing_to_offer_none_is_received(before: bytes) -> None:
    peer = Peer(takes_descriptors=False)
    open_before = open_descriptors()
    peer.client.sendall(before)
    socket.send_fds(peer.client, [p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 1), 1)], [0])
    await peer.until(lambda: peer.violations)
    assert isinstance(peer.violations[0], NothingToOffer)
    assert open_descriptors() == open_before
    peer.end()


@in_loop
async def test_a_byte_out_of_band_hides_no_descriptors() -> None:
    peer = Peer(takes_descriptors=False)
    peer.client.sendall(frames(1))
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    peer.client.sendmsg([b"x"], control, socket.MSG_OOB)
    peer.client.sendall(frames(1))
    await peer.until(lambda: peer.violations)
    assert isinstance(peer.violations[0], NothingToOffer)
    peer.end()


@in_loop
async def test_a_connection_is_left_in_a_turn_of_its_own() -> None:
    """What is told a client that is gone must not undo what is done meanwhile."""
    peer = Peer()
    peer.client.close()
    while not peer.connection.closed:
        peer.connection.send(p.Ended(1), 1)
        assert not peer.closed
    await peer.until(lambda: peer.closed)
    peer.end()


TOO_MANY_IN_FLIGHT = """
import asyncio, os, resource, socket
from tests.unit.agent.transport.test_connection import Peer, p
from tierline_agent.telemetry.logs import log_to

if os.geteuid() == 0:
    os.setuid(61234)  # root may send on, and what it has in flight is others' too
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
log_to(2)

async def main():
    flooded, flood = socket.socketpair()
    peer = Peer()
    with flooded, flood:
        try:
            while True:
                socket.send_fds(flood, [b"x"], [0] * 50)
        except OSError as refusal:
            assert refusal.errno == 109, refusal
        peer.connection.send(p.Fds(0, p.DescriptorKind.RING, 0, 1), 1, [os.dup(0)])
        peer.connection.send(p.Ended(1), 2)
        for _ in range(20):
            peer.connection._write_again()
        assert not peer.connection.closed
    loop = asyncio.get_running_loop()
    data, descriptors, _, _ = await loop.run_in_executor(None, socket.recv_fds, peer.client, 500, 4)
    assert len(descriptors) == 1
    rest = len(p.encode(p.Ended(1), 2))
    while len(data) < rest:
        data += await loop.run_in_executor(None, peer.client.recv, 500)
    assert not peer.connection.closed

asyncio.run(main())
"""


@in_loop
async def test_a_client_that_does_not_read_what_it_is_lent_is_not_read() -> None:
    peer = Peer()
    lent = 0
    while not peer.connection._held:
        descriptors = [os.dup(0) for _ in range(p.MAX_DESCRIPTORS)]
        peer.connection.send(p.Fds(0, p.DescriptorKind.RING, 0, len(descriptors)), 1, descriptors)
        lent += len(descriptors)
    assert lent <= 16 * p.MAX_DESCRIPTORS, "what the kernel takes is bounded, too"
    peer.client.sendall(frames(3))
    other = Peer()
    other.client.sendall(frames(1))
    await other.until(lambda: other.messages)
    assert not peer.messages
    peer.connection.pause()
    peer.connection.resume()
    arrived = 0
    while arrived < lent:
        _, descriptors, _, _ = socket.recv_fds(peer.client, 1 << 16, 253)
        for descriptor in descriptors:
            os.close(descriptor)
        arrived += len(descriptors)
        await asyncio.sleep(0)
    await peer.until(lambda: len(peer.messages) == 3)
    peer.end()
    other.end()


def test_descriptors_wait_while_too_many_are_in_flight() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOO_MANY_IN_FLIGHT],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("more of them in flight than the 64 that the agent may have open") == 1


@in_loop
async def test_sent_descriptors_arrive_and_are_closed_here() -> None:
    before = open_descriptors()
    peer = Peer()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    os.close(writer)
    peer.connection.send(p.Fds(0, p.DescriptorKind.RING, 0, 1), 1, [reader])
    _, descriptors, _, _ = socket.recv_fds(peer.client, 100, 4)
    assert os.read(descriptors[0], 1) == b"x"
    os.close(descriptors[0])
    peer.end()
    assert open_descriptors() == before


@in_loop
async def test_a_client_that_does_not_read_is_closed_at_the_limit() -> None:
    peer = Peer()
    sent = 0
    while not peer.connection.closed:
        peer.connection.send(p.Ended(1), 1)
        sent += 20
        assert sent < 1 << 24
    assert sent > LIMIT_BYTES
    peer.end()


@in_loop
async def test_what_waits_is_sent_when_the_client_reads() -> None:
    peer = Peer()
    message = p.Reserved(0, 0, 1, (0,) * 8000)
    frame = len(p.encode(message, 1))
    peer.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(4):
        peer.connection.send(message, 1)

    def read() -> int:
        got = 0
        while got < 4 * frame:
            got += len(peer.client.recv(1 << 16))
        return got

    assert await asyncio.to_thread(read) == 4 * frame
    assert not peer.closed
    peer.end()


@in_loop
async def test_nothing_is_read_after_a_violation() -> None:
    peer = Peer()
    peer.client.sendall(b"\xff" * 100 + p.encode(p.Ended(1), 1))
    await peer.until(lambda: peer.violations)
    peer.client.sendall(p.encode(p.Ended(1), 1))
    await asyncio.sleep(0)
    assert peer.messages == []
    assert len(peer.violations) == 1
    peer.end()


@in_loop
async def test_the_death_of_a_client_with_unread_messages_is_noticed() -> None:
    peer = Peer()
    peer.connection.send(p.Ended(1), 1)
    peer.client.close()  # with unread data: the kernel reports an error, not an end
    await peer.until(lambda: peer.closed)
    peer.end()


@in_loop
async def test_it_is_noticed_also_after_a_pause() -> None:
    peer = Peer()
    peer.connection.send(p.Ended(1), 1)
    peer.connection.pause()
    peer.client.close()
    await asyncio.sleep(0)
    assert not peer.closed
    peer.connection.resume()
    await peer.until(lambda: peer.closed)
    peer.end()
