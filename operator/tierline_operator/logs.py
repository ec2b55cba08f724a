"""Log lines: one JSON object each, or plain text for a terminal. Keys never change their spelling.

A message says what was done or attempted, on what, and the cause; what a script wants to match is
in fields of its own (`extra={"task": …}`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

FIELDS: Final = ("task", "claim", "pod", "node", "device", "profile", "reason", "lease")
"""The fields that lines may carry."""


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: str(getattr(record, name)) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(log_format: str, level: str) -> None:
    """Send the lines of all loggers to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kopf tells of its own tasks; the operator's lines say what was done.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, root.level))
    # Nor a line for each probe of the kubelet.
    logging.getLogger("aiohttp.access").setLevel(max(logging.WARNING, root.level))
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))
