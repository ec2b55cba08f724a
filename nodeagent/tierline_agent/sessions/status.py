"""What a client says of itself, apart from its jobs: READY, NOTICE, STATS.

Invariant: a client's READY is answered once, when releases have begun.
"""

from __future__ import annotations

import logging
import time

from tierline_agent.errors import ConnectionViolation
from tierline_agent.registry import Start as Releases
from tierline_agent.sessions.client import Client
from tierline_agent.transport.protocol import Notice, NoticeKind, Ready, Start, Statistics, Stats

_log = logging.getLogger(__name__)
_MOST_BYTES = 1 << 62
_STATES_THAT_HOLD_MEMORY = (NoticeKind.STAYS_RESIDENT, NoticeKind.LEFT_MANAGEMENT)


class ClientStatus:
    """What one client says of itself, and asks about its task."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ready: int | None = None

    @property
    def ready(self) -> bool:
        """Whether the client waits for its first release."""
        return self._ready is not None

    def wait_for_start(self, sequence: int, _message: Ready) -> None:
        """The task is warm: tell it when its releases begin, now or when somebody says so."""
        if self._ready is not None:
            raise ConnectionViolation("READY was sent already", out_of_order=True)
        self._ready = sequence
        self.start()

    def start(self) -> None:
        """Answer READY, if releases have been started."""
        node, task = self._client.node, self._client.task
        start = node.registry.start
        if start is None and node.config.kubernetes is not None:
            # Pods come and go by themselves: the releases of each begin when it is ready.
            start = Releases(time.monotonic_ns(), 0)
        if self._ready is None or start is None:
            return
        sequence, self._ready = self._ready, None
        epoch_ns = start.epoch_ns + task.registration.phase_ns
        self._client.reply(sequence, Start(epoch_ns, start.until_ns))

    def notice(self, _sequence: int, message: Notice) -> None:
        """Something that the administrator should see."""
        client = self._client
        kind = NoticeKind(message.kind)
        memory, whose = client.unit.memory, (client.task.name, client.token)
        if kind is NoticeKind.HELD:  # a figure, often, and no news
            memory.set_held(*whose, min(message.size_bytes, _MOST_BYTES))
            return
        # its own words, escaped: they may hold whole lines and orders to a terminal
        _log.warning("%s reports %s: %r", client, kind.name.lower(), message.text)
        size_bytes = min(message.size_bytes, _MOST_BYTES)
        client.task.add_notice(kind.name.lower(), size_bytes, message.text)
        if kind in _STATES_THAT_HOLD_MEMORY:
            memory.add_unmanaged(*whose, size_bytes)
        elif kind is NoticeKind.UNSWAPPABLE:
            memory.set_unswappable(*whose, size_bytes)
        elif kind is NoticeKind.READS_UNSEEN:
            client.task.reads_unseen = True

    def stats(self, sequence: int, _message: Stats) -> None:
        """The task's counters."""
        counters = self._client.task.counters
        self._client.reply(
            sequence,
            Statistics(
                jobs=counters.jobs,
                misses=counters.misses,
                streamed_bytes=counters.streamed_bytes,
                response_worst_ns=counters.response_worst_ns,
            ),
        )
