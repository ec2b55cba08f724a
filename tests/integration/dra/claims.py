"""Claims as the operator leaves them."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from tests.integration.agent.agent_process import plan

NODE = "node-here"
TERMS: dict[str, Any] = {
    "realtime": {"period": "1s", "deadline": "500ms", "criticality": "Hard"},
    "memory": {"budget": "4Mi", "reserved": "0"},
    "swap": {"policy": "Auto", "tiers": ["dram"]},
    "device": {"kind": "cpu"},
}


def notes(
    standing: str = "Planned",
    *,
    extents: int = 4,
    resident: int = 0,
    terms: dict[str, Any] | None = None,
    among_others: bool = False,
) -> dict[str, str]:
    """The operator's annotations; `among_others`: measured so, by a limit of 500 ms."""
    if among_others:
        extents, terms = 0, {"realtime": TERMS["realtime"] | {"measuringLimit": "500ms"}}
    granted = {
        "tierline.io/standing": standing,
        "tierline.io/order": "1",
        "tierline.io/terms": json.dumps(TERMS | (terms or {})),
    }
    if standing != "Profiling" or among_others:
        ring = min(2, extents - resident)
        planned = plan(extents, resident=tuple(range(resident)), ring=ring)
        granted["tierline.io/plan"] = json.dumps(planned)
    return granted


def results(node: str = NODE, device: str = "cpu") -> list[dict[str, Any]]:
    """The devices of an allocation."""
    return [
        {
            "request": "device",
            "driver": "tierline.io",
            "pool": node,
            "device": device,
            "shareID": str(uuid4()),
        }
    ]


def claim(
    name: str = "camera-1",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    allocated: list[dict[str, Any]] | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """A claim that the operator allocated, but for what is given."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid or str(uuid4()),
            "labels": {"tierline.io/task": "camera", "tierline.io/node": NODE}
            if labels is None
            else labels,
            "annotations": notes() if annotations is None else annotations,
        },
        "status": {
            "allocation": {"devices": {"results": results() if allocated is None else allocated}}
        },
    }
