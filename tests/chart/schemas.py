"""JSON schemas of Kubernetes' own kinds, as the API server that runs describes them.

kubeconform usually fetches such schemas; what the pinned API server says of itself needs no network
and is of the very release. One file a kind, complete in itself, and strict: a field that the server
does not know is a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tierline_cluster.api import Api

TEMPLATE: Final = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""The files' names, as kubeconform is told them."""
_PREFIX: Final = "#/definitions/"
_MACHINERY: Final = "io.k8s.apimachinery.pkg"
_NUMBER_TOO: Final = (
    f"{_MACHINERY}.api.resource.Quantity",
    f"{_MACHINERY}.util.intstr.IntOrString",
)
"""Types that are described as texts and taken as numbers, too."""


def write_schemas(api: Api, folder: Path) -> None:
    """Write the schema of each kind into `folder`."""
    definitions = {
        name: _strict(name, schema)
        for name, schema in api.request("GET", "/openapi/v2")["definitions"].items()
    }
    for name, schema in definitions.items():
        for kind in schema.pop("x-kubernetes-group-version-kind", ()):
            needed = {needed: definitions[needed] for needed in _closure(definitions, name)}
            document = {"$ref": _PREFIX + name, "definitions": needed}
            (folder / _file_name(**kind)).write_text(json.dumps(document))


def _file_name(group: str, version: str, kind: str) -> str:
    parts = [kind.lower(), *([group.partition(".")[0]] if group else []), version.lower()]
    return "-".join(parts) + ".json"


def _strict(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` such that it has no other fields than those it names."""
    if name in _NUMBER_TOO:
        return {"type": ["string", "number"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        return schema | {"additionalProperties": schema.get("additionalProperties", False)}
    return schema


def _closure(definitions: dict[str, Any], name: str) -> set[str]:
    """Return the names of `name` and all that it refers to."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        here = ahead.pop()
        if here not in found:
            found.add(here)
            ahead += _references(definitions[here])
    return found


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(_PREFIX)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)
