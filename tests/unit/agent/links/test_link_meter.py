from __future__ import annotations

import pytest
from tests.unit.planning.shapes import LINK, device, task

from tierline_agent.config import DeviceSettings
from tierline_agent.links.meter import (
    DRIFT_SPANS,
    SPAN_NS,
    WINDOW_TRANSFERS,
    LinkMeter,
    LinkRate,
)
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.margins import MARGINS
from tierline_operator.planning.request import Margins
from tierline_operator.planning.search.options import Task

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


def spans(meter: LinkMeter, count: int, took_ms: float) -> None:
    """Transfers of 1000 bytes that keep the link busy for so many spans."""
    for _ in range(round(count * SPAN_NS / (took_ms * MS))):
        meter.moved(1000, round(took_ms * MS))


def planned() -> LinkMeter:
    """A link that is planned with 1 MB/s, and moves more in the median."""
    meter = LinkMeter()
    meter.planned = LinkRate(2e6, 1e6, 0.0)
    meter.margin = 1.25
    return meter


def test_a_link_that_stays_slower_than_planned_has_drifted_until_it_recovers() -> None:
    meter = planned()
    seen = []
    for count, took_ms in ((9, 1), (DRIFT_SPANS, 2), (3, 2.5), (DRIFT_SPANS, 1)):
        spans(meter, count, took_ms)
        seen.append((meter.drifted, meter.slow_spans_total, meter.offered_bytes_per_s))
    assert seen == [
        (False, 0, 1e6),
        (True, DRIFT_SPANS, pytest.approx(0.5e6)),
        (True, DRIFT_SPANS + 3, pytest.approx(0.4e6)),
        (False, DRIFT_SPANS + 3, 1e6),
    ]


def test_hiccups_are_counted_and_are_no_drift() -> None:
    meter = planned()
    for _ in range(10):
        spans(meter, DRIFT_SPANS - 1, 2)
        spans(meter, 1, 1)
    assert not meter.drifted
    assert meter.slow_spans_total == 10 * (DRIFT_SPANS - 1)
    assert meter.offered_bytes_per_s == 1e6


@pytest.mark.parametrize("kind", MARGINS)
def test_a_link_is_slow_when_it_is_too_slow_for_plans_and_not_before(kind: DeviceKind) -> None:
    """By the margin that plans are made with: the planner's own time of a copy is the limit."""
    margin = MARGINS[kind]
    capacity = device(9, margins=Margins(margin, margin))
    (copy_s,) = set(Task(task("t", 100, 100, 1), ["dram"] * 10, capacity).worst.copy_s)
    for late, slow in ((-0.01, False), (0.01, True)):
        meter = LinkMeter()
        meter.planned = LinkRate(2 * LINK.bandwidth_bytes_per_s, LINK.bandwidth_bytes_per_s, 0.0)
        meter.margin = DeviceSettings.model_validate(
            {"kind": kind.value, "fast_bytes": 1 << 30}
        ).plan_margin
        took_ns = round(copy_s * (1 + late) * 1e9)
        for _ in range((DRIFT_SPANS + 1) * SPAN_NS // took_ns):
            meter.moved(10**6, took_ns)
        assert meter.drifted is slow


def test_small_transfers_are_slow_by_their_overhead_not_by_the_link() -> None:
    meter = LinkMeter()
    meter.planned = LinkRate(2e6, 1e6, 0.009)
    meter.margin = 1.01
    spans(meter, 3 * DRIFT_SPANS, 10)  # 0.1 MB/s
    assert meter.slow_spans_total == 0


def test_nothing_is_offered_before_it_was_measured() -> None:
    meter = LinkMeter()
    spans(meter, 2 * DRIFT_SPANS, 5)
    assert meter.offered_bytes_per_s is None
    assert not meter.drifted


def test_what_a_device_moves_by_itself_counts_its_own_time() -> None:
    meter = LinkMeter()
    for _ in range(2 * WINDOW_TRANSFERS):
        meter.moved(1000, MS)
    assert meter.median_bytes_per_s == pytest.approx(1e6)
    assert (meter.bytes_total, meter.busy_ns(0)) == (
        2000 * WINDOW_TRANSFERS,
        2 * WINDOW_TRANSFERS * MS,
    )


def test_what_is_not_timed_is_taken_to_be_as_fast_as_what_was_last() -> None:
    meter = LinkMeter()
    for took_ns in (MS, None, None, 3 * MS, None):
        meter.moved(1000, took_ns)
    assert meter.busy_ns(0) == 9 * MS
    meter.moved(500, None)
    assert meter.busy_ns(0) == round(10.5 * MS)
    assert (meter.bytes_total, meter.transfers_total) == (5500, 6)
