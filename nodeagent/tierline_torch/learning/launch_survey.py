"""Watches jobs on a GPU at their kernel launches.

The preloaded library sees in each launch's parameters which weights it reads, so a job shows order
and sizes without anything attached to the model. A few jobs are recorded, each run once by the
program; what no launch names, or what changes between them, stays resident. What an observed run
chose before is chosen again where the first job here allows it, so that its plan fits.

Times are by the GPU's own clock, gaps in which it waited for launches included. The launch of a
graph is one call, but the library puts events into a copy of it, so its layers have times, too. The
first timed job makes that copy; only the later ones are used. None of them counts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any

import torch

from tierline_client import GiveBack
from tierline_client.launches import Launches
from tierline_torch.arenas.contents import Contents
from tierline_torch.arenas.selection import Run, Selection
from tierline_torch.calls import plain
from tierline_torch.capture.captured import preparations
from tierline_torch.errors import TierlineError
from tierline_torch.learning.launch_order import Reads, explains, select_by_launches
from tierline_torch.learning.launch_times import layer_times_s
from tierline_torch.tensors.looking import byte_range
from tierline_torch.tensors.operators import OVER, OperatorWatch, resume, unseen, written_by
from tierline_torch.tensors.weights import Weight

_RUNS = 3
_MOST_RUNS = 8
"""Of a job of which each makes ready for another graph, as one whose inputs grow."""
_TIMED_JOBS = 4
_MANY_READS = 8192
"""Of one job: of more, as of a loop that generates, the first and the last of each weight say what
is to be known, that it is read again."""


class LaunchRecorder(OperatorWatch):
    """See `survey.Recorder`. It can watch only the weights that it is given when the job begins.

    Operators find a clean stack, so that launches name only what they read.
    """

    def __init__(self, launches: Launches) -> None:
        self.modules: dict[int, torch.nn.Module] = {}
        self.workspace_bytes: int | None = None
        self._launches = launches
        self._places: dict[tuple[int, int], int] = {}
        self._reads: Reads = ()
        self._addressed: set[int] = set()
        self._graphed: set[int] = set()
        self._prepared = preparations()
        self.prepares = False
        """Whether the job made ready for a graph: it is another one's from the next time on."""
        self._writes: set[tuple[int, int, int]] = set()
        self._marks: list[tuple[Weight, torch.Tensor]] = []
        """Of what was in buffers when the job began: compiled code writes to them unseen."""
        self._watching = ExitStack()

    def begin(self, weights: Sequence[Weight], taken: list[GiveBack]) -> None:
        """Watch these weights. Those in an arena are not shown.

        What PyTorch keeps of earlier work is no part of the job's workspace.
        """
        taken += OVER
        torch.cuda.empty_cache()
        self._prepared = preparations()
        with unseen():
            self._marks = [(one, mark(one.content())) for one in weights if one.in_buffers]
        places = _ranges(weights)
        self._places = {place: at for at, place in enumerate(places)}
        self._watching.enter_context(self._launches.watching(places))
        self._watching.enter_context(self)

    def enter(self, module: torch.nn.Module) -> int:
        """Operators are seen again after a transform."""
        del module
        resume()
        return 0

    def leave(self, entered: int) -> None:
        """Launches tell it all."""

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note what the operator writes, and clear the stack."""
        for tensor in written_by(operator, args, kwargs):
            where = byte_range(tensor, "cuda")
            if where is not None:
                self._writes.add(where)
        self._launches.clear_stack()

    def end(self) -> None:
        """Take what the launches named, when they are done."""
        with self._watching:
            torch.cuda.synchronize()
            self._reads = _few(self._launches.reads())
            self._addressed = self._launches.addressed()
            self._graphed = self._launches.in_graphs()
        with unseen():
            for one, before in self._marks:
                if not torch.equal(before, mark(one.content())):
                    self._writes.add((one.storage._cdata, one.start, one.end))
        self._marks.clear()
        # What PyTorch keeps, and what libraries have from the driver themselves. A pool of the
        # driver's keeps more than is in use.
        self.workspace_bytes = max(self._launches.held_bytes, torch.cuda.memory_reserved())
        self.prepares = self._prepared != preparations()

    def run(self, weights: Sequence[Weight]) -> Run | None:
        """The record of the job.

        None if some of these weights were not watched, or memory could not be searched for them.
        """
        number = {}
        for index, place in enumerate(_ranges(weights)):
            watched = self._places.get(place)
            if watched is None:
                return None
            number[watched] = index
        writes = {
            index
            for index, weight in enumerate(weights)
            for storage, first, end in self._writes
            if storage == weight.storage._cdata and first < weight.end and weight.start < end
        }
        in_memory = self._launches.in_memory(_ranges(weights))
        if in_memory is None:
            return None
        addressed = in_memory | {number[one] for one in self._addressed if one in number}
        return Run(
            (),
            tuple((launch, number[one]) for launch, one in self._reads if one in number),
            frozenset(writes),
            frozenset(addressed),
            frozenset(number[one] for one in self._graphed if one in number),
        )


_COLUMNS = 1024


def mark(content: torch.Tensor) -> torch.Tensor:
    """Sums of these bytes in groups, by row and by column: other ones when the bytes are others.

    But for some exchanges of bytes. Reads them once; what does not fill a row is left out.
    """
    words = content[: content.numel() // (8 * _COLUMNS) * 8 * _COLUMNS].view(torch.int64)
    rows = words.view(-1, _COLUMNS)
    return torch.cat([rows.sum(0), rows.sum(1)])


def _few(reads: Reads) -> Reads:
    """Reads that can be compared in a moment."""
    if len(reads) <= _MANY_READS:
        return reads
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, (_, weight) in enumerate(reads):
        first.setdefault(weight, at)
        last[weight] = at
    return [reads[at] for at in sorted({*first.values(), *last.values()})]


class LaunchStopwatch:
    """See `survey.Stopwatch`. Layers are timed in the first jobs, the others only as a whole."""

    def __init__(self, launches: Launches, contents: Contents | None) -> None:
        self._launches = launches
        self._layers = [] if contents is None else contents.layers
        self._ranges = [] if contents is None else _ranges([one for one, _ in contents.placed])
        self._jobs_left = _TIMED_JOBS if self._layers else 0
        self._timing: ExitStack | None = None
        self._times_s: list[float] | None = None
        self._begin_ns = self._end_ns = 0

    @property
    def learns(self) -> bool:
        """Whether the layers of the next job are timed."""
        return self._jobs_left > 0

    @property
    def total_s(self) -> float:
        """From begin to end, seconds."""
        return (self._end_ns - self._begin_ns) / 1e9

    def start(self) -> None:
        """A job begins now."""
        self._times_s = None
        if self.learns:
            self._timing = ExitStack()
            self._timing.enter_context(self._launches.watching(self._ranges))
            self._timing.enter_context(self._launches.timing())
        self._begin_ns = perf_counter_ns()

    def __call__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call."""
        return plain(module, args, kwargs)

    def stop(self) -> None:
        """The GPU is done with the job."""
        self._end_ns = perf_counter_ns()
        if self._timing is None:
            return
        with self._timing:
            reads, ends_s = self._launches.reads(), self._launches.times()
        self._timing = None
        if self._jobs_left < _TIMED_JOBS:  # the first one prepared copies of graphs
            self._times_s = layer_times_s(self._layers, reads, ends_s, self.total_s)
        self._jobs_left -= 1

    def layer_times_s(self) -> tuple[float, list[float]] | None:
        """Of each layer."""
        return None if self._times_s is None else (0.0, self._times_s)


