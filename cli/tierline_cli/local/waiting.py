"""How long programs are waited for, and what is said meanwhile.

Pure, but that it looks which processes live.

A program may be started again and again, by its own shell or by a supervisor, and end each time
before it did what it is waited for. So its starts are counted: each process writes its number into
the file of an observed run. After `MOST_ENDS` processes that ended, none of them left, no more is
waited for. A program whose processes write nothing is given up after a time without progress.

Invariant: every wait ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

import psutil

from tierline_api.objects.observed import BEGAN, PROFILE_LINE

MOST_ENDS: Final = 3
"""So many processes may end before what is waited for; then no more is expected of the next."""


@dataclass(frozen=True)
class Patience:
    """Seconds without progress until a program is given up, or a person is told."""

    first_s: float = 600.0
    """For the first job; large models take minutes to load."""
    next_s: float = 600.0
    """For any other."""
    reason_s: float = 1.0
    """For a first job, until a person is told what was said in the program."""
    word_s: float = 10.0
    """For a first job, until a person is told what is waited for."""

    def word(self, task: str) -> str:
        """The sentence for a person about a program of which no job ended for `word_s`."""
        return (
            f"MemTask/{task}: no job of its program has ended in {self.word_s:.0f} s; the wait "
            f"ends {self.first_s:.0f} s after its start, or with Ctrl-C. It may still load, or "
            f"compute. Else {UNSEEN}"
        )


UNSEEN: Final = (
    "the usual causes are: it waits for requests; its model is no torch.nn.Module (on a GPU, "
    "spec.swap.policy: Swap moves such a program as a whole); it starts Python without the "
    "variables TIERLINE_* (env -i, sudo) or as another Python (-I, -E)"
)


@dataclass
class Watch:
    """The file of an observed program, look by look, whichever process of it writes."""

    jobs: int
    """How many are asked for."""
    text: str = ""
    """The record of the process that began last."""
    best: str = ""
    """The record of one that began earlier: one with a profile if any, then the most outputs."""
    _began: set[int] = field(default_factory=set)
    _last: int | None = None
    _most: int = 0

    def look(self, text: str) -> bool:
        """Take what the file holds now; whether that is more than any process had written."""
        process = _process(text)
        if process != self._last and process is not None:
            self._last = process
            self._began.add(process)
        if not text.startswith(self.text):  # begun again
            self.best = max(self.best, self.text, key=_worth)
        self.text = text
        more, self._most = self.done > self._most, max(self._most, self.done)
        return more

    @property
    def done(self) -> int:
        """Jobs of the process that began last."""
        return sum(line.startswith('{"output"') for line in self.text.splitlines())

    @property
    def most(self) -> int:
        """Jobs of the process that had most of them."""
        return self._most

    @property
    def complete(self) -> bool:
        """Whether a profile is there, and as many jobs as were asked for."""
        return _worth(self.whole()) >= (True, self.jobs)

    @property
    def in_vain(self) -> bool:
        """Whether too many processes ended without that, and none of them is left."""
        return (
            len(self._began) >= MOST_ENDS
            and not self.complete
            and not any(psutil.pid_exists(process) for process in self._began)
        )

    def whole(self) -> str:
        """The most that any process wrote."""
        return max(self.best, self.text, key=_worth)


@dataclass
class Ends:
    """How often all processes of a task had gone again, by its connections to the agent."""

    _ends: dict[str, int] = field(default_factory=dict)
    _there: set[str] = field(default_factory=set)

    def look(self, task: str, clients: int) -> int:
        """Take how many of its processes are connected now; returns how often none was left."""
        if clients:
            self._there.add(task)
        elif task in self._there:
            self._there.remove(task)
            self._ends[task] = self._ends.get(task, 0) + 1
        return self._ends.get(task, 0)


def _worth(text: str) -> tuple[bool, int]:
    lines = text.splitlines()
    profiled = any(line.startswith(PROFILE_LINE) for line in lines)
    return profiled, sum(line.startswith('{"output"') for line in lines)


def _process(text: str) -> int | None:
    """The process that began this file; None while it is not written."""
    line = text.partition("\n")[0]
    if not line.startswith(f'{{"{BEGAN}"'):
        return None
    try:
        return int(json.loads(line)[BEGAN])
    except (ValueError, TypeError):
        return None
