"""Figures of the choices that a search asks about: from one question to the next few change.

Invariant: what is returned is what `row` says of those choices, whatever was asked before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tierline_operator.admission.preemption import Flags, Ints


class Columns:
    """Figures of the choices at hand, a column for each task.

    Searches come back to the same choices, so the figures of each are made once, and kept.
    """

    def __init__(
        self, row: Callable[[int, int, bool], tuple[int, ...]], figures: int, choices: Ints
    ) -> None:
        """`row`: the figures of a task's choice, preemptible or not; `choices`: how many it has."""
        self._row = row
        self._at = np.full(len(choices), -1)
        self._mask = np.zeros(len(choices), dtype=bool)
        self._rows = np.zeros((figures, len(choices)), dtype=np.int64)
        # Those of a task, of jobs that do not yield and then of those that do, end to end.
        self._choices = choices
        self._begin = 2 * (np.cumsum(choices) - choices)
        self._made = np.zeros(2 * int(choices.sum()), dtype=bool)
        self._figures = np.zeros((len(self._made), figures), dtype=np.int64)

    def of(self, chosen: Sequence[int], mask: Flags) -> Ints:
        """Those of these choices; they change when others are asked for."""
        at = np.array(chosen)
        changed = np.flatnonzero((at != self._at) | (mask != self._mask))
        if len(changed):
            self._rows[:, changed] = self.looked_up(changed, at[changed], mask[changed]).T
        self._at, self._mask = at, mask
        return self._rows

    def looked_up(self, tasks: Ints, at: Ints, mask: Flags) -> Ints:
        """Those of one choice each of some tasks, a row for each; the choices at hand stay."""
        places = self._begin[tasks] + self._choices[tasks] * mask + at
        for number in np.flatnonzero(~self._made[places]).tolist():
            asked = int(tasks[number]), int(at[number]), bool(mask[number])
            self._figures[places[number]] = self._row(*asked)
            self._made[places[number]] = True
        figures: Ints = self._figures[places]
        return figures