class LaunchSurvey:
    """See `survey.Survey`."""

    kind = "cuda"
    foresees = False

    def __init__(self, launches: Launches) -> None:
        self._launches = launches
        self._latest = LaunchRecorder(launches)

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
        return cls(launches)

    def recorder(self) -> LaunchRecorder:
        """Of launches."""
        self._latest = LaunchRecorder(self._launches)
        return self._latest

    def judge(
        self, weights: Sequence[Weight], runs: Sequence[Run], learned: Selection | None
    ) -> tuple[Selection, bool]:
        """One job is enough where it shows what was learned before.

        Else a few, and more while graphs are made: their memory is part of the workspace.
        """
        reads = [run.reads for run in runs]
        if learned is not None and explains(learned, reads):
            return learned, True
        enough = len(runs) >= (_MOST_RUNS if self._latest.prepares else _RUNS)
        return select_by_launches(len(weights), reads), enough

    def stopwatch(self, contents: Contents | None) -> LaunchStopwatch:
        """By launches."""
        return LaunchStopwatch(self._launches, contents)

    def finish(self) -> bool:
        """Wait for the GPU, unless a stream is captured."""
        if self._launches.capturing:
            return False
        torch.cuda.synchronize()
        return True

    def tidy(self) -> None:
        """PyTorch keeps what it once had; other processes need it."""
        gc.collect()
        torch.cuda.empty_cache()


def _ranges(weights: Sequence[Weight]) -> list[tuple[int, int]]:
    return [(one.storage.data_ptr() + one.start, one.size_bytes) for one in weights]
