"""Watches jobs on a GPU at their kernel launches.

The preloaded library sees in each launch's parameters which weights it reads, so a run shows order
and sizes without anything attached to the model. A few runs are compared; what no launch names, or
what changes between them, stays resident. What an observed run chose before is chosen again where
these runs allow it, so that its plan fits.

Times are by the GPU's own clock, gaps in which it waited for launches included. The launch of a
graph is one call, but the library puts events into a copy of it, so its layers have times, too. The
first timed run makes that copy; only the later ones count.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from tierline_client.launches import Launches
from tierline_torch.calls import plain
from tierline_torch.clean_launches import clean_launches
from tierline_torch.contents import Contents
from tierline_torch.errors import TierlineError
from tierline_torch.launch_order import Reads, explains, select_by_launches
from tierline_torch.launch_times import layer_times_s, typical_times_s
from tierline_torch.learned import LearnedOrders
from tierline_torch.learning import Recorder
from tierline_torch.replay import Replay
from tierline_torch.selection import Selection
from tierline_torch.survey import Lease, Timed, through
from tierline_torch.weights import Weight

_RUNS = 3
_TIMED_RUNS = 4
_LONG_S = 1.0
"""A job that takes longer is timed in one run behind the first: it is steady enough."""


class LaunchSurvey:
    """See `survey.Survey`."""

    kind = "cuda"

    def __init__(self, launches: Launches, learned: LearnedOrders) -> None:
        self._launches = launches
        self._learned = learned

    @classmethod
    def of_this_process(cls) -> LaunchSurvey:
        """The survey of this process. Raises TierlineError where the library is not preloaded."""
        if not torch.cuda.is_available():
            raise TierlineError("could not watch kernel launches: PyTorch finds no GPU")
        torch.cuda.init()
        launches = Launches()
        if not launches.active:
            raise TierlineError(
                "could not watch kernel launches: libtierline.so is not preloaded; "
                "start the program with LD_PRELOAD naming it"
            )
        launches.time_graphs()
        return cls(launches, LearnedOrders.of_this_process())

    def recorder(self) -> Recorder | None:
        """The repetitions are enough."""
        return None

    def look(
        self, recorded: Recorder | None, replay: Replay, weights: Sequence[Weight], lease: Lease
    ) -> tuple[Selection, int]:
        """Run the job a few times; the workspace is that of the last run.

        It is what the allocator keeps of the device beside the weights, the pools of captured
        graphs with it: that stays the process's between its jobs.
        """
        del recorded
        runs: list[Reads] = []
        peak_bytes = 0
        ranges = _ranges(weights)
        weights_bytes = sum(one.size_bytes for one in weights)
        for _ in range(_RUNS):
            with lease(), self._launches.watching(ranges), clean_launches():
                _reset_peak()
                replay.run(lambda *call: through(plain, *call))
                torch.cuda.synchronize()
                peak_bytes = max(0, torch.cuda.max_memory_reserved() - weights_bytes)
                runs.append(self._launches.reads())
        learned = self._learned.of(weights)
        if learned is not None and explains(learned, runs):
            return learned, peak_bytes
        return select_by_launches(len(weights), runs), peak_bytes

    def time(self, replay: Replay, contents: Contents, lease: Lease) -> Timed:
        """Take the time of the job's layers, over a few runs."""
        outputs, _, total_s = self._timed_run(replay, contents, lease)
        if not contents.layers:
            return Timed(outputs, total_s, [])
        runs: list[list[float]] = []
        while len(runs) < _TIMED_RUNS - 1 and (not runs or sum(runs[0]) < _LONG_S):
            outputs, layers_s, _ = self._timed_run(replay, contents, lease)
            runs.append(layers_s)
        return Timed(outputs, 0.0, typical_times_s(runs))

    def _timed_run(
        self, replay: Replay, contents: Contents, lease: Lease
    ) -> tuple[list[Any], list[float], float]:
        """Its outputs, the times of its layers, and that of all of it, seconds."""
        ranges = _ranges([weight for weight, _ in contents.placed])
        edges: list[torch.cuda.Event] = []

        def timed(*call: Any) -> Any:
            """Between two events, which leave out what the replay itself does before and after."""
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            output = through(plain, *call)
            end.record()
            edges.extend((begin, end))
            return output

        with lease(), self._launches.watching(ranges), self._launches.timing():
            torch.cuda.synchronize()
            outputs = replay.run(timed)
            torch.cuda.synchronize()
            total_s = edges[0].elapsed_time(edges[-1]) / 1e3
            reads, ends_s = self._launches.reads(), self._launches.times()
        layers = contents.layers
        return outputs, layer_times_s(layers, reads, ends_s, total_s) if layers else [], total_s

    def finish(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def tidy(self) -> None:
        """PyTorch keeps what it once had; other processes need it."""
        gc.collect()
        torch.cuda.empty_cache()


def _ranges(weights: Sequence[Weight]) -> list[tuple[int, int]]:
    return [(one.storage.data_ptr() + one.start, one.size_bytes) for one in weights]


def _reset_peak() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
