"""The field types of the API: durations, quantities, names and counts, each with its schema.

A type here carries its Python validation, its text form and its structural schema together, with
the bounds that CEL cost estimation needs (every text has a maxLength).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tierline_api.schema.base import Rule, is_stored, is_wire, rules
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
    shown,
)

LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_LABEL: Final = 63
SUBDOMAIN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
FRACTION: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)[mun]", re.ASCII)
"""A quantity in fractions of a byte: a slip, even if it is whole bytes."""
DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$"


def is_duration(cel: str) -> str:
    """Return a CEL expression: the text `cel`, up to MAX_TEXT, is one that `duration` can read."""
    return f"{cel}.matches(r'{DURATION_PATTERN}') && !{cel}.matches(r'{DURATION_TOO_LONG}')"


def is_bytes(cel: str) -> str:
    """Return a CEL expression: the int-or-string `cel` is a quantity, not in parts of a byte."""
    return f"isQuantity(string({cel})) && !string({cel}).matches('[mun]$')"


def as_bytes(cel: str) -> str:
    """Return a CEL expression for the int-or-string `cel` as a quantity."""
    return f"quantity(string({cel}))"


def sized(cel: str, least: int) -> str:
    """Return a CEL expression: the quantity `cel` is from `least` (0 or 1) to MAX_BYTES bytes.

    Less than a byte is none, and nothing else: it is refused everywhere.
    """
    low = f"{as_bytes(cel)}.compareTo(quantity('1')) >= 0"
    if not least:
        low = f"({as_bytes(cel)}.compareTo(quantity('0')) == 0 || {low})"
    return f"{low} && {as_bytes(cel)}.compareTo(quantity('{MAX_BYTES}')) <= 0"


def guarded(rule: str, *, durations: tuple[str, ...] = (), sizes: tuple[str, ...] = ()) -> str:
    """Return the CEL `rule`, true also where an operand is malformed: its own rule says that."""
    well_formed = [is_duration(d) for d in durations] + [is_bytes(s) for s in sizes]
    return " || ".join([*(f"!({check})" for check in well_formed), rule])


def differ(items: str, *fields: str) -> str:
    """Return a CEL expression: no two of the list `items` agree in all of these fields.

    The server compares the texts by itself: an expression for each pair took it 0.3 s of 96 links,
    at each pulse of their node.
    """
    text = " + ' ' + ".join(f"x.{field}" for field in fields)
    return f"{items}.map(x, {text}).distinct().size() == {items}.size()"


@dataclass(frozen=True)
class DurationText:
    """Seconds as a float in Python, a duration with a unit (``50ms``) in the API."""

    shortest: str
    longest: str

    @property
    def _advice(self) -> str:
        return f"write a duration from {self.shortest} to {self.longest}, such as 50ms or 1m30s"

    def _read(self, value: object, info: core_schema.ValidationInfo[Any]) -> float:
        duration_s: float
        if isinstance(value, str):
            try:
                duration_s = parse_duration(value)
            except OutOfRangeError:
                raise self._out_of_range(value) from None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise QuantityError(f"{shown(value)} is not a duration; {self._advice}")
        elif is_wire(info):
            raise ValueError(f"{shown(value)} has no unit; write {value}ms or {value}s")
        else:
            duration_s = value
        if not parse_duration(self.shortest) <= duration_s <= parse_duration(self.longest):
            raise self._out_of_range(value)
        return float(duration_s)  # not before: an integer may be too long for a float

    def _out_of_range(self, value: object) -> ValueError:
        return ValueError(f"{shown(value)} is out of range; {self._advice}")

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(format_duration),
        )

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        low, high = f"duration('{self.shortest}')", f"duration('{self.longest}')"
        in_range = f"duration(self) >= {low} && duration(self) <= {high}"
        return {
            "type": "string",
            "maxLength": MAX_TEXT,
            **rules(Rule(f"{is_duration('self')} && {in_range}", self._advice)),
        }


@dataclass(frozen=True)
class ByteText:
    """Bytes as an int in Python, a quantity (``512Mi``) or a whole number in the API."""

    least: int

    @property
    def _advice(self) -> str:
        return f"write a quantity of bytes from {self.least} to 1Ei, such as 512Mi or 2Gi"

    def _read(self, value: object) -> int:
        if isinstance(value, str):
            if len(value) <= MAX_TEXT and FRACTION.fullmatch(value):
                number = value[:-1].lstrip("+").rstrip(".")
                fix = f"write {number}M or {number}Mi"
                raise ValueError(f"{shown(value)} counts fractions of a byte; {fix}")
            try:
                size_bytes = parse_quantity(value)
            except OutOfRangeError:
                raise self._out_of_range(value) from None
        elif isinstance(value, bool) or not isinstance(value, int):
            raise QuantityError(f"{shown(value)} is not a quantity of bytes; {self._advice}")
        else:
            size_bytes = value
        if not self.least <= size_bytes <= MAX_BYTES:
            raise self._out_of_range(value)
        return size_bytes

    def _out_of_range(self, value: object) -> ValueError:
        return ValueError(f"{shown(value)} is out of range; {self._advice}")

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(format_quantity),
        )

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": MAX_TEXT,
            **rules(Rule(f"{is_bytes('self')} && {sized('self', self.least)}", self._advice)),
        }


Seconds = Annotated[float, DurationText("0s", "24h")]
"""A duration, also none."""
PositiveSeconds = Annotated[float, DurationText("1us", "24h")]
"""A duration that is not 0."""
Bytes = Annotated[int, ByteText(0)]
"""A size that people write, also 0."""
PositiveBytes = Annotated[int, ByteText(1)]
"""A size that people write, not 0."""

_int64: Final = {"format": "int64"}
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES, json_schema_extra=_int64)]
"""A whole number, or a size in bytes, that machines write."""
PositiveCount = Annotated[int, Field(strict=True, ge=1, le=MAX_BYTES, json_schema_extra=_int64)]
"""A whole number above 0 that machines write."""
Index = Annotated[int, Field(strict=True, ge=0, le=2**20, json_schema_extra={"format": "int32"})]
"""The index of an extent."""
Flag = StrictBool

Label = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LABEL, pattern=LABEL_PATTERN)]
"""A DNS label, as Kubernetes names things that become parts of host names and paths."""


def is_label(cel: str) -> str:
    """Return a CEL expression: the text `cel` is a DNS label."""
    return f"size({cel}) <= {MAX_LABEL} && {cel}.matches(r'{LABEL_PATTERN}')"


def is_label_text(text: str) -> bool:
    """Say the same in Python."""
    return len(text) <= MAX_LABEL and re.match(LABEL_PATTERN + r"\Z", text, re.ASCII) is not None


def _or_stored(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    return value if is_stored(info) and isinstance(value, str) else handler(value)


Reference = Annotated[Label, WrapValidator(_or_stored)]
"""The name of an object whose name is a DNS label. What was stored while longer names were taken is
read as it is, and names nothing."""
Subdomain = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN_PATTERN)
]
"""A DNS subdomain, as Kubernetes names objects."""
Digest = Annotated[str, StringConstraints(min_length=64, max_length=64, pattern=DIGEST_PATTERN)]
"""A digest of 32 bytes in 64 lower-case hexadecimal digits."""
Text = Annotated[str, StringConstraints(max_length=253)]
"""A short free text."""
