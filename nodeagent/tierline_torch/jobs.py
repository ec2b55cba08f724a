"""A job root, what was learned about it, and what runs its jobs: an agent, or an observer.

`process` holds the sites and decides what is a job; `lessons` learns; the two backends are in
`managed` and `observe`. They share everything up to the finished `Contents`, so that what an
observed run reports is what a managed run lays out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from tierline_torch.calls import Invoke
from tierline_torch.contents import Contents, Entry
from tierline_torch.survey import Survey


class Window(NamedTuple):
    """When a job was released and when it must be over, CLOCK_MONOTONIC nanoseconds."""

    release_ns: int
    deadline_ns: int


@dataclass
class Site:
    """A job root: an outermost module, or a `tierline.job` block by name."""

    name: str
    settled: bool = False
    """Learned, and streamed or resident for good."""
    roots: tuple[weakref.ref[torch.nn.Module], ...] = ()
    """The modules of the outermost forwards that it was learned from."""
    members: frozenset[int] = frozenset()
    """Ids of the modules under the roots."""
    gates: dict[int, int] = field(default_factory=dict)
    """Module id -> layer; empty unless jobs are gated."""
    arena: int | None = None
    workspace_bytes: int = 0
    jobs: int = 0
    """Jobs since it was settled."""
    order_changed: bool = False
    """Whether a job called its modules in another order than the first one."""


@dataclass(frozen=True)
class Lesson:
    """What was learned about a site: its arena, its times, and how to run it again."""

    contents: Contents
    compute_s: tuple[float, ...]
    """Per entry of the contents, from one run without Tierline, seconds."""
    workspace_bytes: int
    reference: list[Any] | None
    """The outputs of that run; None if the job cannot be repeated."""
    repeat: Callable[[Invoke], list[Any]] | None
    """Runs the same forwards again."""


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

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Begin a job; what it returns gets the job's module calls."""

    def end(self, site: Site) -> Reportable:
        """End the job."""

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        """Report what a job computed, as digests."""

    def settle(self, site: Site, lesson: Lesson) -> None:
        """Take a learned site over. Sets its `arena` and `gates` if its jobs shall be gated."""

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
