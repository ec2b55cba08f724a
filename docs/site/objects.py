"""The page of the API's objects: each field of each kind, from the schemas that the CRDs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierline_api.crdgen import structural_schema
from tierline_api.objects.kinds import KINDS, Kind
from tierline_api.schema.base import API_VERSION

PAGE = "api.md"
_HEAD = f"""# Objects of the API

`apiVersion: {API_VERSION}`. A field in bold must be there; `status` is written by Tierline.
What is refused in addition, with the sentence that says so: [refusals](refusals.md).
"""
_NO_BOUND = 2**32
_BOUNDS = (
    *(("minimum", "≥ {}"), ("maximum", "≤ {}")),
    *(
        ("minItems", "at least {}"),
        ("maxItems", "at most {}"),
        ("maxLength", "up to {} characters"),
    ),
)


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_section(kind) for kind in KINDS)


def _section(kind: Kind) -> str:
    schema = structural_schema(kind.model)
    told = f"{_line(schema)} {kind.scope}; `kubectl get {kind.plural}`, `{kind.short}`."
    text = f"\n## {kind.name}\n\n{told}\n"
    for name in ("spec", "status"):
        if part := schema["properties"].get(name):
            rows = "\n".join(_rows(part, name))
            text += f"\n| field | value | meaning |\n|---|---|---|\n{rows}\n"
    return text


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """A row for each field below this one."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        shown = f"**`{where}`**" if name in required else f"`{where}`"
        yield f"| {shown} | {_value(field)} | {_line(field)} |"
        yield from _rows(field, where)
        yield from _rows(field.get("items", {}), f"{where}[]")


def _value(field: Mapping[str, Any]) -> str:
    """The values of a field, and its default."""
    words = [", ".join(f"`{one}`" for one in field["enum"])] if "enum" in field else [_type(field)]
    words += [
        text.format(field[key]) for key, text in _BOUNDS if field.get(key, _NO_BOUND) < _NO_BOUND
    ]
    if isinstance(field.get("default"), bool | int | str):
        words.append(f"default `{field['default']}`")
    return "; ".join(words)


def _type(field: Mapping[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in field:
        return "integer or string"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    return str(field.get("format") or field.get("type") or "anything")


def _line(schema: Mapping[str, Any]) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|")
