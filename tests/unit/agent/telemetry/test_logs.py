from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from tierline_agent.telemetry import logs


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("agent", logging.WARNING, "", 0, message, arguments, None)


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, bytes(1 << 12))
    except BlockingIOError:
        os.set_blocking(pipe, True)


def test_nobody_waits_for_a_pipe_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    fill(writing)
    log = logs.Log(writing)
    began_s = time.thread_time()
    for number in range(3 * logs._WAITING):
        log.emit(record("line %d", number))
    log.flush()  # at the end, too, it is waited for a moment only
    assert time.thread_time() - began_s < 5.0

    os.set_blocking(reading, True)
    found = b""
    while b"lines found no room here" not in found:
        found += os.read(reading, 1 << 16)
    assert b"line 0\n" in found
    log.flush()
    os.close(reading)


def test_lines_of_a_kind_are_few_and_those_left_out_are_counted() -> None:
    now_s = 100.0
    sparing = logs.Sparing(lambda: now_s)
    written = [sparing.filter(record("%s is bad", number)) for number in range(1000)]
    assert sum(written) == logs.BURST
    assert sparing.filter(record("%s is worse", 1))
    now_s += logs.EVERY_S
    again = record("%s is bad", 5)
    assert sparing.filter(again)
    assert again.getMessage() == f"5 is bad ({1000 - logs.BURST} more like it before)"
    assert not sparing.filter(record("%s is bad", 6))


def test_no_day_has_more_lines_than_is_said_whatever_clients_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Endless kinds of the longest lines, most of them in the first hour; a hundredth of all."""
    monkeypatch.setattr(logs, "DAY_BYTES", logs.DAY_BYTES // 100)
    monkeypatch.setattr(logs, "BURST_BYTES", logs.BURST_BYTES // 100)
    reading, writing = os.pipe()
    now_s, found = 0.0, bytearray()

    def read() -> None:
        while data := os.read(reading, 1 << 20):
            found.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    log = logs.Log(writing, lambda: now_s)
    log.addFilter(logs.Sparing(lambda: now_s))
    text = "\x1b" * logs._LINE_BYTES
    for second in range(0, int(logs.DAY_S), 300):
        now_s = float(second)
        for number in range(20 if second < 3600 else 4):
            log.handle(record(f"kind {second} {number} %r", text))
        log.flush()
    os.close(writing)
    reader.join()
    os.close(reading)
    assert logs.DAY_BYTES * 0.9 < len(found) < logs.DAY_BYTES
    assert b"\x1b" not in found
