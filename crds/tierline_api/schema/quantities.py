"""Kubernetes quantities as whole bytes, and Go durations as seconds.

Both are parsed with exact rational arithmetic and the same grammar as the API server's, so that a
manifest means the same on a laptop and in a cluster. A quantity of a fraction of a byte is rounded
up to the next byte, as Kubernetes does (``1.2Gi``), except when all of it is less than a byte
(``0.5``), or it is written in thousandths of a byte (``128m``), a slip for ``128M``. A duration
keeps nanoseconds: seconds as a float are exact to the nanosecond up to 48 days, and
`parse_duration` takes up to 1000 hours.

Exact arithmetic is slow, and a cluster's objects hold the same few texts again and again: what was
read and written lately is remembered (it was a sixth of the operator's processor time).
"""

import re
import reprlib
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

MAX_BYTES = 2**60
"""Largest quantity that is taken: 1Ei. The CRDs say the same."""
MAX_TEXT = 32
"""Longest text that is parsed, in characters: bounds the work that one field can cause."""
MAX_DURATION_S = 1000 * 3600.0
"""Longest duration that is taken, in seconds."""

DURATION_PATTERN = r"^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"
"""Durations as RE2 and Python read them alike; the CRDs carry it to the API server."""
DURATION_TOO_LONG = (
    r"(^|[a-zµμ])0*([1-9][0-9]{4,}(\.[0-9]*)?h|[1-9][0-9]{5,}(\.[0-9]*)?m([0-9.]|$)"
    r"|[1-9][0-9]{7,}(\.[0-9]*)?s|[1-9][0-9]{10,}(\.[0-9]*)?ms"
    r"|[1-9][0-9]{13,}(\.[0-9]*)?[uµμ]s|[1-9][0-9]{16,}(\.[0-9]*)?ns)"
)
"""Found in every duration of which one part is longer than 10000 h, some 10^16 ns, and in none of
up to `MAX_DURATION_S`. CEL's `duration` fails for what is more than some 10^18 ns, and then not the
rule's sentence is said but that failure; the parts that MAX_TEXT leaves room for stay below."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_THOUSANDTHS = {"m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}
_SLIPS = {
    **{"KB": "k", "kB": "k", "Kb": "k", "kb": "k", "K": "Ki", "ki": "Ki", "KIB": "Ki", "KiB": "Ki"},
    **{"MB": "M", "mb": "M", "Mb": "M", "mi": "Mi", "MiB": "Mi", "MIB": "Mi"},
    **{"GB": "G", "gb": "G", "Gb": "G", "g": "G", "gi": "Gi", "GiB": "Gi", "GIB": "Gi"},
    **{"TB": "T", "tb": "T", "Tb": "T", "t": "T", "ti": "Ti", "TiB": "Ti", "B": "", "b": ""},
}

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[A-Za-z]{0,4}))",
    re.ASCII,
)
_DURATION = re.compile(DURATION_PATTERN, re.ASCII)
_DURATION_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_NS = {
    **{"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3},
    **{"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9},
}


_REMEMBERED = 4096
"""Texts, and values, of each kind."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 2, 2, 3


class QuantityError(ValueError):
    """A text that is no quantity or no duration; the message says what to write instead."""


class OutOfRangeError(QuantityError):
    """A text that means less or more than any is taken; a field's own bounds are narrower."""


class RoundedBytes(int):
    """Whole bytes of a quantity that ends within one, such as ``0.6Gi``: rounded up."""

    exact: Fraction
    """What was written: of that sums are made, as the API server makes them."""


def exact_bytes(size_bytes: int) -> Fraction:
    """Return what was written where a size was rounded, else the size."""
    if isinstance(size_bytes, RoundedBytes):
        return size_bytes.exact
    return Fraction(size_bytes)


