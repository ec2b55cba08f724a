"""What the inline annotations of a pod may say; as CEL and as Python.

Their texts become fields of a MemTask, whose own rules judge them again; here a mistake is told to
the person who writes the pod, at the moment of `kubectl apply`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.optin import INLINE
from tierline_api.objects.plan import Tier
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import OverBudget, SwapPolicy
from tierline_api.schema.fields import (
    FRACTION,
    is_bytes,
    is_duration,
    is_label,
    is_label_text,
    sized,
)
from tierline_api.schema.quantities import MAX_BYTES, MAX_TEXT, parse_duration, parse_quantity


@dataclass(frozen=True)
class Kind:
    """What a text may be."""

    cel: Callable[[str], str]
    """Return an expression that is true of the text in a CEL expression if it is right."""
    right: Callable[[str], bool]
    """Say the same in Python."""
    advice: str
    """What to write."""


def _parses(parse: Callable[[str], float], low: float, high: float) -> Callable[[str], bool]:
    def right(text: str) -> bool:
        try:
            return len(text) <= MAX_TEXT and low <= parse(text) <= high
        except ValueError:
            return False

    return right


def _duration(text: str) -> str:
    in_range = f"duration({text}) >= duration('1us') && duration({text}) <= duration('24h')"
    return f"size({text}) <= {MAX_TEXT} && {is_duration(text)} && {in_range}"


def _bytes(least: int) -> Callable[[str], str]:
    def cel(text: str) -> str:
        return f"size({text}) <= {MAX_TEXT} && {is_bytes(text)} && {sized(text, least)}"

    return cel


def _size(least: int) -> Callable[[str], bool]:
    right = _parses(parse_quantity, least, MAX_BYTES)
    return lambda text: right(text) and FRACTION.fullmatch(text) is None


def _words(of: type[StrEnum]) -> Kind:
    allowed = [str(word.value) for word in of]
    listed = "[" + ", ".join(f"'{word}'" for word in allowed) + "]"
    advice = f"write {', '.join(allowed[:-1])} or {allowed[-1]}"
    return Kind(lambda text: f"{text} in {listed}", lambda text: text in allowed, advice)


def _tiers(text: str) -> bool:
    return {word.strip() for word in text.split(",")} <= {str(tier.value) for tier in Tier}


def _tiers_cel(text: str) -> str:
    listed = "[" + ", ".join(f"'{tier.value}'" for tier in Tier) + "]"
    return f"{text}.split(',').all(w, w.trim() in {listed})"


_DURATION: Final = Kind(
    _duration, _parses(parse_duration, 1e-6, 86_400.0), "write a duration such as 50ms or 1m30s"
)
_SIZE: Final = Kind(_bytes(1), _size(1), "write a quantity of bytes such as 512Mi")
_SIZE_OR_NONE: Final = Kind(_bytes(0), _size(0), "write a quantity of bytes such as 64Mi")
_TIERS: Final = Kind(_tiers_cel, _tiers, "write tiers, separated by commas: " + ", ".join(Tier))
_TEXT: Final = Kind(
    lambda text: f"size({text}) >= 1 && size({text}) <= 128",
    lambda text: 1 <= len(text) <= 128,
    "write a part of the device's product name, such as H200",
)
_OBJECT: Final = Kind(
    is_label,
    is_label_text,
    "write the name of a MemProfile: at most 63 lower-case letters, digits and '-'",
)

VALUES: Final = {
    "tierline.io/period": _DURATION,
    "tierline.io/deadline": _DURATION,
    "tierline.io/criticality": _words(Criticality),
    "tierline.io/execution-time": _DURATION,
    "tierline.io/training": Kind(
        lambda text: f"{text} == 'true'",
        lambda text: text == "true",
        "write true, or leave it out",
    ),
    "tierline.io/budget": _SIZE,
    "tierline.io/reserved": _SIZE_OR_NONE,
    "tierline.io/tiers": _TIERS,
    "tierline.io/policy": _words(SwapPolicy),
    "tierline.io/on-budget-exceeded": _words(OverBudget),
    "tierline.io/device": _words(DeviceKind),
    "tierline.io/model": _TEXT,
    "tierline.io/profile": _OBJECT,
}
"""What each inline annotation may say."""
if VALUES.keys() != INLINE.keys():
    raise AssertionError(f"values and names of inline annotations differ: {VALUES.keys() ^ INLINE}")
