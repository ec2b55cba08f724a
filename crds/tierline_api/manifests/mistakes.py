"""Turns what pydantic found wrong into one sentence: which field, what is wrong, what to write.

Pure: it looks at models and errors and formats text. Values and names come from files that nobody
vouches for, so whatever is shown is shortened and printable.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from inspect import isclass
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tierline_api.objects.swap import OBJECT_PATTERN
from tierline_api.schema.fields import DIGEST_PATTERN, LABEL_PATTERN, SUBDOMAIN_PATTERN
from tierline_api.schema.quantities import shown

_PATTERNS: Final = {
    LABEL_PATTERN: "write lower-case letters, digits and '-', with a letter or digit at both ends",
    SUBDOMAIN_PATTERN: "write lower-case letters, digits, '-' and '.', as in a host name",
    OBJECT_PATTERN: "write names of layers, such as embed.*, or with policy Swap numbers of "
    "allocations, such as #0, #3-7 or #3-",
    DIGEST_PATTERN: "write 64 lower-case hexadecimal digits",
}
_WANTED: Final = {
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "a text; put it in quotes",
    "int_type": "a whole number without quotes",
    "int_from_float": "a whole number without quotes",
    "bool_type": "true or false",
}


class Mistake(NamedTuple):
    """What is wrong in one field, and the fix."""

    field: str
    problem: str


def first_mistake(model: type[BaseModel], error: ValidationError) -> Mistake:
    """Return the mistake to tell first: an unknown name explains the missing one next to it."""
    order = {"extra_forbidden": 0, "missing": 2, "too_short": 3, "default_factory_not_called": 4}
    details = min(error.errors(include_url=False), key=lambda d: order.get(d["type"], 1))
    return Mistake(_path(details["loc"]), _problem(model, details))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown `word`: the known one it resembles, or all of them."""
    words = sorted(known)
    folded = {name.lower(): name for name in words}
    close = get_close_matches(word[:64].lower(), folded, n=1, cutoff=0.7)
    if close:
        return f"did you mean {folded[close[0]]}?"
    return f"write one of {', '.join(words)}" if words else "remove it"


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            plain = part.replace("-", "").replace("_", "").replace(".", "").isalnum()
            path += f"{'.' if path else ''}{part if plain and len(part) < 64 else shown(part)}"
    return path


def _problem(model: type[BaseModel], details: ErrorDetails) -> str:
    """Return what is wrong and the fix."""
    given, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden" | "missing":
            return _wrong_name(model, details)
        case "value_error":
            return str(context.get("error", details["msg"]))
        case "enum":
            fix = suggestion(given if isinstance(given, str) else "", _choices(model, details))
        case "string_pattern_mismatch":
            pattern = context.get("pattern", "")
            fix = _PATTERNS.get(pattern, f"it must match {pattern}")
        case "too_short":
            fix = f"write at least {context.get('min_length')} of them"
        case "too_long":
            fix = f"write at most {context.get('max_length')} of them"
        case kind if kind in _WANTED:
            fix = f"write {_WANTED[kind]}"
        case _:
            fix = f"it must {details['msg'].rpartition(' should ')[2]}"
    return f"{shown(given)} is not valid; {fix}"


def _wrong_name(model: type[BaseModel], details: ErrorDetails) -> str:
    """Return what to say of a field that is unknown, or missing."""
    name, fields = str(details["loc"][-1]), _fields_at(model, details["loc"][:-1])
    if details["type"] == "extra_forbidden":
        return f"there is no such field; {suggestion(name, fields)}"
    told = (fields[name].description or "") if name in fields else ""
    what = " ".join(told.split()).rstrip(".")  # a docstring has several lines
    return f"is missing; write {name}" + (f" ({what[:1].lower()}{what[1:]})" if what else "")


def _choices(model: type[BaseModel], details: ErrorDetails) -> list[str]:
    """Return the words that the field may have."""
    loc = details["loc"]
    while isinstance(loc[-1], int):
        loc = loc[:-1]
    field = _fields_at(model, loc[:-1]).get(str(loc[-1]))
    return [str(v.value) for enum in _enums(field.annotation if field else None) for v in enum]


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> dict[str, FieldInfo]:
    """Return the fields, by their names in the API, of the model at `loc` inside `model`."""
    fields = _api_fields(model)
    for part in loc:
        if isinstance(part, str):
            field = fields.get(part)
            inner = _model_in(field.annotation) if field else None
            fields = _api_fields(inner) if inner else {}
    return fields


def _api_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {str(f.validation_alias or name): f for name, f in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)


def _enums(annotation: Any) -> list[type[Enum]]:
    if isclass(annotation) and issubclass(annotation, Enum):
        return [annotation]
    return [enum for arg in get_args(annotation) for enum in _enums(arg)]
