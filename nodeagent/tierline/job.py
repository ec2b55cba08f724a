"""`with tierline.job(...)`: a block of a program that is one job."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tierline import surroundings


def job(deadline: float | None = None, name: str | None = None) -> AbstractContextManager[None]:
    """Make the block one job: all outermost forwards in it run under one lease.

    `deadline` is in seconds from the job's release (now, or the current release of
    `tierline.periodic`); by default it is the task's. Blocks of one `name` do the same work each
    time, and share what was learned; by default a block is known by its place in the program.

    The job belongs to the thread that entered the block: modules called by other threads meanwhile
    wait until it ends, unless they are parts of the job's own models. Inside another job the block
    is a part of that one. Without Tierline it does nothing.

    Raises TierlineError if the agent cannot be reached and TIERLINE_REQUIRED=1, ValueError for a
    deadline that is not positive.
    """
    if deadline is not None and deadline <= 0:
        raise ValueError(f"could not begin a job with a deadline of {deadline} s: give more than 0")
    if surroundings.swapped():
        from tierline import swapped  # noqa: PLC0415  # loads the library

        return swapped.job(deadline)
    if not surroundings.managed():
        return nullcontext()
    if name is None:
        caller = sys._getframe(1)
        name = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
    from tierline_torch.dispatch import Block  # noqa: PLC0415  # loads torch

    return Block(name, deadline)
