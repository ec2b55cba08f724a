"""Events about objects, as `kubectl describe` shows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tierline_kube.resource import EVENT, Json

_LONGEST_NOTE: Final = 1024
"""In bytes: so the API server counts."""
_LONGEST_INSTANCE: Final = 128
_LONGEST_STEM: Final = 200


@dataclass(frozen=True)
class Reporter:
    """The controller that reports an event, and on which work of its own."""

    controller: str
    instance: str
    action: str


def event(
    reporter: Reporter, regarding: Json, reason: str, note: str, at_ns: int, *, normal: bool
) -> Json:
    """The body of an Event about the object that `regarding` names, at `at_ns` since 1970.

    Its type is Warning unless `normal`. `Resource.reference` makes such names.
    """
    stem = regarding["name"][:_LONGEST_STEM].rstrip("-.")
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    return {
        "apiVersion": EVENT.group_version,
        "kind": EVENT.kind,
        "metadata": {
            "namespace": regarding.get("namespace") or "default",
            # kubectl shows events of one second in the order of their names.
            "name": f"{stem}.{at_ns:016x}",
        },
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Normal" if normal else "Warning",
        "reason": reason,
        "action": reporter.action,
        "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
        "reportingController": reporter.controller,
        "reportingInstance": reporter.instance[:_LONGEST_INSTANCE],
        "regarding": regarding,
    }
