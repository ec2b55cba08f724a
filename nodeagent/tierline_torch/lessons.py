"""Learns a job: three runs of its forwards, from which its arena and its times come.

1. The program's own first run.
2. The same forwards again, watched: a weight that is cached on the first use, or read in another
   order, shows here. The allocator's peak is taken from this run.
3. Again, with nothing attached but a clock: its output is the reference for the check of the
   streamed job, and its times are the layers'. If it differs from the first run's, a fourth run
   tells whether the model itself gives the same output twice.

How a run is watched depends on the device; see `survey`.

A job that cannot be repeated, or not with the same output, could not be checked: all its weights
are pinned, with that reason. Parameters that it writes are no weights: an arena is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tierline_torch.calls import original, plain
from tierline_torch.contents import Contents, arrange
from tierline_torch.jobs import Lesson, spread
from tierline_torch.replay import Forward, Replay, note_forward
from tierline_torch.selection import pin_everything
from tierline_torch.state import State, UnrepeatableError
from tierline_torch.structures import difference
from tierline_torch.survey import Lease, Survey, through
from tierline_torch.weights import Weight, collect
from tierline_torch.workspace import standing_bytes

UNSTEADY = "the model's output differs from run to run without Tierline"


class FirstRun:
    """Records the program's own run of a job, and what is needed to repeat it."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.recorder = survey.recorder()
        self.roots: list[torch.nn.Module] = []
        self.unrepeatable: str | None = None
        self._forwards: list[Forward] = []
        self._before: State | None = None

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one outermost forward of the job."""
        again = any(root is module for root in self.roots)
        if not again:
            self.roots.append(module)
        noted = None if again else self._note(module, args, kwargs)
        output = self._inner(module, args, kwargs)
        if noted is not None:
            noted.output.append(output)
        return output

    def _inner(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return through(self._call, module, args, kwargs)

    def _call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.recorder is None:
            return original(module, *args, **kwargs)
        return self.recorder.call(original, module, args, kwargs)

    def watching(self) -> AbstractContextManager[object]:
        """Surrounds the job."""
        return nullcontext() if self.recorder is None else self.recorder

    def _note(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Forward | None:
        """Prepare to repeat a forward.

        Only a root's first call is noted: its second one pins all weights that both read, and the
        notes of a generating loop would grow without end.
        """
        if self.unrepeatable is not None:
            return None
        try:
            noted = note_forward(module, args, kwargs)
            # One state for all roots: a root that joins later brings its own modules' state.
            before = State([module]) if self._before is None else self._before.joined([module])
        except UnrepeatableError as error:
            self.unrepeatable = str(error)
            return None
        except Exception as error:  # a user's attribute may refuse to be looked at
            self.unrepeatable = _uncopied(error)
            return None
        self._before = before
        self._forwards.append(noted)
        return noted

    def written(self) -> set[int]:
        """Ids of the parameters that the job wrote; call it when the job is over."""
        return set() if self._before is None else {id(one) for one in self._before.written()}

    def replay(self) -> Replay | None:
        """The job to be repeated, if it can be; call it when the job is over."""
        if self.unrepeatable is not None or self._before is None:
            return None
        if any(not forward.output for forward in self._forwards):
            self.unrepeatable = "a forward of the job failed"
            return None
        try:
            replay = Replay(self._forwards, self._before)
            replay.finish()
        except UnrepeatableError as error:
            self.unrepeatable = str(error)
            return None
        except Exception as error:
            self.unrepeatable = _uncopied(error)
            return None
        return replay


def _uncopied(error: Exception) -> str:
    return f"the model's state cannot be copied: {type(error).__name__}"


def learn(
    first: FirstRun,
    claimed: Callable[[torch.nn.Parameter], bool],
    lease: Lease,
) -> Lesson | None:
    """Learn from a first run that is over; None if it called no module with weights of its own.

    `claimed` tells parameters that another site has; `lease` gives the right to run, once a run.
    """
    names = _names(first)
    modules = [(names[id(module)], module) for module in _modules(first)]
    written = first.written()
    weights = [
        weight
        for weight in collect(modules, first.survey.kind)
        if not any(claimed(one) or id(one) in written for one in weight.parameters)
    ]
    if not weights:
        return None
    replay = first.replay()
    if replay is None:
        selection = pin_everything(len(weights), first.unrepeatable or "the job cannot be repeated")
        return _lesson(arrange(weights, selection, names))
    return _repeat(first, replay, weights, names, lease)


def _repeat(
    first: FirstRun,
    replay: Replay,
    weights: list[Weight],
    names: dict[int, str],
    lease: Lease,
) -> Lesson:
    survey = first.survey
    selection, peak_bytes = survey.look(first.recorder, replay, weights, lease)
    contents = arrange(weights, selection, names)
    timed = survey.time(replay, contents, lease)
    before_s, layers_s = timed.before_s, timed.layers_s
    unsteady = False
    outputs = [forward.output[0] for forward in replay.forwards]
    if difference(outputs, timed.outputs) is not None:
        with lease():
            again = replay.run(lambda *call: through(plain, *call))
        unsteady = difference(timed.outputs, again) is not None
    if unsteady:
        selection = pin_everything(len(weights), UNSTEADY)
        contents = arrange(weights, selection, names)
        before_s, layers_s = before_s + sum(layers_s), []
    inputs = [(forward.args, forward.kwargs) for forward in replay.forwards]
    return Lesson(
        contents=contents,
        compute_s=spread(before_s, layers_s, contents.entries),
        workspace_bytes=peak_bytes + standing_bytes(replay.roots, inputs),
        reference=None if unsteady else timed.outputs,
        repeat=None if unsteady else lambda invoke: replay.run(lambda *c: through(invoke, *c)),
    )


def _lesson(contents: Contents) -> Lesson:
    times = spread(0.0, [], contents.entries)
    return Lesson(contents, times, workspace_bytes=0, reference=None, repeat=None)


def _modules(first: FirstRun) -> list[torch.nn.Module]:
    """Every module under a root, and those that were called from elsewhere."""
    found = {id(module): module for root in first.roots for module in root.modules()}
    if first.recorder is not None:
        for key, module in first.recorder.modules.items():
            found.setdefault(key, module)
    return list(found.values())


def _names(first: FirstRun) -> dict[int, str]:
    names: dict[int, str] = {}
    for root in first.roots:
        kind = type(root).__name__
        prefix = f"{kind}." if len(first.roots) > 1 else ""
        for name, module in root.named_modules():
            names.setdefault(id(module), f"{prefix}{name}" if name else kind)
    if first.recorder is not None:
        for key, module in first.recorder.modules.items():
            names.setdefault(key, type(module).__name__)
    return names


def members(roots: Sequence[torch.nn.Module]) -> frozenset[int]:
    """Ids of all modules under these roots."""
    return frozenset(id(module) for root in roots for module in root.modules())
