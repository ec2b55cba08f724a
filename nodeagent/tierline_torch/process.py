"""This process as Tierline sees it: its backend, its job roots, and which thread has the job lock.

The connection is made by the first job or the first release, never by an import. A process that
cannot reach its agent says so once and runs as if Tierline were not there, unless
TIERLINE_REQUIRED=1. A forked child has nothing of its parent's: its first job makes a connection of
its own. A child that is forked within a job, whose calls it is in the middle of, runs without
Tierline.

Invariant: a thread has the lock (`job_lock`) from a job's begin to its end, and while a site is
settled, unless the program ended its wait for that (`ours`). However a job ends, `afterwards` gives
back what it took.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

import torch

from tierline_client import GiveBack
from tierline_torch import failures
from tierline_torch.belonging import JobLock
from tierline_torch.calls import Invoke, current, plain
from tierline_torch.capture.captured import Captured
from tierline_torch.claims import Claims
from tierline_torch.errors import GpuError, TierlineError
from tierline_torch.learning.course import Course
from tierline_torch.learning.learned import LearnedOrders
from tierline_torch.learning.site import Backend, Lesson, Reportable, Site, Window
from tierline_torch.learning.survey import ModuleSurvey, Survey
from tierline_torch.ours import ours
from tierline_torch.telling import tell

_CAPTURED = "_tierline_captured"


class Process:
    """The one instance is `process()`."""

    def __init__(self) -> None:
        self.job_lock = JobLock()
        self.window: Window | None = None
        """The current release's, while a `tierline.periodic` loop is between two of them."""
        self.warming = False
        """Whether jobs are not counted yet, because the program's releases have not begun."""
        self.lessons = 0
        """How many jobs taught something so far."""
        self.site: Site | None = None
        """The site whose job is in progress."""
        self.running: frozenset[int] = frozenset()
        """Ids of the modules under the roots of the job in progress, roots left out."""
        self._backend: Backend | None = None
        task = os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE")
        # A program that trains has steps and no jobs (`training`), whatever it calls.
        self._absent = not task or bool(os.environ.get("TIERLINE_TRAINING"))
        self._forked_in_a_job = False
        self.captures = os.environ.get("TIERLINE_EXECUTION") == "CapturedGraph"
        """Whether outermost modules run as captured graphs."""
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], Site]] = {}
        self._blocks: dict[str, Site] = {}
        self._gone: dict[str, Site] = {}
        """By name, the last site whose module went before it was settled, where these are profiled.
        One of each: a program may make a module for each request."""
        self.claims = Claims()
        self._said: set[str] = set()
        self._failed = 0
        """Jobs that failed in Tierline's code."""
        self._learned: LearnedOrders | None = None
        self._over: tuple[GiveBack, ...] = (
            partial(setattr, self, "site", None),
            partial(setattr, self, "running", frozenset()),
            partial(setattr, current, "without_lease", nullcontext),
            partial(setattr, current, "invoke", None),
        )
        """The steps that end a job; each may be done again."""
        os.register_at_fork(after_in_child=self._forked)

    @property
    def backend(self) -> Backend | None:
        """The backend of this process; None if it runs without Tierline. Raises TierlineError."""
        if self._backend is None and not self._absent:
            ours(self._connect)
        return self._backend

    def is_of(self, backend: Backend) -> bool:
        """Whether this backend is this process's, and not of the one that it was forked from."""
        return backend is self._backend

    def _connect(self) -> None:
        if self._backend is not None or self._absent:
            return
        if self._forked_in_a_job:
            self._absent = True
            self.say("this process was forked within a job; it runs without Tierline")
            return
        try:
            self._backend = self._made()
        except TierlineError as error:
            if os.environ.get("TIERLINE_REQUIRED") == "1":
                raise
            self._absent = True
            self.say(f"{error}; this program runs without Tierline")

    def _made(self) -> Backend:
        """The backend, connected. Raises TierlineError."""
        observed = os.environ.get("TIERLINE_OBSERVE")
        try:
            if observed:
                from tierline_torch.backends.observed import Observer  # noqa: PLC0415  # one of the two

                return Observer(self, observed, _survey())
            from tierline_torch.backends.managed import Manager  # noqa: PLC0415  # loads the library

            return Manager.connect(self, os.environ["TIERLINE_SOCKET"], _survey())
        except TierlineError:
            raise
        except Exception as error:  # a library of another version, a PyTorch without CUDA
            raise TierlineError(
                f"the plugin cannot be loaded into this program: {error!r}"
            ) from error

    def _forked(self) -> None:
        self._backend = None
        self._modules, self._blocks, self._gone = {}, {}, {}
        self.claims = Claims()
        self.site, self.running = None, frozenset()
        self.window, self.warming = None, False
        self.job_lock = JobLock()
        current.without_lease = nullcontext
        if current.invoke is not None:  # what is left of the job ends as if it were one
            self._forked_in_a_job = True
            current.invoke = plain

    def say(self, sentence: str) -> None:
        """Tell the user, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            tell(sentence)

    def count_failed(self, error: TierlineError) -> None:
        """A job failed in Tierline's code: tell the first one, the second, the fourth, and so on.

        The program gets the error itself, and may go on as if nothing were.
        """
        self._failed += 1
        if failures.is_told(self._failed):
            self.say(failures.sentence(self._failed, os.getpid(), str(error)))

    def site_of(self, module: torch.nn.Module) -> Site:
        """The site whose outermost module this is."""
        key = id(module)
        known = self._modules.get(key)
        if known is not None and known[0]() is module:
            return known[1]
        site = Site(name=type(module).__name__)
        gone = weakref.ref(module, lambda _: self._forget(key))
        self._modules[key] = (gone, site)
        return site

    def _forget(self, key: int) -> None:
        known = self._modules.pop(key, None)
        # A program may end with its only model gone: what was seen of that is its profile.
        backend = self._backend
        if known is not None and known[1].course is not None and backend and backend.profiles:
            self._gone[known[1].name] = known[1]

    def as_run(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module that runs for an outermost one: itself, or its captured graphs."""
        if not self.captures or isinstance(module, Captured):
            return module
        # Kept in the module, so that the two go together; no submodule of it.
        known = vars(module).get(_CAPTURED)
        if known is None:
            known = vars(module)[_CAPTURED] = Captured(module)
        return cast("Captured", known)

    def models(self) -> list[torch.nn.Module]:
        """The outermost modules of all sites."""
        found = [module for gone, _ in self._modules.values() if (module := gone()) is not None]
        for site in self._blocks.values():
            found += site.course.roots if site.course is not None else []
            found += [root for gone in site.roots if (root := gone()) is not None]
        return found

    def block(self, name: str) -> Site:
        """The site of an explicit job's name."""
        return self._blocks.setdefault(name, Site(name=name))

    @property
    def learned(self) -> LearnedOrders:
        """The choices of observed runs. Raises TierlineError."""
        if self._learned is None:
            self._learned = LearnedOrders.of_this_process()
        return self._learned

    def course(self, backend: Backend, site: Site) -> Course:
        """The course of a site that is not settled."""
        if site.course is None:
            site.course = Course(backend.survey, self.learned)
        return site.course

    def settle(
        self,
        backend: Backend,
        site: Site,
        roots: Sequence[torch.nn.Module],
        lesson: Lesson,
    ) -> None:
        """Run the site's jobs from now on as the lesson says. Between two jobs, with the lock."""
        site.roots = tuple(weakref.ref(root) for root in roots)
        site.members |= members(roots) - {id(root) for root in roots}
        site.course = None
        site.workspace_bytes = lesson.workspace_bytes
        site.settled = True
        self.lessons += 1
        backend.settle(site, lesson)
        if lesson.contents is not None:
            for weight, _ in lesson.contents.placed:
                for tensor in weight.tensors:
                    self.claims.claim(tensor)

    def settle_all(self, backend: Backend) -> None:
        """Settle every site by what was seen so far; where none lives, those whose modules went."""
        living = [*(site for _, site in self._modules.values()), *self._blocks.values()]
        for site in living:
            self._settle_as_seen(backend, site)
        gone, self._gone = self._gone, {}
        if not any(site.settled for site in living):
            for site in gone.values():
                self._settle_as_seen(backend, site)

    def _settle_as_seen(self, backend: Backend, site: Site) -> None:
        course = site.course
        if not site.settled and course is not None and course.began:
            self.settle(backend, site, course.roots, course.lesson(self.models()))

    def join(self, site: Site, module: torch.nn.Module) -> None:
        """The job in progress waits for a call of this module, which belongs to its later jobs too.

        One that had jobs of its own must show that twice: it may have been a wrong guess.
        """
        job = self.site
        if job is None or job is site:
            return
        job.joined[id(module)] = job.joined.get(id(module), 0) + 1
        if not site.seen or job.joined[id(module)] > 1:
            job.members |= members([module])
            self.running |= job.members

    def take_turn(self, backend: Backend, site: Site, taken: list[GiveBack]) -> bool:
        """Wait until no other job runs; False if the one that runs waits for this thread.

        `taken` gives back the lock, and all that a job takes from then on.
        """
        if self.job_lock.mine:
            return False  # a signal handler's, where this thread's job begins or ends
        taken.append(self.job_lock.give_back)
        if self.job_lock.take(lambda: backend.waits, patient=site.seen > 0):
            taken += (backend.over, *self._over)
            return True
        self.say(f"{site.name} runs as a part of the job in progress, which waits for its thread")
        return False

    def begin(self, backend: Backend, site: Site, deadline_s: float | None) -> Invoke:
        """Begin a job; what gets its module calls. This thread has the lock. Raises TierlineError.

        `end` belongs to it.
        """
        settled = site.settled
        window = self.window_for(backend, deadline_s)
        warmup = self.warming or not settled or _prepares(site)
        try:
            invoke = backend.begin(site, window, warmup=warmup, stream=settled)
        except TierlineError as error:
            self.count_failed(error)
            raise
        if warmup:
            current.without_lease = backend.without_lease
        site.seen += 1
        self.site = site
        self.running = site.members
        return invoke

    def end(self, backend: Backend, site: Site, *, failed: bool) -> Reportable | None:
        """Give the lease back; None if not even that went well, or there was none to be given.

        Raises TierlineError.
        """
        if not self.is_of(backend):
            return None
        try:
            job = backend.end(site)
        except TierlineError as error:
            if not failed:
                if not isinstance(error, GpuError):
                    self.count_failed(error)
                raise
            # The program's own exception must reach it; this one can only be told.
            self.say(f"could not end the job of {site.name}: {error}")
            return None
        if site.settled and not failed and job is not None:
            site.jobs += 1
        return job

    def window_for(self, backend: Backend, deadline_s: float | None) -> Window:
        """When the job that begins now was released, and its deadline."""
        if deadline_s is None and self.window is not None:
            return self.window
        now = time.monotonic_ns() if self.window is None else self.window.release_ns
        relative = backend.deadline_ns if deadline_s is None else round(deadline_s * 1e9)
        return Window(now, now + relative)


def _prepares(site: Site) -> bool:
    """Whether its next job captures graphs again, and so is none of those that are planned."""
    roots = (ref() for ref in site.roots)
    return any(isinstance(root, Captured) and root.prepares for root in roots)


def members(roots: Sequence[torch.nn.Module]) -> frozenset[int]:
    """Ids of all modules under these roots."""
    return frozenset(id(module) for root in roots for module in root.modules())


def _survey() -> Survey:
    """The survey for the task's kind of device. Raises TierlineError."""
    if os.environ.get("TIERLINE_DEVICE") == "cuda":
        # It needs PyTorch's CUDA, and the library preloaded.
        from tierline_torch.learning.launch_survey import LaunchSurvey  # noqa: PLC0415

        return LaunchSurvey.of_this_process()
    return ModuleSurvey()


_process: Process | None = None


def process() -> Process:
    """This process's instance."""
    return _process or ours(_make)


def _make() -> Process:
    global _process  # noqa: PLW0603  # one per process is what it is
    if _process is None:
        _process = Process()
    return _process
