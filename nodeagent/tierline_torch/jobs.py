"""A job root, what was learned about it, and what runs its jobs: an agent, or an observer.

`process` holds the sites, `dispatch` decides what is a job, `course` learns; the two backends are
in `managed` and `observe`. They share everything up to the finished `Lesson`, so that what an
observed run reports is what a managed run lays out.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from tierline_torch.calls import Invoke
from tierline_torch.contents import Contents, Entry
from tierline_torch.survey import Survey

if TYPE_CHECKING:
    from tierline_torch.course import Course


class Window(NamedTuple):
    """When a job was released and when it must be over, CLOCK_MONOTONIC nanoseconds."""

    release_ns: int
    deadline_ns: int


@dataclass
class Site:
    """A job root: an outermost module, or a `tierline.job` block by name."""

    name: str
    course: Course | None = None
    """What its jobs have shown, until it is settled."""
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
    workspace_bytes: int = 0
    seen: int = 0
    """Jobs that began."""
    jobs: int = 0
    """Jobs since it was settled."""
    order_changed: bool = False
    """Whether a job called its modules in another order than the first one."""


@dataclass(frozen=True)
class Lesson:
    """What was learned about a site."""

    contents: Contents | None
    """Its arena; None if nothing can be moved into one."""
    workspace_bytes: int
    stays: Mapping[str, int]
    """By reason: bytes of weights that stay where they are, in no arena."""
    names: Mapping[int, str]
    """The modules', by id."""
    reason: str = ""
    """Why nothing can be streamed, where that is not of single weights."""

    def sentences(self, site: str) -> list[str]:
        """What stays resident outside of arenas, for the user."""
        said = [
            f"{site}: {_amount(size_bytes)} stay resident: {reason}"
            for reason, size_bytes in self.stays.items()
        ]
        return [*said, f"{site} stays resident: {self.reason}"] if self.reason else said

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


class Backend(Protocol):
    """Runs jobs. `begin`, `end` and `settle` are called with the process's job lock held."""

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

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Begin a job; what it returns gets the job's module calls."""

    def end(self, site: Site) -> Reportable:
        """End the job."""

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        """Report what a job computed, as digests."""

    def settle(self, site: Site, lesson: Lesson) -> None:
        """Take a learned site over. Sets its `arena` and `gates` if its jobs shall be gated.

        Tells what of the lesson stays resident, and why.
        """

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
