"""Every field of the API, by name.

`MemTask.spec.swap.objects.name` is a field of an object in a list: indices are left out.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pydantic import BaseModel

from tierline_api.objects.kinds import KINDS


def api_fields() -> set[str]:
    """The leaves of all kinds, metadata and its like left out: Kubernetes defines these."""
    found = {f"{kind.name}{field}" for kind in KINDS for field in _leaves(kind.model)}
    return {one for one in found if one.split(".")[1] in {"spec", "status"}}


def _leaves(model: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{before}.{field.serialization_alias or field.alias or name}"
        inner = list(_models(field.annotation))
        if not inner:
            yield path
        for one in inner:
            yield from _leaves(one, path)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in typing.get_args(annotation):
        yield from _models(one)


def leaves_of(value: object, before: str) -> Iterator[tuple[str, object]]:
    """The leaves of an object as it is written, each with its path."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves_of(one, f"{before}.{name}")
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for one in value:
            yield from leaves_of(one, before)
    else:
        yield before, value
