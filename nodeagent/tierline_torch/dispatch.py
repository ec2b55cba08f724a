"""Which module calls are jobs, and what becomes of one.

The outermost `forward` of a model without gradients is a job; so is a `tierline.job` block. Jobs of
one process run one at a time (`belonging` tells a part of the job in progress from another job).
Left alone are modules without weights, models run with gradients, and whatever is traced, compiled
or transformed by `torch.func`, also of a model that has served.

What of ours may take a while, or may raise, runs in `ours`. The rest runs in the program's thread,
where it may be interrupted between any two instructions; `afterwards` then gives back all that the
job has taken.

Invariant: each forward that the program calls runs once; and nothing of ours that goes wrong around
it reaches the program, but what Tierline has to tell it (TierlineError).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tierline_client import GiveBack, afterwards, enter_of, exit_of
from tierline_torch.calls import Invoke, current, invoking, plain
from tierline_torch.learning.course import GRAPHED, foreseen, resident
from tierline_torch.learning.site import Backend, Lesson, Reportable, Site
from tierline_torch.learning.watch import Watch
from tierline_torch.ours import ours
from tierline_torch.process import Process, members, process
from tierline_torch.tensors.looking import (
    guarded,
    is_captured,
    is_transformed,
    reason_of,
    unasked,
)
from tierline_torch.tensors.operators import cover, unseen
from tierline_torch.tensors.structures import Kept, digest, digest_kept, keep


class Job:
    """One job: from the lock to its return, and learning afterwards."""

    def __init__(
        self,
        process: Process,
        backend: Backend,
        site: Site,
        taken: list[GiveBack],
        root: torch.nn.Module | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """The job of `root`, or of a block. `taken` gives back all that it takes."""
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
        self._taken = taken

    def begin(self) -> None:
        """Take what a job takes, in its thread, which has the lock. Raises TierlineError."""
        site, backend = self._site, self._backend
        self._inner = self._process.begin(backend, site, self._deadline_s)
        if not site.settled:
            ours(self._make_ready)
        if self._watch is not None:
            self._watch.begin(self._taken)
        current.invoke = self.outermost

    def _make_ready(self) -> None:
        with guarded(self._process.say, f"watch a job of {self._site.name}"), unseen():
            course = self._process.course(self._backend, self._site)
            roots = course.roots
            if self._root is not None and not any(one is self._root for one in roots):
                roots.append(self._root)
            watch = Watch(self._backend.survey, self._process.say, self._backend.pause)
            watch.look(roots)
            self._watch = watch

    def run(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One outermost forward as a job."""
        site, backend = self._site, self._backend
        if not self._process.take_turn(backend, site, self._taken):
            self._process.join(site, module)
            return _plain_within(module, args, kwargs)
        if not site.settled and not site.seen and backend.survey.foresees:
            ours(partial(_foresee, self._process, backend, site, module))
        self.begin()
        failed = True
        try:
            output = self.forward(module, args, kwargs)
            if backend.wants_witness:
                self.keep(args, kwargs, output)
            failed = False
        finally:
            self.end(failed=failed)
        return output

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
            ours(self._witness)  # the next forward may write where this one's values are
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
        ours(partial(self._keep, (args, kwargs), output))

    def _keep(self, given: tuple[Any, ...], output: Any) -> None:
        with guarded(self._process.say, f"compare outputs of {self._site.name}"), unseen():
            self._kept = keep(*given), keep(output)

    def _witness(self) -> None:
        if self._kept is not None:
            seen, given = self._kept
            self._kept = None
            self._seen.append(digest_kept(seen))
            self._given.append(digest_kept(given))

    def end(self, *, failed: bool) -> None:
        """End the job, and take in what it showed. Raises TierlineError if it did not fail."""
        current.invoke = None
        process, watch = self._process, self._watch
        if watch is not None and process.is_of(self._backend):
            watch.end()
        self._counted = process.end(self._backend, self._site, failed=failed)
        if watch is None or not process.is_of(self._backend):
            return
        if self._counted is not None or failed:
            ours(partial(self._learn, watch, failed=failed))
        else:
            # A part of another process's job ends before anything of the agent's is waited for.
            watch.forget()

    def _learn(self, watch: Watch, *, failed: bool) -> None:
        """Take in what this job showed; settle the site if that is enough. Between two jobs."""
        with unseen():
            self._take_in(watch, failed=failed)

    def _take_in(self, watch: Watch, *, failed: bool) -> None:
        self._watch = None
        site, process, backend = self._site, self._process, self._backend
        course = process.course(backend, site)
        try:
            enough = course.add(watch, process.claims.claimed, failed=failed)
            lesson = course.lesson(process.models()) if enough else None
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
        if self._counted is not None and (self._kept is not None or self._seen):
            ours(partial(self._report, self._counted))

    def _report(self, job: Reportable) -> None:
        with guarded(self._process.say, f"compare outputs of {self._site.name}"), unseen():
            self._witness()
        if self._seen:
            self._backend.witnessed(job, digest(self._seen), digest(self._given))


