"""A program that releases more often than its period, or names deadlines that are none, takes
nothing from others.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.agent.scheduling.test_within_plan import KEEPING, late
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import device, task

from tierline_agent.policy.releases import Due, Releases
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import TaskDemand
from tierline_operator.simulation.from_plans import models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

PERIOD, DEADLINE = 100, 60
NEVER = -1


def begins(
    releases: Releases,
    now: int,
    *,
    release: int | None = None,
    due: int | None = None,
    part: int = 0,
    idle: int = NEVER,
    jitter: int = 0,
    calls: int | None = None,
    throttled: bool = False,
) -> Due:
    """A job asks; by default it was released now, and names its task's deadline."""
    named = now if release is None else release
    return releases.begins(
        now_ns=now,
        release_ns=named,
        deadline_ns=named + DEADLINE if due is None else due,
        part=part,
        period_ns=PERIOD,
        relative_ns=DEADLINE,
        idle_ns=idle,
        jitter_ns=jitter,
        calls=calls,
        throttled=throttled,
    )


def served(due: int, *, too_soon: bool = False, too_urgent: bool = False) -> Due:
    """What is due then, its deadline after its time."""
    return Due(due, due - DEADLINE, too_soon, too_urgent)


def test_a_program_that_keeps_its_period_is_served_by_what_it_names() -> None:
    releases = Releases()
    for now in (0, 100, 200, 350):
        assert begins(releases, now) == served(now + DEADLINE)
        releases.ends(now + 30)


def test_a_release_too_soon_is_put_off_by_whole_periods() -> None:
    releases = Releases()
    assert begins(releases, 0) == served(60)
    assert begins(releases, 10) == served(160, too_soon=True)
    assert begins(releases, 20) == served(260, too_soon=True)
    assert begins(releases, 300) == served(360)


def test_naming_one_release_for_all_jobs_gains_nothing() -> None:
    releases = Releases()
    dues = [begins(releases, now, release=0) for now in range(4)]
    assert [due.deadline_ns for due in dues] == [60, 160, 260, 360]
    assert [due.too_soon for due in dues] == [False, True, True, True]


def test_parts_of_one_release_are_due_together() -> None:
    releases = Releases()
    assert begins(releases, 0, part=1) == served(60)
    assert begins(releases, 20, release=0, part=2) == served(60)
    # also where each job names its own release
    assert begins(releases, 100, part=1) == served(160)
    assert begins(releases, 120, part=2) == served(160)
    assert begins(releases, 130, part=2) == served(260, too_soon=True)


def test_a_release_has_as_many_jobs_as_its_plan_says() -> None:
    releases = Releases()
    dues = [begins(releases, now, release=0, calls=3) for now in range(4)]
    assert [due.deadline_ns for due in dues] == [60, 60, 60, 160]
    assert [due.too_soon for due in dues] == [False, False, False, True]


def test_the_device_is_kept_for_what_a_release_may_pass_between_its_jobs() -> None:
    releases = Releases()
    begins(releases, 10, calls=3)
    releases.ends(20)
    assert releases.kept_ns(3, 30) == 30
    begins(releases, 32, release=10, calls=3)
    releases.ends(40)
    assert releases.kept_ns(3, 30) == 18
    begins(releases, 45, release=10, calls=3)
    releases.ends(50)
    assert releases.kept_ns(3, 30) is None
    assert releases.kept_ns(None, 30) is None


def test_what_asks_late_by_its_plan_is_due_by_its_deadline() -> None:
    releases = Releases()
    for release, later in ((0, 15), (100, 3), (200, 15), (300, 0)):
        due = begins(releases, release + later, release=release, jitter=15)
        assert due.deadline_ns <= release + DEADLINE
        releases.ends(release + later + 20)


def test_an_early_deadline_is_not_served_and_a_late_one_is_due_later() -> None:
    releases = Releases()
    assert begins(releases, 0, due=10) == served(60, too_urgent=True)
    assert begins(releases, 100, due=400) == Due(400, eligible_ns=100)
    assert begins(releases, 200) == Due(340 + PERIOD + DEADLINE, eligible_ns=200)


