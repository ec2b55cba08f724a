"""A program's exception may arrive between any two instructions: it goes through, nothing is kept.

A tracer raises at each instruction of Tierline's that a job runs in the program's thread, one after
the other, as a signal handler would. The jobs after that must be right, and wait for nothing.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import tierline
from tierline_client import GiveBack
from tierline_torch import calls, dispatch, process
from tierline_torch.calls import Invoke, current, plain
from tierline_torch.learning.site import Reportable, Site, Window
from tierline_torch.learning.survey import ModuleSurvey, Survey
from tierline_torch.tensors import operators

EVERY = int(os.environ.get("EVERY_INSTRUCTION", "31"))
"""Of all instructions, every so many-th; with 1 it takes some minutes."""
_OURS = ("tierline", "tierline_torch", "tierline_client")
Instruction = tuple[CodeType, int]


class InterruptionError(Exception):
    """As a program's own timeout."""


class Lease:
    """A backend whose jobs have a lease, as one of an agent has."""

    period_ns = 0
    deadline_ns = 5_000_000
    releases: int | None = None
    profiles = False
    waits = False
    survey: Survey = ModuleSurvey()

    def __init__(self, *, wants_witness: bool) -> None:
        self.wants_witness = wants_witness
        self.lease = threading.RLock()
        self.over: GiveBack = self.lease.release

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        del site, window, warmup, stream
        assert self.lease.acquire(blocking=False), "two jobs at once"
        return plain

    def pause(self) -> None:
        pass

    without_lease = nullcontext

    def end(self, site: Site) -> Reportable:
        del site
        self.lease.release()
        return Reportable(1, 0.0)

    def witnessed(self, *digests: object) -> None:
        pass

    def settle(self, *lesson: object) -> None:
        pass

    def watched(self) -> None:
        pass

    def ready(self) -> tuple[int, int]:
        return 0, 0

    def finish(self) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["alone", "witnessed"])
def lease(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    backend = Lease(wants_witness=request.param)
    monkeypatch.setenv("TIERLINE_OBSERVE", "unused")
    here = process.Process()
    here._backend = backend
    monkeypatch.setattr(process, "_process", here)
    monkeypatch.setattr(nn.Module, "__call__", calls._call)
    monkeypatch.setattr(calls, "_outermost", dispatch.prepare())
    with torch.inference_mode():
        yield backend


def is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS


@contextmanager
def tracing(each: Callable[[FrameType], None]) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            each(frame)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def instructions(job: Callable[[], object]) -> list[Instruction]:
    """Those of Tierline's that a job runs, each once."""
    found: dict[Instruction, None] = {}
    with tracing(lambda frame: found.setdefault((frame.f_code, frame.f_lasti))):
        job()
    return list(found)


def is_interrupted(job: Callable[[], object], at: Instruction) -> bool:
    """Run a job that is interrupted there; False if it did not come there."""
    came = False

    def interrupt(frame: FrameType) -> None:
        nonlocal came
        if not came and (frame.f_code, frame.f_lasti) == at:
            came = True
            raise InterruptionError

    try:
        with tracing(interrupt):
            job()
    except InterruptionError:
        return True
    assert not came, "the program's exception was swallowed"
    return False


def elsewhere(look: Callable[[], bool]) -> bool:
    """What another thread sees."""
    seen: list[bool] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        seen.append(look())
        done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    return seen[0]


def is_free(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def is_left(lease: Lease) -> list[str]:
    """What is still taken."""
    here = process.process()
    left = {
        "lock": not elsewhere(lambda: is_free(here.job_lock._lock)),
        "lease": not elsewhere(lambda: is_free(lease.lease)),
        "invoke": current.invoke is not None,
        "site": here.site is not None or bool(here.running),
        "operators": operators._is_included(),
        "functions": not torch._C._is_torch_function_enabled(),
        "profiler": torch._C._autograd._profiler_enabled(),
    }
    return [name for name, taken in left.items() if taken]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2)).eval()


def blocks(inner: nn.Module, given: torch.Tensor) -> torch.Tensor:
    with tierline.job(name="block"):
        result: torch.Tensor = inner(given)
        return result


def calling(inner: nn.Module, given: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = inner(given)
    return result


@pytest.mark.parametrize("call", [calling, blocks])
@pytest.mark.parametrize("jobs_before", [0, 1, 3])
def test_a_job_may_be_interrupted_at_each_instruction(
    lease: Lease, call: Callable[[nn.Module, torch.Tensor], torch.Tensor], jobs_before: int
) -> None:
    """In its first job, in the one that settles it, and in a settled one."""
    here = process.process()
    given = torch.ones(3, 2)

    def fresh() -> nn.Module:
        here._blocks.clear()
        one = model()
        for _ in range(jobs_before):
            call(one, given)
        return one

    one = fresh()
    where = instructions(lambda: call(one, given))
    assert len(where) > 50
    faults = []
    for at in where[jobs_before % EVERY :: EVERY]:
        one = one if jobs_before > 2 else fresh()  # what is settled stays so
        right = one.forward(given)
        is_interrupted(lambda one=one: call(one, given), at)  # type: ignore[misc]  # it has none
        left = is_left(lease)
        later = all(torch.equal(call(one, given), right) for _ in range(3))
        if left or not later or is_left(lease):
            faults.append((at[0].co_qualname, at[1], left, later))
            break
    assert faults == []
