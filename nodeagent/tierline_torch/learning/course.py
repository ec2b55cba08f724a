"""The course of one site: what its jobs have shown, and the lesson that follows.

A record of a job is put in terms of the weights that the modules have when the job is over. Records
of jobs before the modules got other weights (a lazy layer's first job, `half()`, a new state) count
for nothing, nor does that of the job in which they got them: to initialise is no write of a job.
Jobs that raise count where all jobs so far did: a program may end each of its jobs like that.

What was recorded is a plan, never a proof: right bytes rest on protection and on what is looked at
in each job. So nothing is compared, and a model that is not deterministic streams like any other.

Invariant: the storages of all weights that a record names are held while it counts, so that the
identity of a storage that was freed cannot come again as another weight's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import torch

from tierline_torch.arenas.contents import Contents, arrange
from tierline_torch.arenas.resizing import holds
from tierline_torch.arenas.selection import Run, Selection
from tierline_torch.learning.learned import LearnedOrders
from tierline_torch.learning.site import Lesson
from tierline_torch.learning.survey import Survey
from tierline_torch.learning.watch import Watch
from tierline_torch.tensors.aliases import seen_by_others
from tierline_torch.tensors.weights import Weight, collect, immovable, memory_of

_FAILURES = 2
"""So many jobs that raise, and none that does not, count as what the program does."""
SEEN = "others see its memory"
WRITTEN = "written in a job"
ADDRESSED = "the program keeps their addresses on the device"
GRAPHED = "a CUDA graph of the program's own reads them"
OTHERS = "other weights, or an error, in most of the jobs that were watched"
_MOST_JOBS = 12
"""So many jobs from which nothing follows are enough to leave a site resident."""

MOST_ENTRIES = 4096 - 64
"""Of an arena; a profile holds 4,096 layers in all, some of which are what stays outside."""

Claimed = Callable[[torch.Tensor], bool]
"""Whether a tensor of a weight is in the arena of another site."""


class Course:
    """Of one site, until it is settled."""

    def __init__(self, survey: Survey, learned: LearnedOrders) -> None:
        self._survey = survey
        self._learned = learned
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._weights: list[Weight] = []
        self._runs: list[Run] = []
        self._made_again: set[str] = set()
        """Names of buffers that are others in each job."""
        self._apart: dict[int, str] = {}
        """Weights that do not move, and why."""
        self._workspace_bytes = 0
        self._workspace_known = False
        self._failures = 0
        self._jobs = 0
        self._gave_up = False

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The modules of the outermost forwards, those that are alive."""
        return [root for ref in self._roots if (root := ref()) is not None]

    @property
    def began(self) -> bool:
        """Whether any job showed anything."""
        return bool(self._runs)

    def add(self, watch: Watch, claimed: Claimed, *, failed: bool) -> bool:
        """Take the record of a job that is over. Whether the site can be settled now."""
        self._jobs += bool(watch.roots)
        if self._take(watch, claimed, failed=failed):
            return True
        self._gave_up = self._jobs >= _MOST_JOBS
        return self._gave_up

    def _take(self, watch: Watch, claimed: Claimed, *, failed: bool) -> bool:
        if failed and (self._runs or self._failures < _FAILURES):
            self._failures += not self._runs
            return False
        roots = self.roots
        self._roots += [weakref.ref(one) for one in watch.roots if not _among(one, roots)]
        self._modules.update((key, weakref.ref(one)) for key, one in watch.recorder.modules.items())
        if not self._roots:
            return False  # nothing ran; the next job may show more
        weights = self._steady(_unclaimed(self._named(), self._survey, claimed))
        known = watch.storages | {one.storage._cdata for one in self._weights}
        if _places(weights) != _places(self._weights):
            self._runs.clear()
            self._apart.clear()
        self._weights = weights
        if any(one.storage._cdata not in known for one in weights):
            return False
        run = watch.recorder.run(weights)
        if run is None:
            return False
        taken = watch.recorder.workspace_bytes
        self._workspace_known |= taken is not None
        standing_bytes = watch.standing_bytes if self._survey.kind == "cpu" else 0
        self._workspace_bytes = max(self._workspace_bytes, (taken or 0) + standing_bytes)
        self._runs.append(run)
        self._apart |= dict.fromkeys(run.addressed, ADDRESSED) | dict.fromkeys(run.writes, WRITTEN)
        self._apart |= dict.fromkeys(run.graphed, GRAPHED)
        kept = self._kept(self._apart)
        return not kept or self._judge(kept)[1]

    def _steady(self, weights: Sequence[Weight]) -> list[Weight]:
        """These, but no buffers of which the program makes others from job to job."""
        before = {one.name: one.storage._cdata for one in self._weights}
        self._made_again |= {
            one.name
            for one in weights
            if one.in_buffers and before.get(one.name, one.storage._cdata) != one.storage._cdata
        }
        return [one for one in weights if one.name not in self._made_again]

    def lesson(self, models: Sequence[torch.nn.Module]) -> Lesson:
        """The lesson from the jobs so far; `models` are those of all sites of the process."""
        apart = dict.fromkeys(seen_by_others(self._weights), SEEN)
        apart |= self._apart
        if self._gave_up:
            apart = dict.fromkeys(range(len(self._weights)), OTHERS)
        stays = immovable(self._named(), self._survey.kind)
        for index, reason in apart.items():
            stays[reason] = stays.get(reason, 0) + self._weights[index].size_bytes
        kept, names = self._kept(apart), self._names()
        contents = None
        if kept and self._runs:
            weights = [self._weights[index] for index in kept]
            parts = self._in_parts(models)
            contents = _arranged(weights, self._judge(kept)[0], names, stays, parts)
        known = self._workspace_known or not self._runs
        return Lesson(contents, self._workspace(models), stays, names, workspace_known=known)

    def _in_parts(self, models: Iterable[torch.nn.Module]) -> set[int]:
        """Modules (by id) of what is a part of these roots and has jobs of its own.

        Its weights are for those to count: they may not have shown them yet.
        """
        roots = self.roots
        own = {id(module) for root in roots for module in root.modules()}
        parts = [one for one in models if id(one) in own and not _among(one, roots)]
        return {id(module) for part in parts for module in part.modules()}

    def _workspace(self, models: Iterable[torch.nn.Module]) -> int:
        """Memory of the jobs in addition to weights, whichever site's they are; bytes."""
        named = collect(self._named(), self._survey.kind)
        again = {
            one.storage._cdata: one.storage.nbytes()
            for one in named
            if one.name in self._made_again
        }
        if self._survey.kind == "cpu":
            return self._workspace_bytes + sum(again.values())
        modules = (one for root in (*models, *self.roots) for one in root.modules())
        own = memory_of(modules, self._survey.kind, holds)
        own_bytes = sum(size for storage, size in own.items() if storage not in again)
        return max(0, self._workspace_bytes - own_bytes)

    def _kept(self, apart: Mapping[int, str]) -> list[int]:
        return [index for index in range(len(self._weights)) if index not in apart]

    def _judge(self, kept: Sequence[int]) -> tuple[Selection, bool]:
        """The verdict on these weights (by index), which it numbers without the others."""
        number = {index: at for at, index in enumerate(kept)}
        weights = [self._weights[index] for index in kept]
        known = self._learned.of(weights, self._names())
        learned = None if known is None else known[0]
        return self._survey.judge(weights, [run.of(number) for run in self._runs], learned)

    def _named(self) -> list[tuple[str, torch.nn.Module]]:
        names = self._names()
        found = {id(module): module for root in self.roots for module in root.modules()}
        for module in self._called():
            found.setdefault(id(module), module)
        return [(names[id(module)], module) for module in found.values()]

    def _called(self) -> list[torch.nn.Module]:
        return [module for ref in self._modules.values() if (module := ref()) is not None]

    def _names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        roots = self.roots
        for root in roots:
            kind = type(root).__name__
            prefix = f"{kind}." if len(roots) > 1 else ""
            for name, module in root.named_modules():
                names.setdefault(id(module), f"{prefix}{name}" if name else kind)
        for module in self._called():
            names.setdefault(id(module), type(module).__name__)
        return names


