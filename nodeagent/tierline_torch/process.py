"""What this process is to Tierline: its backend, its job roots, and whose turn it is.

The connection is made by the first job or the first release, never by an import. A process that
cannot reach its agent says so once and runs as if Tierline were not there, unless
TIERLINE_REQUIRED=1. A forked child runs without Tierline: its parent's leases are not its own.

Invariant: a thread has the turn (`turns`) from a job's begin to its end, and while a site is
settled.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import cast

import torch

from tierline_torch.belonging import Turns
from tierline_torch.calls import Invoke, current
from tierline_torch.captured import Captured
from tierline_torch.course import Course
from tierline_torch.errors import TierlineError
from tierline_torch.jobs import Backend, Lesson, Reportable, Site, Window
from tierline_torch.learned import LearnedOrders
from tierline_torch.survey import ModuleSurvey, Survey

_CAPTURED = "_tierline_captured"


class Process:
    """The one instance is `process()`."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.window: Window | None = None
        """The current release's, while a `tierline.periodic` loop is between two of them."""
        self.warming = False
        """Whether jobs are not counted yet, because the program's releases have not begun."""
        self.lessons = 0
        """How many jobs taught something so far."""
        self.site: Site | None = None
        """Whose job is in progress."""
        self.running: frozenset[int] = frozenset()
        """Ids of the modules under the roots of the job in progress, roots left out."""
        self._backend: Backend | None = None
        self._absent = not (os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE"))
        self._connecting = threading.Lock()
        self.captures = os.environ.get("TIERLINE_EXECUTION") == "CapturedGraph"
        """Whether outermost modules run as captured graphs."""
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], Site]] = {}
        self._blocks: dict[str, Site] = {}
        self._gone: list[Site] = []
        """Sites whose modules went before they were settled, where these are profiled."""
        self._claimed: dict[int, weakref.ref[torch.nn.Parameter]] = {}
        self._said: set[str] = set()
        self._learned: LearnedOrders | None = None
        os.register_at_fork(after_in_child=self._forked)

    @property
    def backend(self) -> Backend | None:
        """What runs this process's jobs; None if it runs without Tierline. Raises TierlineError."""
        if self._backend is None and not self._absent:
            with self._connecting:
                if self._backend is None and not self._absent:
                    self._connect()
        return self._backend

    def _connect(self) -> None:
        observed = os.environ.get("TIERLINE_OBSERVE")
        try:
            if observed:
                from tierline_torch.observe import Observer  # noqa: PLC0415  # one of the two

                self._backend = Observer(self, observed, _survey())
            else:
                from tierline_torch.managed import Manager  # noqa: PLC0415  # loads the library

                self._backend = Manager.connect(self, os.environ["TIERLINE_SOCKET"], _survey())
        except TierlineError as error:
            if os.environ.get("TIERLINE_REQUIRED") == "1":
                raise
            self._absent = True
            self.say(f"{error}; this program runs without Tierline")

    def _forked(self) -> None:
        self._absent = True
        self._backend = None
        self.turns = Turns()
        self._connecting = threading.Lock()
        self.running = frozenset()
        current.invoke = None

    def say(self, sentence: str) -> None:
        """Tell the user, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            sys.stderr.write(f"tierline: {sentence}\n")

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
            self._gone.append(known[1])

    def as_run(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module that runs for an outermost one: itself, or its captured graphs."""
        if not self.captures or isinstance(module, Captured):
            return module
        # Kept in the module, so that the two go together; no submodule of it.
        known = vars(module).get(_CAPTURED)
        if known is None:
            known = vars(module)[_CAPTURED] = Captured(module)
        return cast("Captured", known)

    def block(self, name: str) -> Site:
        """The site of an explicit job's name."""
        return self._blocks.setdefault(name, Site(name=name))

    def claimed(self, parameter: torch.nn.Parameter) -> bool:
        """Whether a site has laid out this parameter already."""
        known = self._claimed.get(id(parameter))
        return known is not None and known() is parameter

    def claim(self, parameter: torch.nn.Parameter) -> None:
        """Note that a site has laid out this parameter."""
        key = id(parameter)
        self._claimed[key] = weakref.ref(parameter, lambda _: self._claimed.pop(key, None))

    @property
    def learned(self) -> LearnedOrders:
        """What observed runs chose. Raises TierlineError."""
        if self._learned is None:
            self._learned = LearnedOrders.of_this_process()
        return self._learned

    def course(self, backend: Backend, site: Site) -> Course:
        """What the jobs of a site that is not settled have shown."""
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
        """Run the site's jobs from now on as the lesson says. Between two jobs, with the turn."""
        site.roots = tuple(weakref.ref(root) for root in roots)
        site.members |= members(roots) - {id(root) for root in roots}
        site.course = None
        site.workspace_bytes = lesson.workspace_bytes
        site.settled = True
        self.lessons += 1
        backend.settle(site, lesson)
        if lesson.contents is not None:
            for weight, _ in lesson.contents.placed:
                for parameter in weight.parameters:
                    self.claim(parameter)

    def settle_gone(self, backend: Backend) -> None:
        """Settle sites whose modules are gone, by what was seen of them. With the turn."""
        while self._gone:
            self._settle_as_seen(backend, self._gone.pop())

    def settle_all(self, backend: Backend) -> None:
        """Settle every site by what was seen so far: the program ends."""
        self.settle_gone(backend)
        for site in (*(site for _, site in self._modules.values()), *self._blocks.values()):
            self._settle_as_seen(backend, site)

    def _settle_as_seen(self, backend: Backend, site: Site) -> None:
        course = site.course
        if not site.settled and course is not None and course.began:
            self.settle(backend, site, course.roots, course.lesson())

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

    def take_turn(self, backend: Backend, site: Site) -> bool:
        """Wait until no other job runs; False if the one that runs waits for this thread."""
        if self.turns.take(lambda: backend.waits, patient=site.seen > 0):
            return True
        self.say(f"{site.name} runs as a part of the job in progress, which waits for its thread")
        return False

    def begin(self, backend: Backend, site: Site, deadline_s: float | None) -> Invoke:
        """Begin a job; what gets its module calls. This thread has the turn.

        Raises TierlineError: then there is none, nor the turn. Else `end` and `over` belong to it.
        """
        try:
            settled = site.settled
            window = self.window_for(backend, deadline_s)
            warmup = self.warming or not settled
            invoke = backend.begin(site, window, warmup=warmup, stream=settled)
        except BaseException:
            self.turns.give_back()
            raise
        site.seen += 1
        self.site = site
        self.running = site.members
        return invoke

    def end(self, backend: Backend, site: Site, *, failed: bool) -> Reportable | None:
        """Give the lease back; None if not even that went well. Raises TierlineError."""
        try:
            job = backend.end(site)
        except Exception as error:
            if not failed:
                raise
            # The program's own exception must reach it; this one can only be told.
            self.say(f"could not end the job of {site.name}: {error}")
            return None
        if site.settled and not failed:
            site.jobs += 1
        return job

    def over(self) -> None:
        """Let another job begin."""
        self.running = frozenset()
        self.site = None
        self.turns.give_back()

    def window_for(self, backend: Backend, deadline_s: float | None) -> Window:
        """When the job that begins now was released, and its deadline."""
        if deadline_s is None and self.window is not None:
            return self.window
        now = time.monotonic_ns() if self.window is None else self.window.release_ns
        relative = backend.deadline_ns if deadline_s is None else round(deadline_s * 1e9)
        return Window(now, now + relative)


def members(roots: Sequence[torch.nn.Module]) -> frozenset[int]:
    """Ids of all modules under these roots."""
    return frozenset(id(module) for root in roots for module in root.modules())


def _survey() -> Survey:
    """What watches jobs on the task's kind of device. Raises TierlineError."""
    if os.environ.get("TIERLINE_DEVICE") == "cuda":
        # It needs PyTorch's CUDA, and the library preloaded.
        from tierline_torch.launch_survey import LaunchSurvey  # noqa: PLC0415

        return LaunchSurvey.of_this_process()
    return ModuleSurvey()


_process: Process | None = None
_making = threading.Lock()


def process() -> Process:
    """This process's instance."""
    global _process  # noqa: PLW0603  # one per process is what it is
    if _process is None:
        with _making:
            if _process is None:
                _process = Process()
    return _process