def left_alone(module: torch.nn.Module, kind: str) -> str | None:
    """Why an outermost forward of this module is no job; None if it is one."""
    return unasked(partial(_left_alone, module, kind))


def _left_alone(module: torch.nn.Module, kind: str) -> str | None:
    weights = False
    grad = torch.is_grad_enabled()
    for parameter in module.parameters():
        if grad and parameter.requires_grad:
            return (
                "it runs with gradients; use torch.inference_mode() or torch.no_grad(), or "
                "spec.training for a program that trains"
            )
        weights = weights or parameter.device.type == kind
        if weights and not grad:
            break
    if not weights and not _has_state(module):
        return ""
    return None


def _has_state(module: torch.nn.Module) -> bool:
    """Whether a module without parameters has weights in buffers, or elsewhere."""
    return isinstance(module, torch.jit.ScriptModule) or any(True for _ in module.buffers())


def prepare() -> Invoke:
    """The runner of outermost calls from now on; the first of them need not wait for more."""
    cover()
    return outermost


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
    taken: list[GiveBack] = []
    if site.settled and not backend.wants_witness:
        return afterwards(taken, _run, here, backend, site, taken, module, args, kwargs)
    job = Job(here, backend, site, taken, module)
    output = afterwards(taken, job.run, module, args, kwargs)
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
    if not site.settled and not alone:
        taken: list[GiveBack] = []
        afterwards(taken, _settle_resident, here, backend, site, taken, module)
    return _plain_within(module, args, kwargs)


def _settle_resident(
    here: Process, backend: Backend, site: Site, taken: list[GiveBack], module: torch.nn.Module
) -> None:
    """What a graph of the program's own reads is not moved."""
    if here.take_turn(backend, site, taken):
        ours(partial(_stay, here, backend, site, module))


def _stay(here: Process, backend: Backend, site: Site, module: torch.nn.Module) -> None:
    with guarded(here.say, f"look at {site.name}"):
        lesson = resident(module, backend.survey, here.claims.claimed, GRAPHED)
        here.settle(backend, site, [module], lesson)


def _foresee(here: Process, backend: Backend, site: Site, module: torch.nn.Module) -> None:
    """Settle a site before its first job, if an observed run has learned it."""
    with guarded(here.say, f"look at {site.name} before its first job"), unseen():
        lesson = foreseen(module, backend.survey, here.learned, here.claims.claimed)
        if lesson is not None:
            here.settle(backend, site, [module], lesson)


def _run(
    here: Process,
    backend: Backend,
    site: Site,
    taken: list[GiveBack],
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One outermost forward as a job that teaches nothing and is not reported.

    `Job` could do it. But the GPU waits for all that comes before the model, and after milliseconds
    of waiting for the GPU each line of that takes a few times as long as when it is repeated.
    """
    if not here.take_turn(backend, site, taken):
        here.join(site, module)
        return _plain_within(module, args, kwargs)
    current.invoke = invoke = here.begin(backend, site, None)
    failed = True
    try:
        output = invoke(module, args, kwargs)
        failed = False
    finally:
        current.invoke = None
        here.end(backend, site, failed=failed)
    return output


class Block:
    """A `with` block that is a job, or a part of the one around it.

    Its two ends are written in C: nothing of the program's comes between them and the block.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, name: str, deadline_s: float | None) -> None:
        taken: list[GiveBack] = []
        begun: list[Job] = []
        self.__enter__ = enter_of(taken, partial(_enter, name, deadline_s, taken, begun))
        self.__exit__ = exit_of(taken, partial(_exit, begun))


def _enter(name: str, deadline_s: float | None, taken: list[GiveBack], begun: list[Job]) -> None:
    here = process()
    backend = here.backend
    if backend is None or current.invoke is not None or is_captured():
        return
    site = here.block(name)
    if here.take_turn(backend, site, taken):
        begun.append(Job(here, backend, site, taken, deadline_s=deadline_s))
        begun[0].begin()
    else:
        taken.append(partial(setattr, current, "invoke", None))
        current.invoke = plain


def _exit(begun: list[Job], kind: type[BaseException] | None, error: Any, trace: Any) -> None:
    del error, trace
    if begun:
        begun[0].end(failed=kind is not None)
        begun.pop().report()
