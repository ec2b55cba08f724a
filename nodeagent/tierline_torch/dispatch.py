"""Which module calls are jobs, and what becomes of one.

The outermost `forward` of a model without gradients is a job; so is a `tierline.job` block. Jobs of
one process run one at a time (`belonging` tells a part of the job in progress from another job).
Left alone are modules without weights, models run with gradients, and whatever is traced, compiled
or transformed by `torch.func`, also of a model that has served.

Invariant: each forward that the program calls runs once; and nothing of ours that goes wrong around
it reaches the program, but what Tierline has to tell it (TierlineError).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tierline_torch.calls import Invoke, current, invoking, plain
from tierline_torch.learning.course import GRAPHED, foreseen, resident
from tierline_torch.learning.site import Backend, Lesson, Reportable, Site
from tierline_torch.learning.watch import Watch
from tierline_torch.process import Process, members, process
from tierline_torch.tensors.looking import guarded, is_captured, is_transformed, reason_of
from tierline_torch.tensors.operators import unseen
from tierline_torch.tensors.structures import Kept, digest, digest_kept, keep


class Job:
    """One job, as a context manager: from the lease to its return, and learning afterwards."""

    def __init__(
        self,
        process: Process,
        backend: Backend,
        site: Site,
        root: torch.nn.Module | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """The job of `root`, or of a block."""
        self._process = process
        self._backend = backend
        self._site = site
        self._root = root
        self._deadline_s = deadline_s
        self._watch: Watch | None = None
        self._inner: Invoke = plain
        self._kept: tuple[Kept, Kept] | None = None
        self._seen: list[bytes] = []
        self._given: list[bytes] = []
        self._counted: Reportable | None = None

    def __enter__(self) -> Job:
        site, backend = self._site, self._backend
        self._inner = self._process.begin(backend, site, self._deadline_s)
        try:
            if not site.settled:
                self._begin_to_watch()
            current.invoke = self.outermost
        except BaseException:
            self._process.end(backend, site, failed=True)
            self._process.over()
            raise
        return self

    def _begin_to_watch(self) -> None:
        with guarded(self._process.say, f"watch a job of {self._site.name}"), unseen():
            course = self._process.course(self._backend, self._site)
            roots = course.roots
            if self._root is not None and not any(one is self._root for one in roots):
                roots.append(self._root)
            watch = Watch(self._backend.survey, self._process.say, self._backend.pause)
            watch.begin(roots)
            self._watch = watch

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an outermost forward of an explicit job.

        One that is captured computes nothing yet, and nobody may look at what it gives.
        """
        if is_captured():
            return _plain_within(module, args, kwargs)
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
        if self._watch is None:
            with invoking(self._inner):
                return self._inner(module, args, kwargs)
        if is_transformed() or left_alone(module, self._backend.survey.kind) is not None:
            with invoking(plain):
                return plain(module, args, kwargs)
        self._process.running |= members([module]) - {id(module)}
        return self._watch.outermost(module, args, kwargs)

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Keep a forward's inputs and output for the report.

        Within the job, as it may use the device, and nothing may use that without the lease.
        """
        with guarded(self._process.say, f"compare outputs of {self._site.name}"), unseen():
            self._kept = keep(args, kwargs), keep(output)

    def _witness(self) -> None:
        if self._kept is not None:
            seen, given = self._kept
            self._kept = None
            self._seen.append(digest_kept(seen))
            self._given.append(digest_kept(given))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        current.invoke = None
        with unseen():
            self._end(failed=kind is not None)

    def _end(self, *, failed: bool) -> None:
        site, process = self._site, self._process
        try:
            try:
                if self._watch is not None:
                    self._end_watch(self._watch)
            finally:
                self._counted = process.end(self._backend, site, failed=failed)
            if self._watch is not None and process.is_of(self._backend):
                # A part of another process's job ends before anything of the agent's is waited for.
                if self._counted is not None or failed:
                    self._learn(self._watch, failed=failed)
                else:
                    self._watch.forget()
        finally:
            process.over()

    def _end_watch(self, watch: Watch) -> None:
        with guarded(self._process.say, f"watch a job of {self._site.name}"):
            watch.end()

    def _learn(self, watch: Watch, *, failed: bool) -> None:
        """Take in what this job showed; settle the site if that is enough. Between two jobs."""
        self._watch = None
        site, process, backend = self._site, self._process, self._backend
        course = process.course(backend, site)
        try:
            enough = course.add(watch, process.claims.claimed, failed=failed)
            lesson = course.lesson() if enough else None
        except Exception as error:  # a user's module may raise anything when it is looked at
            lesson = Lesson.nothing(f"its jobs cannot be watched: {reason_of(error)}")
        roots = course.roots
        watch.forget()
        if roots:
            process.lessons += 1
        if lesson is not None:
            process.settle(backend, site, roots, lesson)
            del lesson, roots, course
            backend.survey.tidy()  # nothing refers to the weights' own memory any more
        backend.watched()

    def report(self) -> None:
        """Send the digests, when the job is over."""
        if self._counted is not None:
            with guarded(self._process.say, f"compare outputs of {self._site.name}"), unseen():
                self._witness()
            if self._seen:
                self._backend.witnessed(self._counted, digest(self._seen), digest(self._given))


def left_alone(module: torch.nn.Module, kind: str) -> str | None:
    """Why an outermost forward of this module is no job; None if it is one."""
    weights = False
    grad = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():  # a program's modes are not asked
        for parameter in module.parameters():
            if grad and parameter.requires_grad:
                return "it runs with gradients; use torch.inference_mode() or torch.no_grad()"
            weights = weights or parameter.device.type == kind
            if weights and not grad:
                break
    if not weights and not _has_state(module):
        return ""
    return None


def _has_state(module: torch.nn.Module) -> bool:
    """Whether a module without parameters has weights in buffers, or elsewhere."""
    return isinstance(module, torch.jit.ScriptModule) or any(True for _ in module.buffers())


def outermost(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a module call that no other encloses in this thread: a job, if it is one."""
    here = process()
    backend = here.backend
    if backend is not None and is_captured():
        return _in_a_capture(here, backend, module, args, kwargs)
    if backend is not None and here.captures:
        module = here.as_run(module)
    if backend is None or id(module) in here.running:
        # A part of the job in progress, called from a thread of the job's making: were it to wait
        # for its own job's end, neither would go on.
        return plain(module, args, kwargs)
    site = here.site_of(module)
    reason = None if site.settled else left_alone(module, backend.survey.kind)
    if is_transformed():
        reason = "it is traced, compiled or transformed"
    if reason is not None:
        return _leave_alone(here, reason, module, args, kwargs)
    if not here.take_turn(backend, site):
        here.join(site, module)
        return _plain_within(module, args, kwargs)
    if not site.settled and not site.seen and backend.survey.foresees:
        _foresee(here, backend, site, module)
    if site.settled and not backend.wants_witness:
        return _run(here, backend, site, module, args, kwargs)
    with Job(here, backend, site, module) as job:
        output = job.forward(module, args, kwargs)
        if backend.wants_witness:
            job.keep(args, kwargs, output)
    job.report()
    return output


