"""The page of the agent's settings, from the model that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierline_agent.config import AgentConfig

PAGE = "agent.md"
_HEAD = """# Settings of the agent

One JSON file: `tierline agent --config agent.json`. `tierline run` writes its own; the chart one
for each pool, from its [values](../../charts/tierline/README.md#values). A field in bold must be
there; what is unknown or contradicts itself is refused.

| field | value | meaning |
|---|---|---|
"""
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "maxItems": "at most {}",
}


def page() -> str:
    """The whole page."""
    schema = AgentConfig.model_json_schema()
    return _HEAD + "".join(f"{row}\n" for row in _rows(schema, schema["$defs"], ""))


def _rows(schema: Mapping[str, Any], shapes: Mapping[str, Any], before: str) -> Iterator[str]:
    """A row for each field, with those of an object below it."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        found = _found(field, shapes)
        path = f"{before}{name}"
        shown = f"**`{path}`**" if name in required else f"`{path}`"
        meaning = " ".join(field.get("description", "").split()).replace("|", "\\|")
        yield f"| {shown} | {_value(field, found)} | {meaning} |"
        if "properties" in found:
            yield from _rows(found, shapes, f"{path}[]." if _is_list(field) else f"{path}.")


def _found(field: Mapping[str, Any], shapes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field, or of each of its elements: null is another way to leave it out."""
    of = next((one for one in field.get("anyOf", ()) if one.get("type") != "null"), field)
    of = of.get("items", of)
    found: Mapping[str, Any] = shapes[of["$ref"].rpartition("/")[2]] if "$ref" in of else of
    return found


def _is_list(field: Mapping[str, Any]) -> bool:
    return field.get("type") == "array"


def _value(field: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The values of a field, and its default."""
    kind = ", ".join(f"`{one}`" for one in found["enum"]) if "enum" in found else found["type"]
    words = [f"list of {kind}" if _is_list(field) else kind]
    words += [text.format(found[bound]) for bound, text in _BOUNDS.items() if bound in found]
    if isinstance(field.get("default"), bool | int | float | str):
        words.append(f"default `{field['default']}`")
    return "; ".join(words)
