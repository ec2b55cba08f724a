"""Which calls are jobs, and what a backend is told of them. The one here writes it down."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import tierline
from tierline_torch import calls, dispatch, failures, process
from tierline_torch.calls import Invoke, plain
from tierline_torch.errors import TierlineError
from tierline_torch.learning.site import Lesson, Reportable, Site, Window
from tierline_torch.learning.survey import ModuleSurvey, Survey


class Diary:
    """A backend that settles every site without gates."""

    period_ns = 10_000_000
    deadline_ns = 5_000_000
    releases: int | None = 2
    wants_witness = True
    profiles = False
    waits = False
    over = bool
    survey: Survey = ModuleSurvey()

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.windows: list[Window] = []
        self.lessons: list[Lesson] = []
        self.witnesses: list[tuple[bytes, bytes]] = []
        self.running = 0
        self.pauses = 0

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        assert self.running == 0, "two jobs at once"
        self.running += 1
        kind = "warm-up" if warmup else "job"
        self.lines.append(f"{kind} {site.name}{' streamed' if stream else ''}")
        self.windows.append(window)
        return plain

    def pause(self) -> None:
        assert self.running == 1, "no job is in progress"
        self.pauses += 1

    @contextmanager
    def without_lease(self) -> Iterator[None]:
        self.lines.append("gives the device away")
        yield
        self.lines.append("has it again")

    def end(self, site: Site) -> Reportable:
        self.running -= 1
        self.lines.append(f"end {site.name}")
        return Reportable(len(self.lines), 0.0)

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        assert job.number
        self.witnesses.append((inputs, outputs))

    def settle(self, site: Site, lesson: Lesson) -> None:
        self.lines.append(f"settle {site.name}")
        self.lessons.append(lesson)

    def watched(self) -> None:
        pass

    def ready(self) -> tuple[int, int]:
        self.lines.append("ready")
        return time.monotonic_ns(), 0

    def finish(self) -> None:
        self.lines.append("finish")

    def forget(self) -> None:
        self.lines.clear()
        self.windows.clear()


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Diary]:
    backend = Diary()
    monkeypatch.setenv("TIERLINE_OBSERVE", "unused")
    here = process.Process()
    here._backend = backend
    monkeypatch.setattr(process, "_process", here)
    monkeypatch.setattr(nn.Module, "__call__", calls._call)
    monkeypatch.setattr(calls, "_outermost", dispatch.prepare())
    with torch.inference_mode():
        yield backend


def learned(model: nn.Module, diary: Diary, *args: Any) -> None:
    model(*args)
    model(*args)
    diary.forget()


ONCE = ["warm-up Linear", "end Linear"]
LEARN = ONCE * 2 + ["settle Linear"]


def test_the_outermost_forward_is_the_job_and_two_that_are_alike_settle_it(diary: Diary) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()
    model(torch.ones(2))
    model(torch.ones(2))
    assert diary.lines == [line.replace("Linear", "Sequential") for line in LEARN]
    assert diary.pauses == 2 * 2 * 3  # before and after each of three modules, in both first jobs
    diary.forget()
    model(torch.ones(2))
    assert diary.lines == ["job Sequential streamed", "end Sequential"]


def test_only_a_first_job_gives_the_device_away_where_it_needs_none(diary: Diary) -> None:
    class Captures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with calls.current.without_lease():
                return self.layer(x)

    model = Captures().eval()
    model(torch.ones(2))
    away = ["gives the device away", "has it again"]
    assert diary.lines == ["warm-up Captures", *away, "end Captures"]
    learned(model, diary, torch.ones(2))
    model(torch.ones(2))
    assert diary.lines == ["job Captures streamed", "end Captures"]
    with calls.current.without_lease():
        assert diary.lines[-1] == "end Captures"


def test_jobs_that_fail_in_tierlines_code_are_counted_for_whoever_reads_the_log(
    diary: Diary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> Invoke:
        raise TierlineError("could not begin a job:\nno agent")

    model = nn.Linear(2, 2).eval()
    learned(model, diary, torch.ones(2))
    monkeypatch.setattr(diary, "begin", refuse)
    for _ in range(9):
        with pytest.raises(TierlineError):
            model(torch.ones(2))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4, "1, 2, 4 and 8"
    assert failures.read(["something else", *said]) == (8, "could not begin a job: no agent")


def test_failed_jobs_of_several_processes_add_up() -> None:
    told = [f"tierline: {failures.sentence(n, pid, 'why')}" for pid in (5, 6) for n in (1, 2)]
    assert failures.read(told) == (4, "why")
    assert failures.read([]) == (0, "")


def test_nothing_holds_the_memory_of_weights_that_moved_when_it_is_tidied(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2).eval()
    held = [one.untyped_storage()._weak_ref() for one in model.parameters()]
    found: list[bool] = []

    def move(_site: Site, lesson: Lesson) -> None:
        assert lesson.contents is not None
        for weight, _ in lesson.contents.placed:
            for parameter in weight.tensors:
                parameter.data = parameter.data.clone()

    def tidy() -> None:
        gc.collect()
        found.extend(bool(torch.UntypedStorage._expired(one)) for one in held)

    monkeypatch.setattr(diary, "settle", move)
    monkeypatch.setattr(diary, "survey", ModuleSurvey())
    monkeypatch.setattr(diary.survey, "tidy", tidy)
    model(torch.ones(2))
    model(torch.ones(2))
    assert found == [True, True]


def test_inputs_and_outputs_of_all_jobs_are_witnessed(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    for value in (1.0, 1.0, 2.0):
        model(torch.full((2,), value))
    first, again, other = diary.witnesses
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def differentiate(model: nn.Module) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        model(torch.ones(2))


def trace(model: nn.Module) -> None:
    with torch.inference_mode(False), torch.no_grad():
        torch.jit.trace(model, torch.ones(2), check_trace=False)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("use", [differentiate, trace])
def test_left_alone(diary: Diary, use: Callable[[nn.Module], None]) -> None:
    use(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval())
    assert diary.lines == []


def test_a_model_in_training_mode_is_a_job(diary: Diary) -> None:
    nn.Linear(2, 2).train()(torch.ones(2))
    assert diary.lines == ONCE


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_frozen_script_runs_though_it_is_in_no_mode(diary: Diary) -> None:
    given = torch.ones(2)
    with torch.inference_mode(False), torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(nn.Linear(2, 2).eval(), given))
        expected = frozen.forward(given)
        assert not hasattr(frozen, "training")
        assert torch.equal(frozen(given), expected)
    assert diary.lines


def test_a_module_without_weights_is_no_job_but_may_call_one(diary: Diary) -> None:
    inner = nn.Linear(2, 2).eval()

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = inner(x)
            return output

    Calls().eval()(torch.ones(2))
    assert diary.lines == ONCE


def test_weights_without_gradients_need_no_mode(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval().requires_grad_(False)
    with torch.inference_mode(False), torch.enable_grad():
        model(torch.ones(2))
    assert diary.lines == ONCE


def test_a_block_is_one_job_known_by_its_name(diary: Diary) -> None:
    first, second = nn.Linear(2, 2).eval(), nn.Linear(2, 3).eval()
    for _ in range(3):
        with tierline.job(name="both"):
            second(first(torch.ones(2)))
    assert diary.lines == [
        *(line.replace("Linear", "both") for line in LEARN),
        "job both streamed",
        "end both",
    ]
    (lesson,) = diary.lessons
    assert lesson.contents is not None
    assert [entry.name for entry in lesson.contents.entries] == ["Linear", "Linear"]


def test_a_block_is_known_by_its_place_and_nests(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    for _ in range(2):
        with tierline.job(), tierline.job(name="inner"):
            model(torch.ones(2))
    names = {line.split()[1] for line in diary.lines}
    (name,) = names
    assert name.startswith("test_process.py:")


def test_a_block_without_a_module_is_not_learned_yet(diary: Diary) -> None:
    for _ in range(2):
        with tierline.job(name="empty"):
            pass
    assert diary.lines == ["warm-up empty", "end empty"] * 2


def test_nobody_looks_at_what_a_captured_forward_gives(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2).eval()
    with tierline.job(name="block"):
        model(torch.ones(2))
    with tierline.job(name="block"):
        model(torch.ones(2))
        with monkeypatch.context() as capture:
            capture.setattr(dispatch, "is_captured", lambda: True)
            model(torch.full((2,), 2.0))
    assert len(diary.witnesses) == 2
    assert diary.witnesses[0] == diary.witnesses[1]


def test_a_deadline_counts_from_the_release(diary: Diary) -> None:
    learned(model := nn.Linear(2, 2).eval(), diary, torch.ones(2))
    model(torch.ones(2))
    with tierline.job(name="block", deadline=0.25):
        pass
    spans = [window.deadline_ns - window.release_ns for window in diary.windows]
    assert spans == [diary.deadline_ns, 250_000_000]


@pytest.mark.parametrize("deadline", [0, -1])
def test_a_deadline_that_is_not_positive_is_refused(deadline: float) -> None:
    with pytest.raises(ValueError, match="give more than 0"):
        tierline.job(deadline=deadline)


def test_an_exception_ends_the_job_and_reaches_the_program(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    with pytest.raises(RuntimeError):
        model(torch.ones(3))
    assert diary.lines == ONCE
    diary.forget()
    model(torch.ones(2))
    model(torch.ones(2))
    assert diary.lines == LEARN
    with pytest.raises(RuntimeError):
        model(torch.ones(3))
    assert diary.running == 0
    model(torch.ones(2))


def test_a_failing_end_hides_no_exception_of_the_program(
    diary: Diary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learned(model := nn.Linear(2, 2).eval(), diary, torch.ones(2))

    def fails(site: Site) -> Reportable:
        diary.running -= 1
        raise tierline.TierlineError("the agent is gone")

    monkeypatch.setattr(diary, "end", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(3))
    assert "could not end the job of Linear: the agent is gone" in capsys.readouterr().err
    with pytest.raises(tierline.TierlineError, match="gone"):
        model(torch.ones(2))


def test_threads_take_turns(diary: Diary) -> None:
    models = [nn.Linear(2, 2).eval() for _ in range(3)]
    for model in models:
        learned(model, diary, torch.ones(2))

    def work(model: nn.Module) -> None:
        with torch.inference_mode():
            for _ in range(5):
                model(torch.ones(2))

    diary.forget()
    threads = [threading.Thread(target=work, args=(one,)) for one in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert diary.lines == ["job Linear streamed", "end Linear"] * 15


JOBS = 8


@pytest.mark.slow
@pytest.mark.parametrize("served", [0, 3])
def test_members_in_a_list_that_a_pool_runs_belong_to_their_job(diary: Diary, served: int) -> None:
    members = [nn.Linear(2, 2).eval() for _ in range(3)]

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.members, self.pool = members, ThreadPoolExecutor(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.head(x)
            return torch.stack(list(self.pool.map(lambda one: self.one(one, x), self.members)))

        def one(self, member: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                output: torch.Tensor = member(x)
            return output

    for member in members * served:
        member(torch.ones(2))
    model = Ensemble().eval()
    took_s = []
    for _ in range(JOBS):
        begin_s = time.monotonic()
        model(torch.ones(2))
        took_s.append(time.monotonic() - begin_s)
    model.pool.shutdown()
    assert took_s[0] > (1.0 if served else 0.15)
    assert min(took_s[3:]) < 0.15, "by then it is known; else each would take as long as the first"
    assert diary.lines.count("end Ensemble") == JOBS
    assert diary.lines.count("end Linear") == 3 * served


def test_a_model_used_twice_is_laid_out_once(diary: Diary) -> None:
    inner = nn.Linear(2, 2).eval()
    learned(inner, diary, torch.ones(2))
    outer = nn.Sequential(inner, nn.Linear(2, 5)).eval()
    learned(outer, diary, torch.ones(2))
    contents = diary.lessons[1].contents
    assert contents is not None
    assert [entry.name for entry in contents.entries] == ["1"]


def test_a_model_whose_weights_are_others_in_each_job_stays_resident(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    for _ in range(14):
        model.weight = nn.Parameter(torch.ones(2, 2))
        model(torch.ones(2))
    assert diary.lines.count("settle Linear") == 1
    assert diary.lines[-1] == "end Linear"
    (lesson,) = diary.lessons
    assert lesson.contents is None
    assert list(lesson.stays.values()) == [24]


def test_a_generating_loop_pins_what_it_reads_again(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    for _ in range(2):
        with tierline.job(name="generate"):
            x = torch.ones(2)
            for _ in range(5):
                x = model(x)
    contents = diary.lessons[0].contents
    assert contents is not None
    (entry,) = contents.entries
    assert entry.pinned


def test_warm_up_ends_when_nothing_more_is_learned(diary: Diary) -> None:
    early, late = nn.Linear(2, 2).eval(), nn.Linear(2, 2).eval()
    seen = []
    for number, release in enumerate(tierline.periodic()):
        seen.append(release)
        early(torch.ones(2))
        if number >= 2:
            late(torch.ones(2))
    assert [release.warmup for release in seen] == [True] * 5 + [False] * 2
    assert [release.index for release in seen[5:]] == [0, 1]
    assert seen[6].release_ns - seen[5].release_ns == diary.period_ns
    after = diary.lines[diary.lines.index("ready") :]
    assert after == ["ready", *["job Linear streamed", "end Linear"] * 4, "finish"]
    last = Window(seen[6].release_ns, seen[6].deadline_ns)
    assert diary.windows[-2:] == [last, last]


def test_the_garbage_collector_passes_over_what_lives_as_long_as_the_loop(diary: Diary) -> None:
    model = nn.Linear(2, 2).eval()
    passed_over = {}
    for release in tierline.periodic():
        passed_over[release.warmup] = gc.get_freeze_count() > 0
        model(torch.ones(2))
    assert passed_over == {True: False, False: True}
    assert gc.get_freeze_count() == 0
    assert diary.lines[-1] == "finish"


def test_a_program_that_has_seen_to_the_garbage_collector_is_left_alone(diary: Diary) -> None:
    gc.freeze()
    try:
        for _ in tierline.periodic():
            assert gc.get_freeze_count()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    assert diary.lines[-1] == "finish"


def test_a_loop_that_is_left_ends(diary: Diary) -> None:
    loop = tierline.periodic()
    next(iter(loop))
    del loop
    assert diary.lines == ["finish"]
    assert process.process().window is None


def test_nothing_of_ours_is_on_the_tensors_of_a_served_model(diary: Diary) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    tensors = [*model.parameters(), *model.buffers()]

    def seen() -> list[Any]:
        return [
            (
                type(one),
                vars(one),
                weakref.getweakrefcount(one),
                one._backward_hooks,
                sys.getrefcount(one),
                one._use_count(),  # of C++'s owners
            )
            for one in tensors
        ]

    before = seen()
    learned(model, diary, torch.ones(2, 4))
    model(torch.ones(2, 4))
    diary.lessons.clear()
    assert seen() == before


def test_memory_that_was_laid_out_is_not_laid_out_again_but_exchanged_is(diary: Diary) -> None:
    shared, flag = nn.Linear(8, 8), torch.ones(1, 8)
    first, second, third = (nn.Sequential(shared, nn.Tanh()).eval() for _ in range(3))
    for model in (first, second):
        model(flag)
        model(flag)
    other = nn.Parameter(torch.ones(8, 8))
    with torch.inference_mode(False):
        torch.utils.swap_tensors(shared.weight, other)
    for _ in range(2):
        assert torch.equal(third(flag), torch.tanh(8 + shared.bias).expand(1, 8))
    placed = [
        [] if lesson.contents is None else [one.name for one, _ in lesson.contents.placed]
        for lesson in diary.lessons
    ]
    assert placed == [["0.weight", "0.bias"], [], ["0.weight"]]
