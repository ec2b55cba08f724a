"""What is said of outputs: different only where programs agree with themselves without Tierline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.reporting.test_results import job

from tierline_cli.reporting.results import JobRecord
from tierline_cli.reporting.verdicts import PlainRun, Reference, Verdict, judge

SEEDED = frozenset({"digest"})
Program = Callable[[Random], Callable[[int, int], tuple[str, str]]]
"""A new process of it, by its luck: of each job and its input what was read and what was given."""


def luck_of(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - cases that can be repeated


def pure(_: Random) -> Callable[[int, int], tuple[str, str]]:
    return lambda _, seen: (str(seen), f"f({seen})")


def stateful(_: Random) -> Callable[[int, int], tuple[str, str]]:
    return lambda number, seen: (str(seen), f"f({seen}, {number})")


def two_models(_: Random) -> Callable[[int, int], tuple[str, str]]:
    return lambda number, seen: (str(seen), f"{'fg'[number % 2]}({seen})")


def exchanged(_: Random) -> Callable[[int, int], tuple[str, str]]:
    return lambda number, seen: (str(seen), f"{'fg'[number >= 20]}({seen})")


def unseeded(luck: Random) -> Callable[[int, int], tuple[str, str]]:
    weights = luck.random()
    return lambda _, seen: (str(seen), f"f({weights}, {seen})")


def noisy(luck: Random) -> Callable[[int, int], tuple[str, str]]:
    return lambda _, seen: (str(seen), f"f({seen}, {luck.random()})")


def unseeded_inputs(luck: Random) -> Callable[[int, int], tuple[str, str]]:
    def run(_number: int, _seen: int) -> tuple[str, str]:
        value = luck.random()
        return str(value), f"f({value})"

    return run


KINDS: dict[str, Program] = {
    one.__name__: one
    for one in (pure, stateful, two_models, exchanged, unseeded, noisy, unseeded_inputs)
}


def process(program: Program, luck: Random, jobs: int, inputs: int) -> list[tuple[str, str]]:
    run = program(luck)
    return [run(number, number % inputs) for number in range(jobs)]


def plain(program: Program, luck: Random, jobs: int, inputs: int) -> PlainRun:
    outputs: dict[str, set[str]] = {}
    for seen, gave in process(program, luck, jobs, inputs):
        outputs.setdefault(seen, set()).add(gave)
    return PlainRun({seen: frozenset(gave) for seen, gave in outputs.items()}, SEEDED)


def records(pairs: Sequence[tuple[str, str | None]]) -> list[JobRecord]:
    return [
        job(number, 40, input_digest=seen, output_digest=gave)
        for number, (seen, gave) in enumerate(pairs)
    ]


def compared(program: Program, luck: Random, jobs: list[JobRecord], inputs: int) -> Reference:
    """The reference as a run makes it: first a few jobs, then as many as are asked for."""
    reference = Reference([plain(program, luck, 12, inputs)])
    while reference.undecided(jobs) and len(reference.runs) < 3:
        reference.runs.append(plain(program, luck, len(jobs) + 1, inputs))
    return reference


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), jobs=st.integers(1, 60), inputs=st.integers(1, 9))
def test_what_is_right_is_never_called_different(
    kind: str, seed: int, jobs: int, inputs: int
) -> None:
    luck, program = luck_of(seed), KINDS[kind]
    seen = records(process(program, luck, jobs, inputs))

    outputs = judge(seen, compared(program, luck, seen, inputs))

    assert outputs.verdict is not Verdict.DIFFERENT
    assert bool(outputs.why) == (outputs.compared < outputs.jobs)
    if program is pure:
        assert (outputs.verdict, outputs.compared) == (Verdict.IDENTICAL, jobs)


@given(seed=st.integers(0, 2**32), jobs=st.integers(1, 60), data=st.data())
def test_one_wrong_output_of_a_program_that_agrees_with_itself_is_found(
    seed: int, jobs: int, data: st.DataObject
) -> None:
    luck = luck_of(seed)
    pairs = process(pure, luck, jobs, 4)
    wrong = data.draw(st.integers(0, jobs - 1))
    pairs[wrong] = (pairs[wrong][0], "wrong")
    seen = records(pairs)

    assert judge(seen, compared(pure, luck, seen, 4)).verdict is Verdict.DIFFERENT


def test_nothing_recorded_is_not_comparable() -> None:
    silent = [job(n, 40, input_digest=None, output_digest=None) for n in range(3)]
    outputs = judge(silent, Reference([plain(pure, luck_of(1), 12, 1)]))
    assert outputs.verdict is Verdict.NOT_COMPARABLE
    assert "only calls of PyTorch modules are seen" in outputs.why


def test_a_job_that_raised_is_not_said_to_show_nothing() -> None:
    seen = [job(0, 40, input_digest="0", output_digest=None), *records([("1", "1")])]
    outputs = judge(seen, Reference([PlainRun({"1": frozenset({"1"})})] * 2))
    assert (outputs.verdict, outputs.compared, outputs.jobs) == (Verdict.IDENTICAL, 1, 2)
    assert outputs.why.startswith("their models raised an exception")


@pytest.mark.parametrize(("weights", "may"), [(frozenset(), True), (SEEDED, False)])
def test_what_is_not_known_of_weights_is_not_said(weights: frozenset[str], *, may: bool) -> None:
    runs = [PlainRun({"0": frozenset({str(n)})}, weights) for n in range(2)]
    outputs = judge(records([("0", "2")]), Reference(runs))
    assert ("weights that are not seeded" in outputs.why) is may


def test_weights_that_differ_from_start_to_start_are_named() -> None:
    read = "of a file"
    runs = [PlainRun({"0": frozenset({str(n)})}, frozenset({read, str(n)})) for n in range(2)]
    outputs = judge(records([("0", "2")]), Reference(runs))
    assert outputs.verdict is Verdict.NOT_COMPARABLE
    assert "its weights differ from one start to the next" in outputs.why


def test_a_process_that_ran_more_models_has_no_other_weights() -> None:
    runs = [
        PlainRun({"0": frozenset({"a"})}, frozenset({"first"})),
        PlainRun({"0": frozenset({"a", "b"})}, frozenset({"first", "second"})),
    ]
    reference, seen = Reference(runs), records([("0", "a"), ("0", "b")])
    assert reference.undecided(seen)
    assert "weights differ" not in judge(seen, reference).why
    runs.append(runs[-1])
    assert not reference.undecided(seen)
    outputs = judge(seen, reference)
    assert (outputs.verdict, outputs.compared) == (Verdict.IDENTICAL, 2)


@pytest.mark.parametrize("program", [two_models, stateful], ids=lambda one: one.__name__)
@given(seed=st.integers(0, 2**32), jobs=st.integers(13, 60))
def test_several_outputs_of_an_input_are_right_if_two_processes_gave_them(
    program: Program, seed: int, jobs: int
) -> None:
    luck = luck_of(seed)
    pairs = process(program, luck, jobs, 1)
    right = judge(seen := records(pairs), compared(program, luck, seen, 1))
    assert (right.verdict, right.compared) == (Verdict.IDENTICAL, jobs)
    wrong = records([*pairs[:-1], (pairs[-1][0], "wrong")])
    outputs = judge(wrong, compared(program, luck, wrong, 1))
    assert (outputs.compared, outputs.jobs) == (jobs - 1, jobs)
    assert "it gave different outputs for one input" in outputs.why


def test_a_program_that_cannot_run_again_is_not_called_wrong() -> None:
    reference = Reference([plain(pure, luck_of(1), 12, 1)], failure="it could not be run again")
    outputs = judge(records([("0", "wrong")]), reference)
    assert (outputs.verdict, outputs.why) == (Verdict.NOT_COMPARABLE, reference.failure)


def test_what_two_processes_agreed_on_stands_although_a_third_failed() -> None:
    agreed = [plain(pure, luck_of(1), 12, 1) for _ in range(2)]
    outputs = judge(records([("0", "wrong")]), Reference(agreed, failure="it ended too early"))
    assert outputs.verdict is Verdict.DIFFERENT


def test_weights_that_are_not_known_are_no_other_weights() -> None:
    """A process that ended too early told outputs, and not what it began with."""
    runs = [PlainRun({"0": frozenset({str(n)})}, SEEDED if n else frozenset()) for n in range(2)]
    outputs = judge(records([("0", "2")]), Reference(runs))
    assert "it gave different outputs for one input" in outputs.why


@pytest.mark.parametrize("told", [True, False])
def test_a_program_that_is_ended_may_leave_its_last_output_untold(told: bool) -> None:
    reference = Reference([plain(pure, luck_of(1), 12, 1)])
    seen = records([("0", "f(0)"), ("0", "f(0)" if told else None)])
    outputs = judge(seen, reference, cut_short=True)
    assert (outputs.verdict, outputs.why) == (Verdict.IDENTICAL, "")
    earlier = judge(records([("0", None), ("0", "f(0)")]), reference, cut_short=True)
    assert (earlier.compared, earlier.jobs) == (1, 2)


def test_without_jobs_nothing_was_compared() -> None:
    assert judge([], Reference()).verdict is Verdict.NOT_COMPARABLE
