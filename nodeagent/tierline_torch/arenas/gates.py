"""Gates around modules: wait for a module's extents and let them go, or take its time.

A gate gets every module call of a job in the job's own thread. Calls of other threads that belong
to the job are not gated: what they read, if it is not there, is fetched by the page fault that it
causes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

import torch

from tierline_torch.calls import Gate


class StreamGate(Gate):
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

    def enter(self, module: torch.nn.Module) -> int | None:
        """Wait for the weights, if the module is a layer."""
        layer = self._layers.get(id(module))
        if layer is None:
            return None
        if layer <= self._last and self._out_of_order is not None:
            self._out_of_order(layer)
            self._out_of_order = None
        self._last = layer
        self._begin(layer)
        return layer

    def leave(self, entered: int | None) -> None:
        """Let the weights go."""
        if entered is not None:
            self._end(entered)


class ModuleStopwatch(Gate):
    """Takes the time from each gate to the next, so that everything between them is counted.

    See `survey.Stopwatch`.
    """

    learns = False

    def __init__(self, layers: Mapping[int, int]) -> None:
        self._layers = layers
        self._marks: list[tuple[int, int]] = []
        self._begin_ns = perf_counter_ns()
        self._end_ns = self._begin_ns

    def enter(self, module: torch.nn.Module) -> None:
        """Note when a layer begins."""
        layer = self._layers.get(id(module))
        if layer is not None:
            self._marks.append((layer, perf_counter_ns()))

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