def foreseen(
    root: torch.nn.Module, survey: Survey, learned: LearnedOrders, claimed: Claimed
) -> Lesson | None:
    """The lesson of an observed run for a module that has run no job here; None without one."""
    names = {id(module): name or type(root).__name__ for name, module in root.named_modules()}
    named = [(names[id(one)], one) for one in root.modules()]
    weights = _unclaimed(named, survey, claimed)
    known = learned.of(weights, names)
    if known is None or seen_by_others(weights):
        return None
    selection, workspace_bytes = known
    stays = immovable(named, survey.kind)
    contents = _arranged(weights, selection, names, stays)
    return Lesson(contents, workspace_bytes, stays, names)


def _arranged(
    weights: Sequence[Weight],
    selection: Selection,
    names: Mapping[int, str],
    stays: dict[str, int],
    parts: Set[int] = frozenset(),
) -> Contents | None:
    """The arena of what was selected, if anything moves there; the rest is added to `stays`.

    But not what modules of `parts` (by id) own.
    """
    for group in selection.stays:
        own = [weights[index] for index in group.weights if not weights[index].owners & parts]
        if own:
            size_bytes = sum(weight.size_bytes for weight in own)
            stays[group.reason] = stays.get(group.reason, 0) + size_bytes
    contents = arrange(weights, selection, names)
    if len(contents.entries) > MOST_ENTRIES:
        many = f"more layers than a profile holds ({len(contents.entries):,})"
        stays[many] = stays.get(many, 0) + contents.size_bytes
        return None
    return contents if contents.placed else None


def resident(root: torch.nn.Module, survey: Survey, claimed: Claimed, reason: str) -> Lesson:
    """All weights of a module stay where they are, for one reason."""
    named = list(root.named_modules())
    stays = immovable(named, survey.kind)
    size_bytes = sum(one.size_bytes for one in _unclaimed(named, survey, claimed))
    if size_bytes:
        stays[reason] = stays.get(reason, 0) + size_bytes
    return Lesson(None, 0, stays, {})


def _unclaimed(
    named: Sequence[tuple[str, torch.nn.Module]], survey: Survey, claimed: Claimed
) -> list[Weight]:
    """The weights of these modules that are in no other site's arena."""
    return [
        weight
        for weight in collect(named, survey.kind)
        if not any(claimed(one) for one in weight.tensors)
    ]


def _among(module: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> bool:
    return any(module is one for one in modules)


def _places(weights: Sequence[Weight]) -> list[tuple[int, int, int]]:
    return [(one.storage._cdata, one.start, one.end) for one in weights]
