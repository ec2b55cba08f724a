"""Changes that would help a refused set, found by planning again.

Which wish is to blame is one without which that reason for the refusal is gone.

A refusal says what is missing. Where somebody wished for it to be so, the wish is the shortest way
out: a refused set with wishes is asked again without all of them, and if that helps, with as many
as may stay. What helps of a deadline is a set that holds, of memory or a tier that there is room.
Pure. What running pods hold is no wish any more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.refusals.reasons import (
    NOTHINGS,
    enough_memory,
    lacks_memory,
    rounded_s,
    would_be_enough,
)
from tierline_operator.planning.refusals.remedies import LONGEST_FACTOR
from tierline_operator.planning.request import TaskDemand

MOST_TRIED: Final = 8
"""How many wishes may be put back, one at a time."""
_FINELY: Final = 50
"""The least memory that is enough is found to a fiftieth of it."""
_STEP: Final = 0.01
"""A deadline is found to a hundredth of the period."""
_Named = tuple[int, int]
"""A task, and which of its wishes."""


def blamed(
    refusal: Infeasible,
    tasks: Sequence[TaskDemand],
    helps: Callable[[Sequence[TaskDemand]], bool],
) -> Infeasible:
    """The refusal, with the wish that is to blame; as it is, if none is or it names one already."""
    wishes = [
        (index, number)
        for index, task in enumerate(tasks)
        if task.held is None
        for number in range(len(task.wishes))
    ]
    if refusal.wish is not None or not wishes or not helps(_without(tasks, wishes)):
        return refusal
    # The fewest of the first ones whose absence helps, and of these not what may be there.
    tried = range(1, len(wishes) + 1)
    count = 1 + bisect_left(tried, True, key=lambda n: helps(_without(tasks, wishes[:n])))
    out = wishes[: min(count, len(wishes))]
    for one in out[:-1][:MOST_TRIED]:
        rest = [other for other in out if other != one]
        if helps(_without(tasks, rest)):
            out = rest
    named = [(tasks[index], tasks[index].wishes[number]) for index, number in out]
    task, wish = named[-1]
    objects = [f"the object {wish.name!r} of {task.name} is {wish.words}" for task, wish in named]
    then = "the set would hold" if refusal.kind == "deadline" else "there would be room"
    return replace(
        refusal,
        wish=(task.name, wish.name),
        sentence=f"{', '.join(objects)}, and without that {then}: {refusal.sentence}",
    )


def with_enough_memory(
    refusal: Infeasible, plenty_bytes: int, enough: Callable[[int], bool]
) -> Infeasible:
    """The refusal, with memory that is enough where not even the smallest plans fit.

    `enough`: whether the set holds with so much more; `plenty_bytes`: more than that helps nobody.
    """
    step = 2**20 / 10  # as a sentence has it
    least, most = (math.ceil(size / step) for size in (refusal.missing_bytes or 0, plenty_bytes))
    if not lacks_memory(refusal) or most < least or not enough(math.ceil(most * step)):
        return refusal
    if enough(math.ceil(least * step)):
        return enough_memory(refusal, refusal.missing_bytes or 0)
    while most - least > max(1, least // _FINELY):
        middle = (least + most) // 2
        least, most = (least, middle) if enough(math.ceil(middle * step)) else (middle, most)
    return enough_memory(refusal, math.floor(most * step))


def with_more_time(
    refusal: Infeasible,
    tasks: Sequence[TaskDemand],
    helps: Callable[[Sequence[TaskDemand]], bool],
) -> Infeasible:
    """The refusal, with a deadline or period that would be enough, if none was found yet.

    What helps is looked for among the plans that came nearest, and by these nothing does; with that
    one change all tasks are planned again. Deadlines come first: that of the late task.
    """
    if not any(refusal.sentence.endswith(nothing) for nothing in NOTHINGS):
        return refusal
    late = [i for i, task in enumerate(tasks) if task.name == refusal.task]
    free = [i for i, task in enumerate(tasks) if task.held is None]
    loads = {i: sum(tasks[i].compute_s) / tasks[i].period_s for i in free}
    ways = [("deadline", i, tasks[i].deadline_s, tasks[i].period_s, _later) for i in late]
    ways += [
        ("period", i, tasks[i].period_s, tasks[i].period_s * LONGEST_FACTOR, _rarer)
        for i in sorted(free, key=lambda i: -loads[i])[:MOST_TRIED]
    ]
    for what, index, now_s, most_s, change in ways:

        def enough(
            seconds: float, index: int = index, change: Callable[..., TaskDemand] = change
        ) -> bool:
            return helps([*tasks[:index], change(tasks[index], seconds), *tasks[index + 1 :]])

        low_s, high_s = now_s, most_s
        if low_s >= high_s or not enough(high_s):
            continue
        while high_s - low_s > high_s * _STEP:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if enough(middle_s) else (middle_s, high_s)
        told_s = min(rounded_s(high_s), most_s)
        if enough(told_s):
            task = tasks[index]
            help_ = would_be_enough(what, told_s, task.name, task.period_s)
            sentence = refusal.sentence
            for nothing in NOTHINGS:
                sentence = sentence.removesuffix(nothing)
            return replace(refusal, sentence=sentence + help_)
    return refusal


def _later(task: TaskDemand, seconds: float) -> TaskDemand:
    return replace(task, deadline_s=min(seconds, task.period_s))


def _rarer(task: TaskDemand, seconds: float) -> TaskDemand:
    deadline_s = seconds if task.implicit_deadline else task.deadline_s
    return replace(task, period_s=seconds, deadline_s=deadline_s)


def _without(tasks: Sequence[TaskDemand], wishes: Sequence[_Named]) -> list[TaskDemand]:
    out = set(wishes)
    return [
        replace(
            task, wishes=[w for number, w in enumerate(task.wishes) if (index, number) not in out]
        )
        for index, task in enumerate(tasks)
    ]
