"""Layer times from the ends of launches."""

import pytest

from tierline_torch.learning.launch_times import layer_times_s


def test_a_layer_takes_from_the_end_of_the_one_before_to_its_own() -> None:
    reads = [(0, 2), (1, 0), (2, 2), (4, 1)]
    times = layer_times_s([[2], [0], [1]], reads, [(0, 0.1), (1, 0.3), (4, 0.35)], 0.5)
    assert times == pytest.approx([0.1, 0.2, 0.05 + 0.15])


def test_a_layer_of_several_launches_ends_with_the_last() -> None:
    reads = [(0, 0), (1, 1), (2, 2)]
    times = layer_times_s([[1, 0], [2]], reads, [(0, 1.0), (1, 2.0), (2, 3.0)], 3.0)
    assert times == pytest.approx([2.0, 1.0])


def test_what_was_not_timed_counts_for_the_next() -> None:
    reads = [(0, 0), (1, 1), (2, 2)]
    times = layer_times_s([[0], [1], [2]], reads, [(0, 1.0), (2, 3.0)], 3.0)
    assert times == pytest.approx([1.0, 0.0, 2.0])


def test_no_time_is_negative_and_the_sum_is_the_jobs() -> None:
    reads = [(0, 1), (1, 0)]
    times = layer_times_s([[0], [1]], reads, [(0, 1.0), (1, 5.0)], 4.0)
    assert times == pytest.approx([4.0, 0.0])


def test_what_no_launch_ended_alone_counts_for_the_layer_after() -> None:
    reads = [(0, 0), (1, 1), (2, 2), (3, 3)]
    times = layer_times_s([[0], [1], [2], [3]], reads, [(0, 1.0), (2, 4.0), (3, 5.0)], 6.0)
    assert times == pytest.approx([1.0, 0.0, 3.0, 2.0])
