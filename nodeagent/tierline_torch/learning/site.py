"""A job root, what was learned about it, and what runs its jobs: an agent, or an observer.

`process` holds the sites, `dispatch` decides what is a job, `course` learns; the two backends are
in `managed` and `observed`. They share everything up to the finished `Lesson`, so that what an
observed run reports is what a managed run lays out.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from tierline_client import GiveBack
from tierline_torch.arenas.contents import Contents, Entry
from tierline_torch.calls import Invoke
from tierline_torch.learning.survey import Survey

if TYPE_CHECKING:
    from tierline_torch.learning.course import Course


class Window(NamedTuple):
    """When a job was released and when it must be over, CLOCK_MONOTONIC nanoseconds."""

    release_ns: int
    deadline_ns: int


@dataclass
class Site:
    """A job root: an outermost module, or a `tierline.job` block by name."""

    name: str
    course: Course | None = None
    """The course of its jobs, until it is settled."""
    settled: bool = False
    """Learned, and streamed or resident for good."""
    roots: tuple[weakref.ref[torch.nn.Module], ...] = ()
    """The modules of the outermost forwards that it was learned from."""
    members: frozenset[int] = frozenset()
    """Ids of the modules under the roots."""
    joined: dict[int, int] = field(default_factory=dict)
    """Module id -> how often a job of the site waited for a call of it."""
    gates: dict[int, int] = field(default_factory=dict)
    """Module id -> layer; empty unless jobs are gated."""
    arena: int | None = None
    left_out: bool = False
    """Whether its weights have no arena, though the plan may have one for them."""
    workspace_bytes: int = 0
    seen: int = 0
    """Jobs that began."""
    jobs: int = 0
    """Jobs since it was settled."""
    order_changed: bool = False
    """Whether a job called its modules in another order than the first one."""


@dataclass(frozen=True)
class Lesson:
    """The lesson about a site."""

    contents: Contents | None
    """Its arena; None if nothing can be moved into one."""
    workspace_bytes: int
    stays: Mapping[str, int]
    """By reason: bytes of weights that stay where they are, in no arena."""
    names: Mapping[int, str]
    """The modules', by id."""
    reason: str = ""
    """Why nothing can be streamed, where that is not of single weights."""
    workspace_known: bool = True
    """Whether `workspace_bytes` is all that its jobs take, or only what could be seen of that."""

    def sentences(self, site: str) -> list[str]:
        """Weights that stay resident outside of arenas, and what is not known, for the user."""
        said = [
            f"{site}: {_amount(size_bytes)} stay resident: {reason}"
            for reason, size_bytes in self.stays.items()
        ]
        if self.reason:
            said.append(f"{site} stays resident: {self.reason}")
        if not self.workspace_known:
            said.append(
                f"{site}: what its jobs allocate could not be measured (that takes jobs in the "
                "main thread, without a profiler of the program's); state spec.memory.workspace"
            )
        return said

    @classmethod
    def nothing(cls, reason: str) -> Lesson:
        """All that a site has stays where it is."""
        return cls(None, 0, {}, {}, reason)


def _amount(size_bytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


class Reportable(NamedTuple):
    """A job that is over and whose inputs and outputs may be reported."""

    number: int
    duration_s: float


FIRST_GATE_NS = 2_000_000
"""How long a job that nobody can ask has the device before it gives it away between two modules,
nanoseconds: a first one, or one of a site that is left out. On a GPU it waits there for what it has
launched, so that no more than a module's work is ever under way."""


class Backend(Protocol):
    """Runs jobs. All but `ready` and `finish` are called with the process's job lock held."""

    period_ns: int
    """The task's period; 0 if releases follow one another without a pause."""
    deadline_ns: int
    """The task's relative deadline."""
    releases: int | None
    """After how many releases the program's loop ends; None: at the time that `ready` gives."""
    survey: Survey
    """How it learns a job."""
    wants_witness: bool
    """Whether `witnessed` is to be called with the digests of each job."""
    profiles: bool
    """Whether it wants to be told of every site, also of one whose modules are gone."""

    @property
    def waits(self) -> bool:
        """Whether a thread of this process waits for the agent now."""

    @property
    def over(self) -> GiveBack:
        """Ends the job in progress, if one is: for `afterwards`."""

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Begin a job; what it returns gets the job's module calls."""

    def pause(self) -> None:
        """A job of a site that is not settled is between two modules: others may go first.

        So what it has the device for at once is no longer than `FIRST_GATE_NS` and a module.
        """

    def without_lease(self) -> AbstractContextManager[None]:
        """The job in progress, which has no rank, needs no device in the block.

        As in a capture, where nothing runs and nobody could stop: others may have it.
        """

    def end(self, site: Site) -> Reportable | None:
        """End the job; None if it was a part of another process's, and so none."""

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        """Report what a job computed, as digests."""

    def settle(self, site: Site, lesson: Lesson) -> None:
        """Take a learned site over. Sets its `arena` and `gates` if its jobs shall be gated.

        Tells what of the lesson stays resident, and why.
        """

    def watched(self) -> None:
        """A job was watched, and what it showed was taken in."""

    def ready(self) -> tuple[int, int]:
        """Say that the program is warm; (first release, end or 0), CLOCK_MONOTONIC ns."""

    def finish(self) -> None:
        """The program's loop over releases is over."""


def spread(
    before_s: float, layers_s: Sequence[float], entries: Sequence[Entry]
) -> tuple[float, ...]:
    """Times per entry: what passes before the first gate counts for the first entry."""
    remaining = iter(layers_s)
    times = [0.0 if entry.pinned else next(remaining) for entry in entries]
    if times:
        times[0] += before_s
    return tuple(times)
