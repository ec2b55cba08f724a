"""The overlay against tasks that write, in a model of one shared memory and backups."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tierline_agent.policy.overlay import Moves, Overlay

TASKS = (1, 2, 3)


def run_job(
    overlay: Overlay,
    memory: list[int],
    backups: dict[int, list[int]],
    saved: set[int],
    task: int,
) -> None:
    moves = overlay.moves(task)
    if moves.save is not None:
        backups[moves.save] = memory[: moves.save_bytes]
        saved.add(moves.save)
        overlay.saved(moves.save)
    memory[: moves.restore_bytes] = backups.get(task, [])[: moves.restore_bytes]
    saved.discard(task)
    overlay.entered(task)


@settings(max_examples=300)
@given(
    preserves=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    sizes=st.tuples(*[st.integers(1, 6)] * 3),
    jobs=st.lists(st.tuples(st.sampled_from(TASKS), st.integers(0, 6), st.booleans()), max_size=30),
    restarts=st.dictionaries(st.integers(1, 30), st.permutations(TASKS), max_size=4),
)
def test_a_preserved_workspace_is_as_its_last_job_left_it(
    preserves: tuple[bool, ...],
    sizes: tuple[int, ...],
    jobs: list[tuple[int, int, bool]],
    restarts: dict[int, list[int]],
) -> None:
    overlay = Overlay()
    memory = [0] * 6
    backups: dict[int, list[int]] = {}
    left: dict[int, list[int]] = {}
    saved: set[int] = set()
    for task, preserve, size in zip(TASKS, preserves, sizes, strict=True):
        overlay.join(task, size, preserve=preserve)
    assert overlay.size_bytes == max(sizes)
    for stamp, (task, reach, tidy) in enumerate(jobs, start=1):
        run_job(overlay, memory, backups, saved, task)
        size = sizes[task - 1]
        if preserves[task - 1] and task in left:
            assert memory[: len(left[task])] == left[task]
        memory[:size] = [stamp * 10 + task] * size
        left[task] = memory[: min(reach, size)] if tidy else memory[:size]
        if tidy:  # else it is revoked, and never says how far it came
            overlay.ended(task, reach)
        if stamp in restarts:  # the agent's; its tasks come back in any order
            overlay = Overlay()
            for back in restarts[stamp]:
                assert overlay.rejoin(
                    back,
                    sizes[back - 1],
                    len(left.get(back, ())),
                    preserve=preserves[back - 1],
                    saved=back in saved,
                )


def test_a_task_that_follows_itself_moves_nothing() -> None:
    overlay = Overlay()
    overlay.join(1, 100, preserve=True)
    overlay.entered(1)
    overlay.ended(1, 60)
    assert overlay.moves(1) == Moves(None, 0, 0)


def test_only_what_has_content_is_moved() -> None:
    overlay = Overlay()
    overlay.join(1, 100, preserve=True)
    overlay.join(2, 80, preserve=True)
    overlay.entered(1)
    overlay.ended(1, 60)
    assert overlay.moves(2) == Moves(1, 60, 0)
    overlay.saved(1)
    overlay.entered(2)
    overlay.ended(2, 0)
    assert overlay.moves(1) == Moves(None, 0, 60)


def test_discarded_content_and_that_of_the_dead_is_dropped() -> None:
    overlay = Overlay()
    overlay.join(1, 100, preserve=False)
    overlay.join(2, 100, preserve=True)
    overlay.entered(1)
    assert overlay.moves(2) == Moves(None, 0, 0)
    overlay.entered(2)
    overlay.leave(2)
    assert overlay.moves(1) == Moves(None, 0, 0)
    assert overlay.size_bytes == 100


def test_content_that_others_may_have_overwritten_is_not_taken_back() -> None:
    overlay = Overlay()
    overlay.join(1, 100, preserve=True)
    overlay.entered(1)
    assert not overlay.rejoin(2, 100, 60, preserve=True, saved=False)
    assert overlay.rejoin(2, 100, 60, preserve=True, saved=True)
    assert overlay.moves(2).restore_bytes == 60
