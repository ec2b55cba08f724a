"""Two numbers of which one is at most the other: objects in which they are equal, and one too far.

Made from the orders that the models have, one pair of objects for each.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from tests.unit.api.editing import REMOVED, edited

from tierline_api.objects.kinds import KINDS
from tierline_api.schema.base import ApiModel
from tierline_api.schema.checks import Order

_PLACES: Final = {
    "Realtime": ("MemTask", "spec__realtime"),
    "Memory": ("MemTask", "spec__memory"),
    "Layer": ("MemProfile", "spec__layers__0"),
    "Device": ("MemNode", "status__devices__0"),
    "Link": ("MemNode", "status__links__0"),
}
"""Where an object of a kind has one of each."""
_NS: Final = 5_000_000
_NUMBERS: Final = {"extentBytes": 1 << 22, "contextBytes": 300_000_000, "reserved": 1 << 20}
_NUMBER: Final = 1 << 28


class Pair(NamedTuple):
    """Two objects, of which the second is refused for the first reason it has."""

    id: str
    equal: dict[str, Any]
    wrong: dict[str, Any]
    field: str
    says: str


def pairs(good: Mapping[str, dict[str, Any]]) -> Iterator[Pair]:
    """Yield one for each order of the models; `good` has an object of each kind."""
    for model, order in orders():
        kind, place = _PLACES[model.__name__]
        name, other = model.api_field(order.field), model.api_field(order.other)
        pair = {name, other}
        says = f"{_than(order)} {other}"
        equal, wrong = (
            {
                **{f"{place}__{name}": one, f"{place}__{other}": two},
                # What is absent is what else they are compared with.
                **({f"{place}__deadline": REMOVED} if pair == {"executionTime", "period"} else {}),
            }
            for one, two in _values(order, name)
        )
        yield Pair(
            f"{name} {says}",
            edited(good[kind], equal),
            edited(good[kind], wrong),
            re.sub(r"\.(\d+)", r"[\1]", f"{place}__{name}".replace("__", ".")),
            f" is {says} ",
        )


def orders() -> Iterator[tuple[type[ApiModel], Order]]:
    """Yield the orders of all models, each once."""
    known: set[type[ApiModel]] = set()
    for kind in KINDS:
        known |= set(_models(kind.model))
    for model in sorted(known, key=lambda model: model.__name__):
        for check in model.checks:
            if isinstance(check, Order):
                yield model, check


def _than(order: Order) -> str:
    if _timed(order):
        return "shorter than" if order.least else "longer than"
    return "less than" if order.least else "more than"


def _timed(order: Order) -> bool:
    return order.field.endswith("_s")


def _values(order: Order, name: str) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    number = _NS if _timed(order) else _NUMBERS.get(name, _NUMBER)
    too_far = number + 1 if order.least else number - 1

    def written(value: int) -> Any:
        if not _timed(order):
            return value
        return f"{value}ns" if value % 10**6 else f"{value // 10**6}ms"

    return (written(number), written(number)), (written(number), written(too_far))


def _models(annotation: object) -> Iterator[type[ApiModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if issubclass(annotation, ApiModel):
            yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation)
    for one in typing.get_args(annotation):
        yield from _models(one)
