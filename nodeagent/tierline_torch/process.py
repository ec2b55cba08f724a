"""What this process is to Tierline: its backend, its job roots, and which calls are jobs.

The outermost `forward` of an eval model without gradients is a job; so is a `tierline.job` block.
Jobs of one process run one at a time; a thread that wants one waits. Left alone are modules without
weights, models in training mode or run with gradients, and whatever is being traced.

The connection is made by the first job or the first release, never by an import. A process that
cannot reach its agent says so once and runs as if Tierline were not there, unless
TIERLINE_REQUIRED=1. A forked child runs without Tierline: its parent's leases are not its own.

Invariant: `lock` is held from a job's begin to its end, and while a site is learned.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch

from tierline_torch.calls import Invoke, current, invoking, plain
from tierline_torch.captured import Captured
from tierline_torch.errors import TierlineError
from tierline_torch.jobs import Backend, Reportable, Site, Window
from tierline_torch.lessons import FirstRun, learn, members
from tierline_torch.structures import Kept, digest, digest_kept, keep
from tierline_torch.survey import ModuleSurvey, Survey

_CAPTURED = "_tierline_captured"


class Process:
    """The one instance is `process()`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.window: Window | None = None
        """The current release's, while a `tierline.periodic` loop is between two of them."""
        self.warming = False
        """Whether jobs are not counted yet, because the program's releases have not begun."""
        self.lessons = 0
        """How many sites were settled so far."""
        self.running: frozenset[int] = frozenset()
        """Ids of the modules under the roots of the job in progress, roots left out."""
        self._backend: Backend | None = None
        self._absent = not (os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE"))
        self._connecting = threading.Lock()
        self.captures = os.environ.get("TIERLINE_EXECUTION") == "CapturedGraph"
        """Whether outermost modules run as captured graphs."""
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], Site]] = {}
        self._blocks: dict[str, Site] = {}
        self._claimed: dict[int, weakref.ref[torch.nn.Parameter]] = {}
        self._said: set[str] = set()
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
        self.lock = threading.Lock()
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
        gone = weakref.ref(module, lambda _: self._modules.pop(key, None))
        self._modules[key] = (gone, site)
        return site

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

    def begin(self, backend: Backend, site: Site, deadline_s: float | None) -> Invoke:
        """Begin a job, as soon as no other one runs; what gets its module calls.

        Raises TierlineError: then there is none. Else `end` and `over` belong to it.
        """
        self.lock.acquire()
        try:
            settled = site.settled
            window = self.window_for(backend, deadline_s)
            warmup = self.warming or not settled
            invoke = backend.begin(site, window, warmup=warmup, stream=settled)
        except BaseException:
            self.lock.release()
            raise
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
        self.lock.release()

    def window_for(self, backend: Backend, deadline_s: float | None) -> Window:
        """When the job that begins now was released, and its deadline."""
        if deadline_s is None and self.window is not None:
            return self.window
        now = time.monotonic_ns() if self.window is None else self.window.release_ns
        relative = backend.deadline_ns if deadline_s is None else round(deadline_s * 1e9)
        return Window(now, now + relative)


