"""The objects that Python's collector tracks, also where the program lets it pass over some."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any


def tracked() -> list[Any]:
    """All of them, in a list that is not one of them.

    A server that forks, and a periodic loop, let the collector pass over what is there
    (`gc.freeze`). Where one did, it passes over all that are there now.
    """
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


def of_kinds(objects: Iterable[Any], kinds: tuple[type, ...]) -> list[Any]:
    """Those of these types or of types derived from them.

    Each type is asked once, and no object: `isinstance` would ask the object, whose answer is the
    program's.
    """
    known: dict[type, bool] = {}
    found = []
    for one in objects:
        its = type(one)
        fits = known.get(its)
        if fits is None:
            fits = known[its] = issubclass(its, kinds)
        if fits:
            found.append(one)
    return found
