"""The needs of a pod on its node, read from the spec that the API server sends. Pure.

Never raises: a template may hold anything, and what is no pod spec asks for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierline_api.objects.optin import GATE
from tierline_operator.placement.needs.fitting import Needs, Requirement, Term, Toleration


def needs_of(spec: Any) -> Needs:
    """The needs of a pod with that spec."""
    selector = _mapping(_get(spec, "nodeSelector"))
    return Needs(
        selector=tuple(sorted((str(key), str(value)) for key, value in selector.items())),
        affinity=_affinity(spec),
        tolerations=tuple(
            Toleration(
                key=_text(one, "key"),
                operator=_text(one, "operator") or "Equal",
                value=_text(one, "value"),
                effect=_text(one, "effect"),
            )
            for one in _items(_get(spec, "tolerations"))
        ),
        gates=tuple(
            name
            for name in (_text(one, "name") for one in _items(_get(spec, "schedulingGates")))
            if name != GATE
        ),
    )


def _affinity(spec: Any) -> tuple[Term, ...] | None:
    node = _get(_get(spec, "affinity"), "nodeAffinity")
    required = _get(node, "requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    return tuple(
        Term(
            labels=tuple(_requirements(_get(term, "matchExpressions"))),
            fields=tuple(_requirements(_get(term, "matchFields"))),
        )
        for term in _items(_get(required, "nodeSelectorTerms"))
    )


def _requirements(found: Any) -> Iterator[Requirement]:
    for one in _items(found):
        values = tuple(map(str, _list(_get(one, "values"))))
        yield Requirement(_text(one, "key"), _text(one, "operator"), values)


def _get(found: Any, name: str) -> Any:
    return _mapping(found).get(name)


def _text(found: Any, name: str) -> str:
    value = _get(found, name)
    return "" if value is None else str(value)


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _items(found: Any) -> list[Any]:
    return [one for one in _list(found) if isinstance(one, Mapping)]
