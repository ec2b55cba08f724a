"""What all API models share: camelCase names, no unknown fields, and rules for the API server.

A model has two faces. In Python it is built by field names with plain numbers in units
(``period_s=0.05``); in a manifest, on the wire and in the cluster it has camelCase names and texts
with units (``period: 50ms``). `ApiModel.from_api` takes only the second face, so that a number
without a unit never slips through; `ApiModel.to_api` writes it. A rule over several fields is a
`Check`, of which both are made: what Python says, and what the API server does. Where the two have
to be worded apart, `cel_rules` stand next to a validator. The tests run both over the same cases.
The server asks such a rule of what changes alone: what was stored before there was the rule stays,
and `ApiModel.from_stored` reads it.
Models are immutable; a change is a `model_copy`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

API_GROUP: Final = "tierline.io"
API_VERSION: Final = "tierline.io/v1alpha1"
VERSION: Final = API_VERSION.removeprefix(f"{API_GROUP}/")
RULES = "x-kubernetes-validations"
_WIRE = {"wire": True}
_STORED = {**_WIRE, "stored": True}


class Rule(NamedTuple):
    """One CEL rule of the API server: an expression over `self`, and what to say if it is false."""

    cel: str
    message: str
    field: str = ""
    """Where to report it, below `self`, such as ``.deadline``."""


def rules(*of: Rule) -> dict[str, Any]:
    """Return the schema extension that carries `of`."""
    return {
        RULES: [
            {
                "rule": rule.cel,
                "message": rule.message,
                **({"fieldPath": rule.field} if rule.field else {}),
            }
            for rule in of
        ]
    }


def api_name(field: str) -> str:
    """Return a field's name in the API: camelCase, without the unit that its text carries."""
    return to_camel(field.removesuffix("_s"))


def is_wire(info: ValidationInfo) -> bool:
    """Say whether the value being validated came from a manifest or the API server."""
    return isinstance(info.context, dict) and info.context.get("wire") is True


def is_stored(info: ValidationInfo) -> bool:
    """Say whether the value being validated is one that the API server has taken."""
    return isinstance(info.context, dict) and info.context.get("stored") is True


class Check(ABC):
    """A rule over several fields of an object, for Python and for the API server."""

    field: str
    """Where it is reported, by its name in Python."""

    @abstractmethod
    def refusal(self, of: "ApiModel") -> str | None:
        """Return what is wrong with the object and the fix; None if nothing is."""

    @abstractmethod
    def rule(self, model: "type[ApiModel]") -> Rule:
        """Return the same for the API server."""


class ApiModel(BaseModel):
    """Base of every API model."""

    model_config = ConfigDict(
        alias_generator=api_name,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules over several fields, for the API server; Python validators say the same here."""
    checks: ClassVar[tuple[Check, ...]] = ()
    """Rules over several fields, for both."""

    @classmethod
    def api_field(cls, field: str) -> str:
        """Return the name in the API of the field that Python calls `field`."""
        return str(cls.model_fields[field].validation_alias)

    @classmethod
    def api_rules(cls) -> tuple[Rule, ...]:
        """Return all rules over several fields, for the API server."""
        return (*cls.cel_rules, *(check.rule(cls) for check in cls.checks))

    @classmethod
    def from_api(cls, data: object) -> Self:
        """Read the API's face of the model; raises pydantic.ValidationError."""
        return cls.model_validate(data, by_alias=True, by_name=False, context=_WIRE)

    @classmethod
    def from_stored(cls, data: object) -> Self:
        """Read what is in the cluster; raises pydantic.ValidationError.

        Rules over several fields are the server's to ask there: it knows what was stored before.
        """
        return cls.model_validate(data, by_alias=True, by_name=False, context=_STORED)

    @classmethod
    def of_stored(cls, **fields: Any) -> Self:
        """Put together parts that were read with `from_stored`: a constructor judges them again."""
        return cls.model_validate(fields, by_alias=True, by_name=True, context={"stored": True})

    def to_api(self) -> dict[str, Any]:
        """Return the API's face of the model: camelCase, units in texts, nothing that is None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Treat ``field: null`` as absent, as the API server does."""
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _passes_checks(self, info: ValidationInfo) -> Self:
        for check in () if is_stored(info) else self.checks:
            said = check.refusal(self)
            if said is not None:
                told = {"error": said, "rule": check.rule(type(self)).message}
                wrong = InitErrorDetails(
                    type=PydanticCustomError("value_error", "{error}", told),
                    loc=(self.api_field(check.field),),
                    input=getattr(self, check.field),
                )
                raise ValidationError.from_exception_data(type(self).__name__, [wrong])
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        if made := cls.api_rules():
            handler.resolve_ref_schema(schema).update(rules(*made))
        return schema
