"""What the launches of a few real jobs allow; the library's part is in tests/cuda."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tierline_torch.arenas.selection import Run
from tierline_torch.learning.launch_order import select_by_launches
from tierline_torch.learning.launch_survey import LaunchRecorder, LaunchSurvey, _few, mark

COUNT = 12
ORDER = st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=80)


class _Nothing:
    """No launches."""


class _Unsearched:
    """Another thread captures a graph, so memory cannot be searched for addresses."""

    def in_memory(self, ranges: object) -> None:
        """Nobody could look."""


def test_a_job_whose_memory_could_not_be_searched_teaches_nothing() -> None:
    recorder = LaunchRecorder(_Unsearched())  # type: ignore[arg-type]
    assert recorder.run([]) is None


@given(st.integers(0, (1 << 20) - 1), st.integers(1, 255))
def test_a_byte_that_was_written_changes_the_mark(at: int, by: int) -> None:
    content = torch.arange(1 << 20, dtype=torch.int64).to(torch.uint8)
    before = mark(content)
    assert torch.equal(before, mark(content))
    content[at] += by
    assert not torch.equal(before, mark(content))


def test_a_few_jobs_are_enough_unless_they_still_make_ready_for_graphs() -> None:
    survey = LaunchSurvey(_Nothing())  # type: ignore[arg-type]
    recorder = survey.recorder()
    assert isinstance(recorder, LaunchRecorder)
    runs: list[Run] = []
    for number in range(1, 9):
        runs.append(Run((), ((0, 0),)))
        recorder.prepares = number < 6
        selection, enough = survey.judge([], runs, None)
        assert enough == (number >= 6)
    recorder.prepares = True
    assert survey.judge([], runs, None)[1]
    assert [layer.weights for layer in selection.layers] == [(0,)]


def test_what_the_first_job_explains_is_taken_at_once() -> None:
    survey = LaunchSurvey(_Nothing())  # type: ignore[arg-type]
    survey.recorder()
    learned = select_by_launches(2, [[(0, 1), (1, 0)]])
    assert survey.judge([], [Run((), ((3, 1), (9, 0)))], learned) == (learned, True)
    assert not survey.judge([], [Run((), ((3, 0), (9, 1)))], learned)[1]


@given(ORDER)
def test_of_many_reads_the_first_and_the_last_say_what_stays_resident(order: list[int]) -> None:
    """A loop that generates reads a million times; two such jobs are compared in a moment."""
    longer = list(enumerate(order * (9000 // len(order) + 1)))
    few = _few(longer)
    assert len(few) <= 2 * COUNT
    whole, part = (select_by_launches(COUNT, [one]) for one in (longer, few))
    assert whole.pinned == part.pinned
    assert [layer.weights for layer in whole.layers] == [layer.weights for layer in part.layers]
    assert _few(few) == few
