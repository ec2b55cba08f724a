"""Writes the CustomResourceDefinitions from the models.

Pydantic's JSON schema is turned into what the API server calls a structural schema: references
inlined, ``anyOf: [x, null]`` reduced to x (the API server prunes nulls), no ``additionalProperties:
false`` (it refuses or prunes unknown fields by itself), and only the keywords it knows. Bounds on
every text and list come from the models: the cost of the CEL rules is estimated from them. Output
depends on the models alone: the same models give the same bytes.

    python -m tierline_api.crdgen --write crds/
    python -m tierline_api.crdgen --check crds/
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tierline_api.generated import as_yaml, write_or_check
from tierline_api.objects.kinds import KINDS, Kind
from tierline_api.schema.base import API_GROUP, RULES, VERSION, ApiModel
from tierline_api.schema.quantities import format_duration

_KEPT: Final = frozenset(
    {"type", "description", "format", "enum", "pattern", "default", "required", "properties"}
    | {"items", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "anyOf"}
)
"""Keywords that a structural schema may have, in addition to the x-kubernetes extensions."""


_SCALE: Final = {
    "scale": {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
}


def crd(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of `kind`."""
    singular = kind.name.lower()
    columns = [
        {
            "name": column.name,
            "type": column.type,
            "jsonPath": column.path,
            "description": column.description,
            **({"priority": column.priority} if column.priority else {}),
        }
        for column in kind.columns
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": singular,
                "shortNames": [kind.short],
                "categories": ["tierline"],
            },
            "scope": kind.scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": {"status": {}, **(_SCALE if kind.scaled else {})},
                    "schema": {"openAPIV3Schema": structural_schema(kind.model)},
                }
            ],
        },
    }


def structural_schema(model: type[ApiModel]) -> dict[str, Any]:
    """Return the structural schema of an object of the API server."""
    source = model.model_json_schema(by_alias=True)
    definitions = source.pop("$defs", {})
    # The API server validates metadata itself and takes no schema for it.
    source["properties"]["metadata"] = {"type": "object"}
    root = _structural(source, definitions)
    properties = root["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    # Status is written later, through its subresource, by Tierline itself.
    properties.get("status", {}).pop("default", None)
    root["required"] = [name for name in root.get("required", ()) if name != "metadata"]
    if not root["required"]:
        del root["required"]
    return root


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with references inlined and everything dropped that is not structural."""
    merged: dict[str, Any] = dict(schema)
    if reference := merged.pop("$ref", None):
        # What is said at the field beats what is said at the type.
        merged = {**definitions[reference.removeprefix("#/$defs/")], **merged}
        return _structural(merged, definitions)
    branches = [b for b in merged.get("anyOf", ()) if b != {"type": "null"}]
    if len(branches) == 1:
        del merged["anyOf"]
        return _structural({**branches[0], **merged}, definitions)
    if "const" in merged:
        merged["enum"] = [merged.pop("const")]
    kept = {k: v for k, v in merged.items() if k != "title"}
    if kept.pop("additionalProperties", False):  # Kubernetes' own objects, of which we know a part
        kept["x-kubernetes-preserve-unknown-fields"] = True
        fields = kept.get("properties", {})
        kept["properties"] = {name: _without_default(field) for name, field in fields.items()}
    if foreign := {k for k in kept if not k.startswith("x-kubernetes-")} - _KEPT:
        raise ValueError(
            f"cannot write {sorted(foreign)} into a structural schema; bound otherwise"
        )
    if "x-kubernetes-int-or-string" in kept:
        kept.pop("type", None)
    if fields := kept.pop("properties", None):  # the API server drops an empty one
        kept["properties"] = {
            name: _structural(field, definitions) for name, field in fields.items()
        }
    if "items" in kept:
        kept["items"] = _structural(kept["items"], definitions)
    if kept.get("default", ()) is None:
        del kept["default"]
    if kept.get("type") == "string" and isinstance(kept.get("default"), float):
        kept["default"] = format_duration(kept["default"])  # seconds, as people write them
    return _ordered(kept)


def _without_default(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return `field` so that the API server writes nothing into it that nobody wrote."""
    return {key: value for key, value in field.items() if key != "default"}


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with what a reader wants first first."""
    first = ("type", "description", "default", "format", "enum", "pattern")
    last = ("required", "properties", "items", RULES)
    middle = [key for key in schema if key not in first and key not in last]
    return {key: schema[key] for key in (*first, *sorted(middle), *last) if key in schema}


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file that is generated."""
    for kind in KINDS:
        yield kind.file_name, as_yaml("tierline_api.crdgen", "crds", [crd(kind)])


def main(arguments: list[str] | None = None) -> int:
    """Write or check the CRDs; returns 1 when a checked file is not what the models say."""
    return write_or_check("tierline_api.crdgen", files(), arguments)


if __name__ == "__main__":
    sys.exit(main())
