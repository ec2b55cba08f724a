"""How a job is watched: at its module calls on `cpu`, at its kernel launches on `cuda`.

A survey answers two questions about a job that can be repeated: which weights are read in which
order (`look`), and how long each layer takes (`time`). What follows from the answers is the same
everywhere, and in `lessons`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tierline_torch.calls import invoking, original
from tierline_torch.contents import Contents
from tierline_torch.gates import Stopwatch
from tierline_torch.learning import Recorder
from tierline_torch.replay import Replay
from tierline_torch.selection import Run, Selection, select
from tierline_torch.weights import Weight
from tierline_torch.workspace import WorkspaceMeter

Lease = Callable[[], AbstractContextManager[None]]
"""Gives the right to run, once a run."""


@dataclass(frozen=True)
class Timed:
    """A run without Tierline."""

    outputs: list[Any]
    before_s: float
    """Seconds before the first layer."""
    layers_s: list[float]
    """Seconds of each layer that is not pinned, in order."""


class Survey(Protocol):
    """Watches jobs on one kind of device."""

    kind: str
    """`cpu` or `cuda`, as PyTorch calls it."""

    def recorder(self) -> Recorder | None:
        """What watches the program's own first run; None if the repetitions are enough."""

    def look(
        self, recorded: Recorder | None, replay: Replay, weights: Sequence[Weight], lease: Lease
    ) -> tuple[Selection, int]:
        """Run the job, and say which weights can be streamed and the peak of its workspace, bytes.

        `recorded` is what watched the first run.
        """

    def time(self, replay: Replay, contents: Contents, lease: Lease) -> Timed:
        """Run the job with nothing attached but a clock."""

    def finish(self) -> None:
        """Wait until the device has done what this process gave it to do."""

    def tidy(self) -> None:
        """Give device memory that nothing uses any more, as moved weights leave it, back."""


class ModuleSurvey:
    """Watches module calls and the operators inside them."""

    kind = "cpu"

    def recorder(self) -> Recorder | None:
        """The first of two recorders."""
        return Recorder()

    def look(
        self, recorded: Recorder | None, replay: Replay, weights: Sequence[Weight], lease: Lease
    ) -> tuple[Selection, int]:
        """Record the job once more: what differs from the first run is no layer.

        The allocator's peak is that of this run.
        """
        second = Recorder()
        meter = WorkspaceMeter()
        with lease(), meter, second:
            replay.run(lambda *call: _recorded_by(second, *call))
        runs: list[Run] = [one.run(weights) for one in (recorded, second) if one is not None]
        return select([one.owners for one in weights], runs), meter.peak_bytes

    def time(self, replay: Replay, contents: Contents, lease: Lease) -> Timed:
        """Take the time from gate to gate."""
        watch = Stopwatch(contents.gates)
        with lease():
            watch.start()
            outputs = replay.run(lambda *call: through(watch, *call))
            watch.stop()
        return Timed(outputs, *watch.layer_times_s())

    def finish(self) -> None:
        """A call that returned is done."""

    def tidy(self) -> None:
        """What is freed is the system's at once."""


def through(
    invoke: Callable[..., Any],
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run one outermost forward, all of its module calls through `invoke`."""
    with invoking(invoke):
        return invoke(module, args, kwargs)


def _recorded_by(
    recorder: Recorder, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return through(lambda *call: recorder.call(original, *call), module, args, kwargs)
