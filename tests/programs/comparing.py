"""What a program saw of being observed or managed: the difference to running plain."""

from __future__ import annotations

from typing import Any

_SHOWN = 160


def difference(plain: dict[str, Any], under: dict[str, Any]) -> str | None:
    """Say how two results of one program differ, or None."""
    if "ended" in plain:
        return None
    if "ended" in under:
        return f"{under['ended']}: {' | '.join(under['log'])}"
    for what in ("raised", "files", "printed"):
        if plain[what] != under[what]:
            return f"{what}: plain {_short(plain[what])}, under {_short(under[what])}"
    for index, (one, other) in enumerate(zip(plain["said"], under["said"], strict=False)):
        if one != other:
            return f"said {index}: plain {_short(one)}, under {_short(other)}"
    if len(plain["said"]) != len(under["said"]):
        return f"said {len(plain['said'])} times plain, {len(under['said'])} under"
    return None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
