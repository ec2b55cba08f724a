"""What happens around a gated module: wait for its extents and let them go, or take its time.

A gate gets every module call of a job in the job's own thread. Calls of other threads that belong
to the job are not gated: what they read, if it is not there, is fetched by the page fault that it
causes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

import torch

from tierline_torch.calls import original


class StreamGate:
    """Gates of a streamed job. Make one per job; `out_of_order` is called at most once."""

    def __init__(
        self,
        layers: Mapping[int, int],
        begin: Callable[[int], None],
        end: Callable[[int], None],
        out_of_order: Callable[[int], None],
    ) -> None:
        self._layers = layers
        self._begin = begin
        self._end = end
        self._out_of_order: Callable[[int], None] | None = out_of_order
        self._last = -1

    def __call__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call, gated if the module is a layer."""
        layer = self._layers.get(id(module))
        if layer is None:
            return original(module, *args, **kwargs)
        if layer <= self._last and self._out_of_order is not None:
            self._out_of_order(layer)
            self._out_of_order = None
        self._last = layer
        self._begin(layer)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._end(layer)


class ModuleStopwatch:
    """Takes the time from each gate to the next, so that everything between them is counted.

    See `survey.Stopwatch`.
    """

    learns = False

    def __init__(self, layers: Mapping[int, int]) -> None:
        self._layers = layers
        self._marks: list[tuple[int, int]] = []
        self._begin_ns = perf_counter_ns()
        self._end_ns = self._begin_ns

    def __call__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call, its begin noted if the module is a layer."""
        layer = self._layers.get(id(module))
        if layer is not None:
            self._marks.append((layer, perf_counter_ns()))
        return original(module, *args, **kwargs)

    def start(self) -> None:
        """A job begins now."""
        self._marks.clear()
        self._begin_ns = perf_counter_ns()

    def stop(self) -> None:
        """The job is over."""
        self._end_ns = perf_counter_ns()

    @property
    def total_s(self) -> float:
        """From begin to end, seconds."""
        return (self._end_ns - self._begin_ns) / 1e9

    def layer_times_s(self) -> tuple[float, list[float]]:
        """Seconds before the first gate (all, if there is none), and seconds of each layer."""
        times = [0.0] * len(self._layers)
        if not self._marks:
            return self.total_s, times
        ends = [mark[1] for mark in self._marks[1:]] + [self._end_ns]
        for (layer, begin), end in zip(self._marks, ends, strict=True):
            times[layer] += (end - begin) / 1e9
        return (self._marks[0][1] - self._begin_ns) / 1e9, times
