"""The rules of a MemTask for a task that a pod's annotations describe: derived, not written again.

A rule of the models is an expression over fields of one object, `self`. Where every field that it
names comes from an annotation, the same expression holds of the annotations: `self.budget` becomes
the text of `tierline.io/budget`. In Python the annotations become a spec, which the models judge.
A rule over a field without an annotation says nothing here: the field has its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tierline_api.objects.memtask import MemTaskSpec
from tierline_api.objects.optin import INLINE, INLINE_TRAINS
from tierline_api.schema.base import ApiModel, Rule

LISTS: Final = frozenset({("swap", "tiers")})
"""Fields that are lists; in an annotation their items are separated by commas."""
_FIELD: Final = re.compile(r"\bself((?:\.[a-zA-Z_]+(?![a-zA-Z_(]))+)")
"""A field, without the method that may be called of it."""


@dataclass(frozen=True)
class InlineRule:
    """A rule of the models, of annotations."""

    cel: str
    """It, where all that it is about are there and right in themselves."""
    annotations: tuple[str, ...]
    """Those that it is about; without one of them, or if one is wrong in itself, it holds."""
    says: str
    """The annotation that is to blame, and what is wrong."""
    field: tuple[str, ...]
    """Where the models report it in the spec; or in the object that has the rule, by its words."""
    has: tuple[str, ...]
    """That object."""
    words: str

    def broken(self, annotations: Mapping[str, str]) -> bool:
        """Whether the models refuse what these annotations, each right in itself, say together."""
        if not set(self.annotations) <= annotations.keys():
            return False
        try:
            MemTaskSpec.from_api(spec_of(annotations))
        except ValidationError as error:
            return any(self._is_told(details) for details in error.errors(include_url=False))
        return False

    def _is_told(self, details: ErrorDetails) -> bool:
        if details["type"] != "value_error":
            return False
        rule = details.get("ctx", {}).get("rule")  # of a check, which may not be all of its field
        if rule is not None:
            return details["loc"] == self.field and rule == self.words
        return details["loc"] == self.field or (
            details["loc"] == self.has and self.words in details["msg"]
        )


def spec_of(annotations: Mapping[str, str]) -> dict[str, Any]:
    """The spec of the MemTask that inline annotations describe, as a manifest has it."""
    spec: dict[str, Any] = {}
    for name, path in INLINE.items():
        if name not in annotations:
            continue
        *groups, last = path
        into = spec
        for group in groups:
            into = into.setdefault(group, {})
        text = annotations[name]
        if name == INLINE_TRAINS:
            into[last] = {}
            continue
        into[last] = [part.strip() for part in text.split(",")] if path in LISTS else text
    return spec


def inline_rules() -> Iterator[InlineRule]:
    """Yield the rules of MemTaskSpec that annotations alone can break."""
    for path, rule in _rules(MemTaskSpec, ()):
        made = _translated(path, rule)
        if made is not None:
            yield made


def _rules(model: type[ApiModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Rule]]:
    for rule in model.api_rules():
        yield path, rule
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, ApiModel):
                yield from _rules(inner, (*path, str(field.validation_alias or name)))


def _translated(path: tuple[str, ...], rule: Rule) -> InlineRule | None:
    names = {where: name for name, where in INLINE.items()}
    used: dict[str, str] = {}
    for match in _FIELD.finditer(rule.cel):
        parts = match[1].split(".")[1:]
        name = names.get((*path, *parts))
        if name is None:
            return None
        used[".".join(parts)] = name
    cel = rule.cel
    for dotted, name in sorted(used.items(), key=lambda item: -len(item[0])):
        text = f"variables.annotations['{name}']"
        if INLINE[name] in LISTS:
            text += ".split(',').map(w, w.trim())"
        cel = cel.replace(f"has(self.{dotted})", f"('{name}' in variables.annotations)")
        cel = re.sub(rf"\bself\.{re.escape(dotted)}\b", lambda _, text=text: text, cel)  # type: ignore[misc]
    said = tuple(used.values())
    field = (*path, *filter(None, rule.field.split(".")))
    blamed = names.get(field, said[0])
    return InlineRule(
        cel=cel,
        annotations=said,
        says=f"the annotation {blamed} is not valid; {_renamed(rule.message, path, names)}",
        field=field,
        has=path,
        words=rule.message,
    )


def _renamed(message: str, path: tuple[str, ...], names: Mapping[tuple[str, ...], str]) -> str:
    """The sentence of a rule, with fields called by their annotations."""
    for where, name in names.items():
        if where[:-1] == path and path:
            short = name.removeprefix("tierline.io/")
            message = re.sub(rf"\b{where[-1]}\b", short, message)
    return message
