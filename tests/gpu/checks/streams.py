"""Models with weights that stream through a small ring give, bit by bit, what they give resident.

Run by `make gpu-test`; needs a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.gpu.bench.streaming import agent, managed, observed, observer, plan_for, task_of

from tierline_api.layout import LayerShape

_EXTENT_BYTES = 8 << 20
_JOBS = 12
_ROUNDING_BYTES = 64 << 20
"""What PyTorch's allocator may take in larger pieces at another time."""


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """An agent of the first GPU."""
    with agent(_EXTENT_BYTES, 16 << 30, 8 << 30) as one:
        yield one


@functools.cache
def alone_with(model: str, mode: str) -> tuple[dict[str, Any], list[LayerShape]]:
    """What a model gives by itself, and its layers."""
    return observed(observer(model, mode, _JOBS))


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("mode", ["eager", "graph", "compile"])
@pytest.mark.parametrize("model", ["llama-small", "resnet152"])
def test_streamed_as_resident(running: Any, model: str, mode: str, share: float) -> None:
    local, admin = running
    program = task_of(local, f"{model}-{mode}", model, mode, _JOBS)
    alone, layers = alone_with(model, mode)
    plan = plan_for(layers, _EXTENT_BYTES, share, alone["workspace_bytes"])
    assert plan.streamed_extents
    report = managed(local, admin, f"{model}-{mode}", plan, program)
    assert report["digests"] == alone["digests"]
    # PyTorch itself captures another path of a model that looks at values than the one it ran.
    assert len(report["digests"]) == (2 if alone["looks"] else 1)
    # Its weights have left the process's own memory: what that keeps is what its profile says.
    assert report["reserved_bytes"] <= alone["workspace_bytes"] + _ROUNDING_BYTES
    task = report["snapshot"]
    assert not [one for one in task["notices"] if one["kind"] == "order_changed"]
    weights = plan.extent_bytes * len(plan.streamed_extents)
    assert task["streamed_bytes"] > (_JOBS - 1) * weights