@lru_cache(_REMEMBERED)
def parse_quantity(text: str) -> int:
    """Return the whole bytes that a Kubernetes quantity means: ``2Gi``, ``500M``, ``1e9``.

    Raises QuantityError when it is malformed, less than a byte, or in thousandths of a byte that
    are no whole byte, OutOfRangeError when it is negative or above 1Ei.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise QuantityError(
            f"{shown(text)} is not a quantity of bytes; write for example 512Mi or 2Gi"
        )
    number = Fraction(f"0{match['number']}0" if "." in match["number"] else match["number"])
    suffix = match["suffix"] or ""
    if match["exponent"]:
        exact = number * Fraction(10) ** int(match["exponent"])
    elif suffix in _BINARY:
        exact = number * _BINARY[suffix]
    elif suffix in _DECIMAL:
        exact = number * _DECIMAL[suffix]
    elif suffix in _THOUSANDTHS:
        exact = number * _THOUSANDTHS[suffix]
        if exact.denominator != 1:
            raise QuantityError(
                f"{shown(text)} is less than a whole byte in its last part ('{suffix}' counts"
                f" fractions of a byte); write {match['number']}M or {match['number']}Mi"
            )
    else:
        instead = _SLIPS.get(suffix)
        fix = f"{match['number']}{instead}" if instead is not None else "for example 512Mi or 2Gi"
        raise QuantityError(f"{shown(text)} has the unknown unit '{suffix}'; write {fix}")
    if 0 < exact < 1:
        raise QuantityError(f"{shown(text)} is less than a byte; write for example 512Mi or 2Gi")
    if match["sign"] == "-" and exact:
        raise OutOfRangeError(f"{shown(text)} is negative; write a quantity such as 512Mi")
    if exact > MAX_BYTES:
        raise OutOfRangeError(f"{shown(text)} is more than any memory holds; write at most 1Ei")
    size_bytes = ceil(exact)
    if size_bytes != exact:
        size_bytes = RoundedBytes(size_bytes)
        size_bytes.exact = exact
    return size_bytes


@lru_cache(_REMEMBERED)
def without_b(text: str) -> str:
    """Return ``4Gi`` for ``4GiB``, as memory is spoken of; any other text as it is."""
    return text[:-1] if text.endswith("iB") else text


def format_quantity(size_bytes: int) -> str:
    """Return the shortest exact quantity for `size_bytes`: ``2Gi``, ``500M`` or ``4097``."""
    if size_bytes < 0:
        raise QuantityError(f"cannot write {size_bytes} bytes as a quantity: it is negative")
    texts = [str(size_bytes)]
    for suffix, unit in (*_BINARY.items(), *list(_DECIMAL.items())[1:]):
        if size_bytes and size_bytes % unit == 0:
            texts.append(f"{size_bytes // unit}{suffix}")
    return min(texts, key=lambda text: (len(text), text[-1] != "i"))


@lru_cache(_REMEMBERED)
def parse_duration(text: str) -> float:
    """Return the seconds that a duration (``50ms``, ``1.5s``, ``1m30s``, ``250us``) means.

    What is finer than a nanosecond is cut off, as Go does. Raises QuantityError when it is
    malformed or has no unit, OutOfRangeError when it is negative or longer than 1000 hours.
    """
    if len(text) > MAX_TEXT or not _DURATION.fullmatch(text):
        if text == "0":
            return 0.0
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and len(text) <= MAX_TEXT:
            raise QuantityError(f"{shown(text)} has no unit; write {text}ms or {text}s")
        if text.startswith("-"):
            raise OutOfRangeError(f"{shown(text)} is negative; write a duration such as 50ms")
        raise QuantityError(
            f"{shown(text)} is not a duration; write for example 50ms, 1.5s or 1m30s"
        )
    total_ns = 0
    for number, unit in _DURATION_PART.findall(text):
        exact = Fraction(f"0{number}0" if "." in number else number)
        total_ns += floor(exact * _UNIT_NS[unit])
    if total_ns > MAX_DURATION_S * 10**9:
        raise OutOfRangeError(f"{shown(text)} is too long; write at most 1000h")
    return total_ns / 10**9


@lru_cache(_REMEMBERED)
def format_duration(duration_s: float) -> str:
    """Return `duration_s` (seconds, rounded to nanoseconds) as Go writes it, such as ``1m30s``."""
    total_ns = round(duration_s * 10**9)
    if total_ns < 0:
        raise QuantityError(f"cannot write {duration_s} s as a duration: it is negative")
    for unit, size_ns in (("ns", 1), ("us", 10**3), ("ms", 10**6)):
        if 0 < total_ns < 1000 * size_ns:
            return f"{_decimal(total_ns, size_ns)}{unit}"
    minutes, rest_ns = divmod(total_ns, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    if rest_ns or not any(parts):
        parts.append(f"{_decimal(rest_ns, 10**9)}s")
    return "".join(parts)


def size_for_people(size_bytes: int) -> str:
    """Return `size_bytes` in whole Mi, rounded up: ``96Mi``, ``1024Mi``."""
    return f"{ceil(size_bytes / 2**20)}Mi"


def time_for_people(duration_s: float) -> str:
    """Return `duration_s` in ms, rounded up to a tenth, above 100 ms to a whole one: ``12.4ms``."""
    tenths = ceil(round(duration_s * 10**4, 5))
    return f"{tenths / 10:g}ms" if tenths < 1000 else f"{ceil(tenths / 10)}ms"


def _decimal(value: int, unit: int) -> str:
    """Return value/unit as a decimal number without trailing zeros; `unit` is a power of ten."""
    whole, part = divmod(value, unit)
    return f"{whole}.{part:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")


def shown(value: object) -> str:
    """Return `value` for a message: printable, and short whatever it is."""
    return _SHORT.repr(value)
