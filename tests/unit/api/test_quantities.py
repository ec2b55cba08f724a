"""Quantities and durations mean what they mean to Kubernetes; whatever is wrong names its fix."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierline_api.schema.quantities import (
    DURATION_PATTERN,
    DURATION_TOO_LONG,
    MAX_BYTES,
    MAX_TEXT,
    OutOfRangeError,
    QuantityError,
    format_duration,
    format_quantity,
    parse_duration,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        pytest.param("0", 0, id="nothing"),
        pytest.param("4096", 4096, id="plain bytes"),
        pytest.param("+5", 5, id="an explicit plus"),
        pytest.param("2Gi", 2 * 2**30, id="binary unit"),
        pytest.param("64Ki", 2**16, id="binary kilo has a capital K"),
        pytest.param("64k", 64_000, id="decimal kilo has a small k"),
        pytest.param("500M", 500_000_000, id="decimal unit"),
        pytest.param("1.5Gi", 3 * 2**29, id="a fraction that is whole bytes"),
        pytest.param("1.2Gi", 1_288_490_189, id="a fraction of a byte is rounded up"),
        pytest.param("1.1", 2, id="the least fraction is a byte more"),
        pytest.param(".5Ki", 512, id="no digit before the point"),
        pytest.param("5.", 5, id="no digit after the point"),
        pytest.param("1e9", 10**9, id="an exponent"),
        pytest.param("1E", 10**18, id="E with nothing after it is exa"),
        pytest.param("12E3", 12_000, id="E with digits after it is an exponent"),
        pytest.param("2000m", 2, id="thousandths that make whole bytes"),
        pytest.param("1Ei", MAX_BYTES, id="the largest"),
    ],
)
def test_a_quantity_is_whole_bytes(text: str, size_bytes: int) -> None:
    assert parse_quantity(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        pytest.param("", "write for example 512Mi", id="empty"),
        pytest.param("Gi", "write for example 512Mi", id="a unit without number"),
        pytest.param("2 Gi", "write for example 512Mi", id="a space before the unit"),
        pytest.param("0x10", "write for example 512Mi", id="hexadecimal"),
        pytest.param("٣", "write for example 512Mi", id="digits of another script"),
        pytest.param("2GB", "write 2G", id="GB as elsewhere"),
        pytest.param("2GiB", "write 2Gi", id="GiB as elsewhere"),
        pytest.param("2gb", "write 2G", id="small letters"),
        pytest.param("2K", "write 2Ki", id="a capital K alone"),
        pytest.param("2Xi", "unknown unit 'Xi'", id="a unit nobody knows"),
        pytest.param("128m", "write 128M or 128Mi", id="m for M"),
        pytest.param("0.5", "is less than a byte", id="half a byte"),
        pytest.param("0.00001Ki", "is less than a byte", id="less than a byte in a unit"),
        pytest.param("1e-3", "is less than a byte", id="less than a byte by its exponent"),
        pytest.param("-1Gi", "is negative; write a quantity such as 512Mi", id="negative"),
        pytest.param("2Ei", "at most 1Ei", id="too large"),
        pytest.param("1e999", "at most 1Ei", id="an exponent that would fill memory"),
        pytest.param("1" * 5000, "write for example 512Mi", id="a number that never ends"),
        pytest.param("5Gi\n", "write for example 512Mi", id="a line end"),
    ],
)
def test_a_wrong_quantity_names_its_fix(text: str, fix: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert fix in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.integers(min_value=0, max_value=MAX_BYTES))
def test_a_quantity_survives_writing_and_reading(size_bytes: int) -> None:
    assert parse_quantity(format_quantity(size_bytes)) == size_bytes


@given(
    st.integers(min_value=1, max_value=999),
    st.sampled_from(["Ki", "Mi", "Gi", "Ti", "Pi", "k", "M", "G", "T", "P"]),
)
def test_a_round_quantity_is_written_as_people_do(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    assert len(format_quantity(parse_quantity(text))) <= len(text)


@pytest.mark.parametrize(
    ("text", "duration_s", "canonical"),
    [
        pytest.param("50ms", 0.05, "50ms", id="milliseconds"),
        pytest.param("1.5s", 1.5, "1.5s", id="a fraction"),
        pytest.param("1m30s", 90.0, "1m30s", id="units in a row"),
        pytest.param("250us", 250e-6, "250us", id="microseconds in ASCII"),
        pytest.param("250µs", 250e-6, "250us", id="microseconds with the micro sign"),
        pytest.param("250μs", 250e-6, "250us", id="microseconds with the Greek letter"),
        pytest.param("1500ms", 1.5, "1.5s", id="more than a unit"),
        pytest.param("2h", 7200.0, "2h", id="hours"),
        pytest.param("90m", 5400.0, "1h30m", id="minutes beyond the hour"),
        pytest.param("1h0m0.5s", 3600.5, "1h0.5s", id="a unit that is zero"),
        pytest.param(".5s", 0.5, "500ms", id="no digit before the point"),
        pytest.param("0", 0.0, "0s", id="zero needs no unit"),
        pytest.param("1.0000000019s", 1.000000001, "1.000000001s", id="finer than Go keeps"),
        pytest.param("1ns", 1e-9, "1ns", id="the least"),
        pytest.param("1000h", 3_600_000.0, "1000h", id="the longest"),
    ],
)
def test_a_duration_is_seconds(text: str, duration_s: float, canonical: str) -> None:
    assert parse_duration(text) == duration_s
    assert format_duration(duration_s) == canonical


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        pytest.param("", "write for example 50ms", id="empty"),
        pytest.param("50", "write 50ms or 50s", id="no unit"),
        pytest.param("0.5", "write 0.5ms or 0.5s", id="a fraction without unit"),
        pytest.param("-5s", "negative", id="negative"),
        pytest.param("5 s", "write for example 50ms", id="a space"),
        pytest.param("50MS", "write for example 50ms", id="capitals"),
        pytest.param("1d", "write for example 50ms", id="days, which Go does not know"),
        pytest.param("2 hours", "write for example 50ms", id="words"),
        pytest.param("5e3s", "write for example 50ms", id="an exponent"),
        pytest.param("1001h", "at most 1000h", id="too long"),
        pytest.param("1s" * 3000, "write for example 50ms", id="a text that never ends"),
        pytest.param("5s\n", "write for example 50ms", id="a line end"),
    ],
)
def test_a_wrong_duration_names_its_fix(text: str, fix: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration(text)
    assert fix in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.integers(min_value=0, max_value=3_600_000 * 10**9))
def test_a_duration_survives_writing_and_reading_to_the_nanosecond(duration_ns: int) -> None:
    written = format_duration(duration_ns / 10**9)
    assert round(parse_duration(written) * 10**9) == duration_ns
    assert len(written) <= 32


def test_what_is_negative_cannot_be_written() -> None:
    with pytest.raises(QuantityError, match="negative"):
        format_quantity(-1)
    with pytest.raises(QuantityError, match="negative"):
        format_duration(-1.0)


UNITS_NS = {
    **{"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3},
    **{"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9},
}
parts = st.builds(
    lambda whole, part, unit: (f"{whole}{part}{unit}", unit),
    st.one_of(st.text("09", max_size=20), st.integers(0, 10**20).map(str)).filter(bool),
    st.one_of(st.just(""), st.text("0123456789", max_size=12).map(lambda digits: f".{digits}")),
    st.sampled_from(list(UNITS_NS)),
)


@given(st.lists(parts, min_size=1, max_size=8))
def test_a_duration_that_is_not_too_long_for_cel_is_one_of_its_integers(
    drawn: list[tuple[str, str]],
) -> None:
    text = "".join(part for part, _ in drawn)[:MAX_TEXT]
    found = re.findall(r"([0-9]+)(?:\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h)", text)
    whole_ns = [(int(number) + 1) * UNITS_NS[unit] for number, unit in found]
    if not re.search(DURATION_TOO_LONG, text) and re.fullmatch(DURATION_PATTERN, text):
        assert sum(whole_ns) < 2**63
    elif re.fullmatch(DURATION_PATTERN, text):
        with pytest.raises(OutOfRangeError):
            parse_duration(text)