def test_a_release_long_ago_is_one_of_now() -> None:
    releases = Releases()
    begins(releases, 500)
    releases.ends(510)
    assert begins(releases, 700, release=600) == served(760)


def test_a_release_that_waited_for_its_own_job_keeps_its_deadline() -> None:
    releases = Releases()
    begins(releases, 0)
    releases.ends(130)
    assert begins(releases, 133, release=100) == served(163)


def test_one_that_was_throttled_is_due_from_when_it_was_let_go() -> None:
    releases = Releases()
    assert begins(releases, 0, part=1) == served(60)
    releases.ends(400)
    assert begins(releases, 500, release=0, part=2, throttled=True) == served(560)
    releases.ends(520)
    # though it was to begin before the end of the one before it
    assert begins(releases, 900, release=300, part=1, throttled=True) == served(960)
    # and so are those after it
    assert begins(releases, 910) == served(1060)


def test_what_was_before_a_moment_without_jobs_is_forgotten() -> None:
    releases = Releases()
    begins(releases, 0)
    assert begins(releases, 40, idle=30) == served(100)
    assert begins(releases, 50, idle=30) == served(200, too_soon=True)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 80),  # how much later it asks
            st.integers(-300, 50),  # which release it names, from now
            st.integers(-200, 300),  # which deadline, from the task's
            st.booleans(),  # whether nobody had the device meanwhile
            st.booleans(),  # whether its last job has ended only now
            st.booleans(),  # whether it was throttled until now
        ),
        max_size=30,
    )
)
def test_releases_are_a_period_apart_however_a_program_names_them(
    asks: list[tuple[int, int, int, bool, bool, bool]],
) -> None:
    releases, now, idle, times = Releases(), 1000, NEVER, list[list[Due]]()
    for later, release, deadline, quiet, busy, throttled in asks:
        now += later
        if busy:
            releases.ends(now)
        if quiet or not times:
            idle = now
            times.append([])
        named = now + release
        due_ns = max(named, named + DEADLINE + deadline)
        due = begins(releases, now, release=named, due=due_ns, idle=idle, throttled=throttled)
        times[-1].append(due)
        # the first one of a busy time does not reach before it, nor one that was throttled
        if len(times[-1]) == 1 or throttled:
            assert due.eligible_ns >= now
    for busy_time in times:
        for one in busy_time:
            assert one.eligible_ns + DEADLINE <= one.deadline_ns
        for first, second in pairwise(busy_time):
            assert second.deadline_ns - first.deadline_ns >= PERIOD
            assert second.eligible_ns - first.eligible_ns >= PERIOD


# -- against others

SLOW = device(60, dispatch_s=0.002)
TASKS = [
    task("rogue", 400, 400, 90, layers=9),
    task("kept", 500, 290, 120, layers=12),
    task("urgent", 200, 60, 20, layers=2),
]


def node_with(
    folder: Path, tasks: list[TaskDemand], answer: Admitted, *, lies: bool
) -> VirtualNode:
    """The first task runs four times as often as it may, or calls all its jobs long due."""
    models = models_of(tasks, answer.plans, SLOW)
    periods = [model.period_s for model in models]
    periods[0] /= 1 if lies else 4
    names = {0: lambda _arrival_s: (0.5, 0.5)} if lies else {}
    return VirtualNode(
        folder,
        models,
        Arrivals(periods, Pattern([1.0, 1.001, 1.002][: len(tasks)], 20.0)),
        [tier.link for tier in SLOW.tiers.values()],
        KEEPING,
        dispatch_s=SLOW.dispatch_s,
        names=names,
        in_turn=True,
    )


OFTEN = [task("rogue", 400, 200, 90, layers=9), task("kept", 6000, 6000, 300, layers=12)]
"""`kept` is due so late that the rogue has many jobs that are due before."""
BOUNDS = pytest.mark.parametrize(
    ("tasks", "lies"),
    [
        pytest.param(TASKS, False, id="too often"),
        pytest.param(TASKS, True, id="false deadlines"),
        pytest.param(OFTEN, False, id="too often before one that is due late"),
    ],
)