def _plain_within(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call and all within it as PyTorch would."""
    with invoking(plain):
        return plain(module, args, kwargs)


def _leave_alone(
    here: Process,
    reason: str,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not reason:
        return plain(module, args, kwargs)  # what it calls may be a job
    here.say(f"{type(module).__name__} is left alone: {reason}")
    return _plain_within(module, args, kwargs)


def _in_a_capture(
    here: Process,
    backend: Backend,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call that the program captures in a graph of its own. It computes nothing by itself.

    Launches of the graph are jobs by themselves. They look for the weights where these are now, so
    weights that did not move yet never do.
    """
    site = here.site_of(module)
    alone = is_transformed() or left_alone(module, backend.survey.kind) is not None
    if not site.settled and not alone and here.take_turn(backend, site):
        try:
            with guarded(here.say, f"look at {site.name}"):
                lesson = resident(module, backend.survey, here.claims.claimed, GRAPHED)
                here.settle(backend, site, [module], lesson)
        finally:
            here.turns.give_back()
    return _plain_within(module, args, kwargs)


def _foresee(here: Process, backend: Backend, site: Site, module: torch.nn.Module) -> None:
    """Settle a site before its first job, if an observed run has learned it."""
    try:
        with guarded(here.say, f"look at {site.name} before its first job"), unseen():
            lesson = foreseen(module, backend.survey, here.learned, here.claims.claimed)
            if lesson is not None:
                here.settle(backend, site, [module], lesson)
    except BaseException:
        here.turns.give_back()
        raise


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
    if backend is None or current.invoke is not None or is_captured():
        yield
        return
    site = here.block(name)
    if not here.take_turn(backend, site):
        with invoking(plain):
            yield
        return
    job = Job(here, backend, site, deadline_s=deadline_s)
    with job:
        yield
    job.report()
