"""Whose weights are whose, where a model and a part of it both have jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tierline_torch.arenas.selection import Run, Selection
from tierline_torch.learning.course import Course
from tierline_torch.learning.launch_order import NOT_SEEN, select_by_launches
from tierline_torch.tensors.weights import PACKED_BYTES, Weight

_SIDE, _BYTES = 8, 8 * 8 * 4


class _Launches:
    """A survey by launches: there are none on a machine without a GPU."""

    kind = "cpu"

    def judge(
        self, weights: Sequence[Weight], runs: Sequence[Run], learned: Selection | None
    ) -> tuple[Selection, bool]:
        """As `LaunchSurvey` does."""
        del learned
        return select_by_launches(len(weights), [run.reads for run in runs]), True


class _Nothing:
    """No earlier run."""

    def of(self, *_: object) -> None:
        """Nothing is known."""


@dataclass
class _Recorded:
    """What a job showed: launches that read these weights, by number."""

    reads: tuple[int, ...]
    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    workspace_bytes = 0

    def run(self, _: Sequence[Weight]) -> Run:
        """The job."""
        return Run((), tuple(enumerate(self.reads)))


@dataclass
class _Watch:
    roots: list[torch.nn.Module]
    recorder: _Recorded
    storages: frozenset[int]
    standing_bytes = 0


def _lesson(root: torch.nn.Module, reads: tuple[int, ...], models: list[torch.nn.Module]) -> Any:
    course = Course(_Launches(), _Nothing())  # type: ignore[arg-type]
    storages = frozenset(one.untyped_storage()._cdata for one in root.parameters())
    watch: Any = _Watch([root], _Recorded(reads), storages)
    course.add(watch, lambda _: False, failed=False)
    return course.lesson(models)


class _Generator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(_SIDE, _SIDE, bias=False)
        self.decoder = torch.nn.Linear(_SIDE, _SIDE, bias=False)
        self.spare = torch.nn.Linear(_SIDE, _SIDE, bias=False)


def test_weights_of_a_part_that_has_jobs_are_counted_by_those() -> None:
    """A model whose encoder is called apart shows none of its weights; it takes them there."""
    whole = _Generator()
    assert _lesson(whole, (1,), [whole]).stays == {NOT_SEEN: 2 * _BYTES}
    assert _lesson(whole, (1,), [whole, whole.encoder]).stays == {NOT_SEEN: _BYTES}


class _Packed(torch.nn.Module):
    """Two buffers of packed numbers, of which the program makes one again in each job."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(PACKED_BYTES, dtype=torch.int8))
        self.register_buffer("made", torch.zeros(PACKED_BYTES, dtype=torch.int8))


def test_a_buffer_that_is_made_again_keeps_no_other_from_streaming() -> None:
    model = _Packed()
    course = Course(_Launches(), _Nothing())  # type: ignore[arg-type]
    for _ in range(3):
        storages = frozenset(one.untyped_storage()._cdata for one in model.buffers())
        model.made = model.get_buffer("made") + 1
        watch: Any = _Watch([model], _Recorded((0,)), storages)
        enough = course.add(watch, lambda _: False, failed=False)
    assert enough
    lesson: Any = course.lesson([model])
    assert [weight.name for weight, _ in lesson.contents.placed] == ["_Packed.kept"]
    assert (lesson.stays, lesson.workspace_bytes) == ({}, PACKED_BYTES)


def test_a_part_counts_what_its_jobs_did_not_show() -> None:
    whole = _Generator()
    pair = torch.nn.Sequential(whole.encoder, whole.spare)
    whole.pair = pair
    assert _lesson(pair, (0,), [whole, pair]).stays == {NOT_SEEN: _BYTES}
