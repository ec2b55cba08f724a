from __future__ import annotations

import pytest

from tierline_agent.link_meter import DRIFT_WINDOWS, WINDOW_TRANSFERS, LinkMeter, LinkRate

MS = 1_000_000


def transfer(meter: LinkMeter, at_ms: float, took_ms: float, size: int = 1000) -> float:
    meter.began(int(at_ms * MS))
    meter.ended(int((at_ms + took_ms) * MS), size)
    return at_ms + took_ms


def windows(meter: LinkMeter, count: int, took_ms: float, at_ms: float = 0.0) -> float:
    for _ in range(count * WINDOW_TRANSFERS):
        at_ms = transfer(meter, at_ms, took_ms) + 5
    return at_ms


def test_idle_time_does_not_count() -> None:
    meter = LinkMeter()
    windows(meter, 2, took_ms=1)
    assert meter.median_bytes_per_s == pytest.approx(1e6)
    assert meter.busy_ns(10**12) == 2 * WINDOW_TRANSFERS * MS


def test_overlapping_transfers_share_their_time() -> None:
    meter = LinkMeter()
    for pair in range(WINDOW_TRANSFERS // 2):
        start = pair * 100 * MS
        meter.began(start)
        meter.began(start + MS)
        meter.ended(start + 2 * MS, 1000)
        meter.ended(start + 4 * MS, 1000)
    assert meter.median_bytes_per_s == pytest.approx(2000 / 0.004)


def test_failures_move_no_bytes() -> None:
    meter = LinkMeter()
    meter.began(0)
    meter.ended(MS, None)
    assert (meter.bytes_total, meter.errors_total, meter.transfers_total) == (0, 1, 0)


def test_a_link_that_stays_slow_has_drifted_until_it_recovers() -> None:
    meter = LinkMeter()
    meter.planned = LinkRate(1e6, 1e6, 0.0)
    drifted = []
    at_ms = 0.0
    for count, took_ms in ((5, 1), (DRIFT_WINDOWS + 4, 2), (20, 1)):
        at_ms = windows(meter, count, took_ms, at_ms)
        drifted.append(meter.drifted)
    assert drifted == [False, True, False]
    assert meter.worst_bytes_per_s == pytest.approx(0.5e6)


def test_what_a_device_moves_by_itself_counts_its_own_time() -> None:
    meter = LinkMeter()
    for _ in range(2 * WINDOW_TRANSFERS):
        meter.moved(1000, MS)
    assert meter.median_bytes_per_s == pytest.approx(1e6)
    assert (meter.bytes_total, meter.busy_ns(0)) == (
        2000 * WINDOW_TRANSFERS,
        2 * WINDOW_TRANSFERS * MS,
    )