def late_others(
    folder: Path, tasks: list[TaskDemand], answer: Admitted, *, lies: bool
) -> list[str]:
    node = node_with(folder, tasks, answer, lies=lies)
    try:
        node.run()
    finally:
        node.close()
    assert (node.put_off[0] > 0) is not lies
    return late(answer, [[0.0], *node.responses_s[1:]])


@BOUNDS
def test_others_keep_their_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tasks: list[TaskDemand], *, lies: bool
) -> None:
    answer = plan(tasks, SLOW, scheduling=Scheduling.RING_KEEPING)
    assert isinstance(answer, Admitted), answer.sentence
    assert late_others(tmp_path, tasks, answer, lies=lies) == []
    as_named = Releases.begins

    def believed(self: Releases, *, deadline_ns: int, **more: Any) -> Due:
        due = as_named(self, deadline_ns=deadline_ns, **more)
        return Due(deadline_ns, 0, due.too_soon)

    monkeypatch.setattr(Releases, "begins", believed)
    assert late_others(tmp_path, tasks, answer, lies=lies) != []


def test_what_comes_before_its_time_waits_for_all_whose_time_has_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = plan(OFTEN, SLOW, scheduling=Scheduling.RING_KEEPING)
    assert isinstance(answer, Admitted), answer.sentence
    as_served = Releases.begins

    def at_once(self: Releases, **more: Any) -> Due:
        return replace(as_served(self, **more), eligible_ns=0)

    monkeypatch.setattr(Releases, "begins", at_once)
    assert late_others(tmp_path, OFTEN, answer, lies=False) == ["kept"]


@st.composite
def fast_sets(draw: st.DrawFn) -> tuple[list[TaskDemand], list[float], Pattern, bool]:
    """Tasks, how much faster than its period each is, when they begin, and whether in turn."""
    count = draw(st.integers(2, 4))
    tasks = []
    for number in range(count):
        period_ms = draw(st.sampled_from([200, 300, 400, 500, 1000, 3000]))
        deadline_ms = period_ms * draw(st.sampled_from([3, 5, 8, 10])) // 10
        busy_ms = min(deadline_ms // 2, period_ms * draw(st.integers(5, 50)) * 8 // 500 // count)
        layers = draw(st.integers(1, 12))
        tasks.append(task(f"t{number}", period_ms, deadline_ms, max(3, busy_ms), layers=layers))
    faster = [1.0] * count
    for number in draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1)):
        faster[number] = draw(st.sampled_from([1.5, 2.0, 3.0, 4.0]))
    offsets = [1 + draw(st.integers(0, 500)) / 1e3 * draw(st.booleans()) for _ in tasks]
    return tasks, faster, Pattern(offsets, 8.0), draw(st.booleans())


@settings(max_examples=25, deadline=None)
@given(fast_sets())
def test_no_set_has_a_task_whose_bound_a_fast_program_costs(
    case: tuple[list[TaskDemand], list[float], Pattern, bool],
) -> None:
    tasks, faster, pattern, in_turn = case
    answer = plan(tasks, SLOW, scheduling=Scheduling.RING_KEEPING)
    assume(isinstance(answer, Admitted))
    assert isinstance(answer, Admitted)
    models = models_of(tasks, answer.plans, SLOW)
    periods = [model.period_s / factor for model, factor in zip(models, faster, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        node = VirtualNode(
            Path(folder),
            models,
            Arrivals(periods, pattern),
            [tier.link for tier in SLOW.tiers.values()],
            KEEPING,
            dispatch_s=SLOW.dispatch_s,
            in_turn=in_turn,
        )
        try:
            node.run()
        finally:
            node.close()
    kept = zip(node.responses_s, faster, strict=True)
    assert late(answer, [seen if factor == 1.0 and seen else [0.0] for seen, factor in kept]) == []
