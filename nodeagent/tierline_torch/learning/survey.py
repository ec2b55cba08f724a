"""The survey of watched jobs, by the kind of device: modules on `cpu`, launches on `cuda`.

Every forward runs once. A site that is not settled has its jobs recorded, one `Recorder` each, and
after each job `judge` says what the records allow and whether they are enough. From then on nothing
is recorded; a `Stopwatch` says how long the layers of a settled site's jobs take.

The order of calls is `recorder()`, `begin(weights)`, then `enter` and `leave` around each module
call of the job's thread, `end()`, `run(weights)`. `begin` gets the weights of the roots that are
known when the job begins: of an outermost module all, of a block's first job none. `run` gets those
that the site has after the job; a recorder that could watch only what `begin` named answers None if
these are others, or if it could not look where it must, and the job teaches nothing. All of it
happens between the job's lease and its end, and all but `run` in its thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from tierline_client import GiveBack
from tierline_torch.arenas.contents import Contents
from tierline_torch.arenas.gates import ModuleStopwatch
from tierline_torch.arenas.selection import Run, Selection, judge
from tierline_torch.learning.module_recorder import ModuleRecorder
from tierline_torch.tensors.weights import Weight


class Recorder(Protocol):
    """Records one job."""

    modules: dict[int, torch.nn.Module]
    """Modules called, by id; held so that no id is used twice. Empty where calls are not seen."""

    @property
    def workspace_bytes(self) -> int | None:
        """The job's use of memory; None if nothing tells.

        On `cpu` what it allocated; on `cuda` all that PyTorch holds, weights and inputs among it.
        """

    def begin(self, weights: Sequence[Weight], taken: list[GiveBack]) -> None:
        """Record from now on; a record that is not ended is ended by `taken`."""

    def enter(self, module: torch.nn.Module) -> int:
        """One of the job's module calls, the program's own, begins."""

    def leave(self, entered: int) -> None:
        """The one for which `enter` gave this is over."""

    def end(self) -> None:
        """The job's work is done: record no more."""

    def run(self, weights: Sequence[Weight]) -> Run | None:
        """The record, in terms of these weights (by index)."""


class Stopwatch(Protocol):
    """Times the jobs of one settled site, one after another."""

    @property
    def learns(self) -> bool:
        """Whether the next job is timed for its layers alone, at a price, and shall not count."""

    def start(self) -> None:
        """A job begins now."""

    def __call__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call of the job."""

    def stop(self) -> None:
        """The job's work is done."""

    @property
    def total_s(self) -> float:
        """How long the last job took, seconds."""

    def layer_times_s(self) -> tuple[float, list[float]] | None:
        """Of the last job: seconds before the first layer, and of each; None if not taken."""


class Survey(Protocol):
    """Watches jobs on one kind of device."""

    kind: str
    """`cpu` or `cuda`, as PyTorch calls it."""
    foresees: bool
    """Whether a site may be settled before its first job, by what an observed run learned.

    Only where right bytes rest on nothing that was learned.
    """

    def recorder(self) -> Recorder:
        """A recorder for the next job."""

    def judge(
        self, weights: Sequence[Weight], runs: Sequence[Run], learned: Selection | None
    ) -> tuple[Selection, bool]:
        """The judgement on the jobs so far (at least one), and whether no more need to be recorded.

        `learned` is what an observed run chose for exactly these weights.
        """

    def stopwatch(self, contents: Contents | None) -> Stopwatch:
        """The clock of a settled site's jobs."""

    def finish(self) -> bool:
        """Wait until the device has done what this process gave it to do.

        False, without a wait, while work is recorded that runs later: nobody can wait for that.
        """

    def tidy(self) -> None:
        """Give device memory that nothing uses any more, as moved weights leave it, back."""


class ModuleSurvey:
    """Module calls and the operators inside them."""

    kind = "cpu"
    foresees = True

    def recorder(self) -> ModuleRecorder:
        """Of modules and operators."""
        return ModuleRecorder()

    def judge(
        self, weights: Sequence[Weight], runs: Sequence[Run], learned: Selection | None
    ) -> tuple[Selection, bool]:
        """Two jobs in a row that ask for the same are enough."""
        return judge([one.owners for one in weights], runs, learned)

    def stopwatch(self, contents: Contents | None) -> ModuleStopwatch:
        """From gate to gate."""
        gates: Mapping[int, int] = {} if contents is None else contents.gates
        return ModuleStopwatch(gates)

    def finish(self) -> bool:
        """A call that returned is done."""
        return True

    def tidy(self) -> None:
        """What is freed is the system's at once."""
