"""Rules over several fields of one object, each defined once: for the API server and for Python.

An `Order` says that of two numbers one is at most the other. It is true where one of them is
absent, and compares as the API's texts do: to the nanosecond, to the byte. A `Holds` says anything
else. Both report one field, with a sentence that names it and the fix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args

from pydantic.fields import FieldInfo

from tierline_api.schema.base import ApiModel, Check, Rule
from tierline_api.schema.fields import ByteText, as_bytes, guarded
from tierline_api.schema.quantities import format_duration, format_quantity

_NS: Final = 1e9
M = TypeVar("M", bound=ApiModel)


@dataclass(frozen=True)
class Order(Check):
    """The number in `field` is at most the one in `other`, or at least it."""

    field: str
    other: str
    fix: str
    """What to write instead."""
    least: bool = False
    """At least, not at most."""

    def refusal(self, of: ApiModel) -> str | None:
        """Return what to say of these two values; None if nothing is wrong."""
        mine, others = getattr(of, self.field), getattr(of, self.other)
        if mine is None or others is None:
            return None
        one, two = _whole(self.field, mine), _whole(self.other, others)
        if one == two or (one > two) == self.least:
            return None
        names, fields = _names(type(of), self), type(of).model_fields
        return (
            f"{names[0]} {_shown(fields[self.field], self.field, mine)} is {self._than} "
            f"{names[1]} {_shown(fields[self.other], self.other, others)}; {self.fix}"
        )

    def rule(self, model: type[ApiModel]) -> Rule:
        """Return the CEL rule."""
        names = _names(model, self)
        mine, others = (f"self.{name}" for name in names)
        signs = ">=" if self.least else "<="
        kinds = [_sized(model.model_fields[one]) for one in (self.field, self.other)]
        if self.field.endswith("_s"):
            cel = f"duration({mine}) {signs} duration({others})"
            cel = guarded(cel, durations=(mine, others))
        elif all(kinds):
            cel = f"{as_bytes(mine)}.compareTo({as_bytes(others)}) {signs} 0"
            cel = guarded(cel, sizes=(mine, others))
        else:
            cel = f"{mine} {signs} {others}"
        absent = [
            f"!has({path})"
            for path, field in ((mine, self.field), (others, self.other))
            if not _always_there(model.model_fields[field])
        ]
        said = f"{names[0]} must not be {self._than} {names[1]}; {self.fix}"
        return Rule(" || ".join([*absent, cel]), said, f".{names[0]}")

    @property
    def _than(self) -> str:
        if self.field.endswith("_s"):
            return "shorter than" if self.least else "longer than"
        return "less than" if self.least else "more than"


@dataclass(frozen=True)
class Holds(Check, Generic[M]):
    """Anything that a function says of the object, and CEL in its words."""

    field: str
    holds: Callable[[M], bool]
    cel: str
    message: str

    def refusal(self, of: ApiModel) -> str | None:
        """Return the message, unless it holds."""
        return None if self.holds(of) else self.message  # type: ignore[arg-type]

    def rule(self, model: type[ApiModel]) -> Rule:
        """Return the CEL rule."""
        return Rule(self.cel, self.message, f".{model.api_field(self.field)}")


def at_most(field: str, other: str, fix: str) -> Order:
    """`field` is no more than `other`."""
    return Order(field, other, fix)


def at_least(field: str, other: str, fix: str) -> Order:
    """`field` is no less than `other`."""
    return Order(field, other, fix, least=True)


def _names(model: type[ApiModel], order: Order) -> tuple[str, str]:
    return model.api_field(order.field), model.api_field(order.other)


def _whole(field: str, value: float) -> int:
    """A number as a manifest has it: whole nanoseconds, or as it is."""
    return round(value * _NS) if field.endswith("_s") else int(value)


def _shown(info: FieldInfo, field: str, value: Any) -> str:
    if field.endswith("_s"):
        return format_duration(value)
    return format_quantity(value) if _sized(info) else str(value)


def _sized(field: FieldInfo) -> bool:
    """Whether the API has it as a quantity, such as 2Gi."""
    return any(isinstance(one, ByteText) for one in (*field.metadata, *_inside(field.annotation)))


def _inside(annotation: Any) -> list[Any]:
    known = list(getattr(annotation, "__metadata__", ()))
    return known + [one for part in get_args(annotation) for one in _inside(part)]


def _always_there(field: FieldInfo) -> bool:
    """Whether the API server sees it in every object: it is required, or has its default."""
    return field.is_required() or (field.default is not None and field.default_factory is None)