class Job:
    """One job, as a context manager: from the lease to its return, and learning afterwards."""

    def __init__(
        self, process: Process, backend: Backend, site: Site, deadline_s: float | None = None
    ) -> None:
        self._process = process
        self._backend = backend
        self._site = site
        self._deadline_s = deadline_s
        self._first: FirstRun | None = None
        self._inner: Invoke = plain
        self._kept: tuple[Kept, Kept] | None = None
        self._seen: list[bytes] = []
        self._given: list[bytes] = []
        self._counted: Reportable | None = None
        self._recording: AbstractContextManager[object] | None = None

    def __enter__(self) -> Job:
        site, backend = self._site, self._backend
        self._inner = self._process.begin(backend, site, self._deadline_s)
        try:
            if not site.settled:
                self._first = FirstRun(backend.survey)
                recording = self._first.watching()
                recording.__enter__()
                self._recording = recording
            current.invoke = self.outermost
        except BaseException:
            self._process.end(backend, site, failed=True)
            self._process.over()
            raise
        return self

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an outermost forward of an explicit job."""
        module = self._process.as_run(module)
        output = self.forward(module, args, kwargs)
        if self._backend.wants_witness:
            self.keep(args, kwargs, output)
            self._witness()  # the next forward may write where this one's values are
        return output

    def forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one outermost forward."""
        if self._first is None:
            before, current.invoke = current.invoke, self._inner
            try:
                return self._inner(module, args, kwargs)
            finally:
                current.invoke = before
        if left_alone(module, self._backend.survey.kind) is not None:
            with invoking(plain):
                return plain(module, args, kwargs)
        self._process.running |= members([module]) - {id(module)}
        return self._first.outermost(module, args, kwargs)

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Keep a forward's inputs and output for the report.

        Within the job, as it may use the device, and nothing may use that without the lease.
        """
        self._kept = keep(args, kwargs), keep(output)

    def _witness(self) -> None:
        if self._kept is not None:
            seen, given = self._kept
            self._kept = None
            self._seen.append(digest_kept(seen))
            self._given.append(digest_kept(given))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        current.invoke = None
        try:
            if self._recording is not None:
                self._recording.__exit__(None, None, None)
            self._counted = self._process.end(self._backend, self._site, failed=kind is not None)
            if kind is None and self._first is not None:
                self._settle(self._first)
                self._backend.survey.tidy()  # nothing refers to the weights' own memory any more
        finally:
            self._process.over()

    def report(self) -> None:
        """Send the digests, when the job is over."""
        # The first job ran without what the report is about.
        if self._first is None and self._counted is not None:
            self._witness()
            if self._seen:
                self._backend.witnessed(self._counted, digest(self._seen), digest(self._given))

    def _settle(self, first: FirstRun) -> None:
        if not first.roots:
            return  # nothing ran; the next job may show more
        site, process = self._site, self._process
        lesson = learn(first, process.claimed, self._lease)
        site.roots = tuple(weakref.ref(root) for root in first.roots)
        site.members = members(first.roots) - {id(root) for root in first.roots}
        if lesson is not None:
            site.workspace_bytes = lesson.workspace_bytes
            self._backend.settle(site, lesson)
            for weight, _ in lesson.contents.placed:
                for parameter in weight.parameters:
                    process.claim(parameter)
        site.settled = True
        process.lessons += 1

    @contextmanager
    def _lease(self) -> Iterator[None]:
        now = time.monotonic_ns()
        window = Window(now, now + self._backend.deadline_ns)
        self._backend.begin(self._site, window, warmup=True, stream=False)
        try:
            yield
        finally:
            self._backend.end(self._site)


def left_alone(module: torch.nn.Module, kind: str) -> str | None:
    """Why an outermost forward of this module is no job; None if it is one."""
    if torch._C._get_tracing_state() is not None or torch.compiler.is_compiling():
        return "it is being traced"
    weights = False
    grad = torch.is_grad_enabled()
    for parameter in module.parameters():
        if grad and parameter.requires_grad:
            return "it runs with gradients; use torch.inference_mode() or torch.no_grad()"
        weights = weights or parameter.device.type == kind
        if weights and not grad:
            break
    if not weights:
        return ""
    if module.training:
        return "it is in training mode; call its eval()"
    return None


def outermost(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a module call that no other encloses in this thread: a job, if it is one."""
    here = _process or process()
    backend = here.backend
    if backend is not None and here.captures:
        module = here.as_run(module)
    if backend is None or id(module) in here.running:
        # A part of the job in progress, called from a thread of the job's making: were it to wait
        # for its own job's end, neither would go on.
        return plain(module, args, kwargs)
    site = here.site_of(module)
    if not site.settled:
        reason = left_alone(module, backend.survey.kind)
        if reason is not None:
            if not reason:
                return plain(module, args, kwargs)  # what it calls may be a job
            here.say(f"{site.name} is left alone: {reason}")
            with invoking(plain):
                return plain(module, args, kwargs)
    if site.settled and not backend.wants_witness:
        return _run(here, backend, site, module, args, kwargs)
    with Job(here, backend, site) as job:
        output = job.forward(module, args, kwargs)
        if backend.wants_witness:
            job.keep(args, kwargs, output)
    job.report()
    return output


def _run(
    here: Process,
    backend: Backend,
    site: Site,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One outermost forward as a job that teaches nothing and is not reported.

    `Job` could do it. But the GPU waits for all that comes before the model, and after milliseconds
    of waiting for the GPU each line of that takes a few times as long as when it is repeated.
    """
    current.invoke = invoke = here.begin(backend, site, None)
    failed = True
    try:
        output = invoke(module, args, kwargs)
        failed = False
    finally:
        current.invoke = None
        try:
            here.end(backend, site, failed=failed)
        finally:
            here.over()
    return output


@contextmanager
def explicit_job(name: str, deadline_s: float | None) -> Iterator[None]:
    """The block is one job. Inside another job of the same thread it is part of that one."""
    here = process()
    backend = here.backend
    if backend is None or current.invoke is not None:
        with nullcontext():
            yield
        return
    job = Job(here, backend, here.block(name), deadline_s)
    with job:
        yield
    job.report()


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
