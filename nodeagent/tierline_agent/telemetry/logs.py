"""The agent's log: lines on standard error, written by a thread, and bounded.

Standard error may be a pipe that nobody reads. So no thread writes the lines that it logs, least of
all the event loop's: lines wait for a thread of their own, and what finds no room is counted.

What clients do is logged, and some do it for ever. Each kind of line, that is each sentence of the
source, comes `BURST` times at once and then every `EVERY_S` seconds; those left out are counted in
the next one. How many kinds there are, and how long their lines, decides nothing: all together have
`BURST_BYTES` at once and the rest of `DAY_BYTES` spread over a day.

Invariant: to log neither waits for the reader of standard error nor fails.
Invariant: no day has more than `DAY_BYTES` of lines.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tierline_agent.concurrency import go_on

BURST = 50
EVERY_S = 10.0
DAY_BYTES = 100 << 20
BURST_BYTES = 20 << 20
DAY_S = 86400.0
_WAITING = 4096
_MOST_KINDS = 1024
"""Other people's loggers may put their values into the sentence itself."""
_LINE_BYTES = 4096
"""A longer one (a traceback in a traceback) is cut."""
_LOST_BYTES = 50
"""Of a line that says how many found no room; at most one comes with each that does."""
_AT_THE_END_S = 1.0
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass
class _Kind:
    allowance: float
    since_s: float
    left_out: int = 0


class Sparing(logging.Filter):
    """Leaves out lines of a kind that come too often."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is to be written; says in it how many were not."""
        now_s = self._now_s()
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(record.msg)), _Kind(BURST, now_s))
        kind.allowance = min(BURST, kind.allowance + (now_s - kind.since_s) / EVERY_S)
        kind.since_s = now_s
        if kind.allowance < 1:
            kind.left_out += 1
            return False
        kind.allowance -= 1
        if kind.left_out:
            record.msg = f"{record.msg} ({kind.left_out} more like it before)"
            kind.left_out = 0
        return True


class Log(logging.Handler):
    """Writes lines to a descriptor, in a thread."""

    def __init__(self, descriptor: int, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._allowance_bytes = float(BURST_BYTES)
        self._since_s = now_s()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._lost = 0
        self._writing = False
        threading.Thread(target=go_on, args=("log", self._run), name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written, or count it."""
        line = self.format(record).encode(errors="replace")[:_LINE_BYTES] + b"\n"
        with self._changed:
            if len(self._lines) >= _WAITING or not self._allows(len(line)):
                self._lost += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def _allows(self, size_bytes: int) -> bool:
        now_s, per_s = self._now_s(), (DAY_BYTES - BURST_BYTES) / DAY_S
        earned = (now_s - self._since_s) * per_s
        self._since_s = now_s
        self._allowance_bytes = min(BURST_BYTES, self._allowance_bytes + earned)
        if self._allowance_bytes < size_bytes + _LOST_BYTES:
            return False
        self._allowance_bytes -= size_bytes + _LOST_BYTES
        return True

    def flush(self) -> None:
        """Wait until all is written, for a moment."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._lines and not self._writing, timeout=_AT_THE_END_S
            )

    def _run(self) -> None:
        while True:
            data = self._next()
            with suppress(OSError):  # nobody reads it any more
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def _next(self) -> bytes:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines)
            self._writing = True
            lines = [*self._lines]
            self._lines.clear()
            if self._lost:
                lines.append(b"%d lines found no room here\n" % self._lost)
                self._lost = 0
        return b"".join(lines)


def log_to(descriptor: int) -> None:
    """Have everything that is logged from INFO on written there."""
    log = Log(descriptor)
    log.addFilter(Sparing())
    logging.basicConfig(level=logging.INFO, handlers=[log])
