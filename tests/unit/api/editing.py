"""Objects of the API with fields edited."""

from copy import deepcopy
from typing import Any, Final

REMOVED: Final = object()


def edited(good: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `good` with the value at each path (parts joined by ``__``) replaced."""
    result = deepcopy(good)
    for path, value in edits.items():
        *parts, last = path.split("__")
        into: Any = result
        for part in parts:
            into = into[int(part)] if part.isdigit() else into.setdefault(part, {})
        if value is REMOVED:
            into.pop(last, None)
        else:
            into[int(last) if last.isdigit() else last] = value
    return result
