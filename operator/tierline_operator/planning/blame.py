"""What would help a refused set, found by planning again.

Which wish is to blame is one without which that reason for the refusal is gone.

A refusal says what is missing. Where somebody wished for it to be so, the wish is the shortest way
out: a refused set with wishes is asked again without all of them, and if that helps, with as many
as may stay. What helps of a deadline is a set that holds, of memory or a tier that there is room.
Pure. What running pods hold is no wish any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.reasons import NOTHING_HELPS, milliseconds, rounded_s
from tierline_operator.planning.request import TaskDemand

MOST_TRIED: Final = 8
"""How many wishes may be put back, one at a time."""
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
    who = [f"the object {wish.name!r} of {task.name} is {wish.words}" for task, wish in named]
    then = "the set would hold" if refusal.kind == "deadline" else "there would be room"
    return replace(
        refusal,
        wish=(task.name, wish.name),
        sentence=f"{', '.join(who)}, and without that {then}: {refusal.sentence}",
    )


def with_later_deadline(
    refusal: Infeasible,
    tasks: Sequence[TaskDemand],
    helps: Callable[[Sequence[TaskDemand]], bool],
) -> Infeasible:
    """The refusal, with a deadline of the late task that would be enough, if none was found yet.

    What helps is looked for among the plans that came nearest, and by these nothing does; with that
    one deadline later all tasks are planned again.
    """
    late = next((i for i, task in enumerate(tasks) if task.name == refusal.task), None)
    if not refusal.sentence.endswith(NOTHING_HELPS) or late is None:
        return refusal
    task = tasks[late]

    def enough(deadline_s: float) -> bool:
        later = replace(task, deadline_s=min(deadline_s, task.period_s))
        return helps([*tasks[:late], later, *tasks[late + 1 :]])

    low_s, high_s = task.deadline_s, task.period_s
    if low_s >= high_s or not enough(high_s):
        return refusal
    while high_s - low_s > high_s * _STEP:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if enough(middle_s) else (middle_s, high_s)
    told_s = min(rounded_s(high_s), task.period_s)
    if not enough(told_s):
        return refusal
    help_ = f"a deadline of {milliseconds(told_s)} for {task.name} would be enough"
    sentence = refusal.sentence.removesuffix(NOTHING_HELPS) + help_
    return replace(refusal, sentence=sentence)


def _without(tasks: Sequence[TaskDemand], wishes: Sequence[_Named]) -> list[TaskDemand]:
    out = set(wishes)
    return [
        replace(
            task, wishes=[w for number, w in enumerate(task.wishes) if (index, number) not in out]
        )
        for index, task in enumerate(tasks)
    ]
