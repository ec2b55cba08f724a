"""Every wait for a program ends, however often its shell starts it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tierline_cli.local.waiting import MOST_ENDS, Ends, Watch


def gone() -> int:
    """The number of a process that ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def written(process: int, jobs: int, *, profile: bool = False) -> str:
    """The file of an observed process after so many jobs."""
    lines = [json.dumps({"began": process})]
    lines += [json.dumps({"output": {"input": str(n)}}) for n in range(jobs)]
    lines += [json.dumps({"profile": {}})] if profile else []
    return "".join(f"{line}\n" for line in lines)


def test_processes_that_end_too_early_are_counted() -> None:
    watch = Watch(jobs=5)
    for number in range(MOST_ENDS):
        assert not watch.in_vain
        # More jobs than any process before it had are progress, the same again is none.
        assert watch.look(written(gone(), 3)) == (number == 0)
    assert watch.in_vain
    assert (watch.most, watch.complete) == (3, False)


def test_a_process_that_lives_may_still_show_enough() -> None:
    watch = Watch(jobs=5)
    for _ in range(MOST_ENDS):
        watch.look(written(gone(), 3))
    watch.look(written(os.getpid(), 1))
    assert not watch.in_vain
    watch.look(written(os.getpid(), 5, profile=True))
    assert watch.complete


def test_what_a_process_showed_outlives_the_next_start() -> None:
    watch = Watch(jobs=5)
    watch.look(written(gone(), 2, profile=True))
    watch.look("")  # seen when the next process had just begun the file
    assert '"profile"' in watch.whole()
    for jobs, profile in (4, False), (3, True), (4, False):
        watch.look(written(gone(), jobs, profile=profile))
    assert watch.whole().count('"output"') == 3
    assert '"profile"' in watch.whole()


def test_connections_that_go_again_are_counted_by_task() -> None:
    ends = Ends()
    seen = [ends.look("a", clients) for clients in (0, 1, 2, 1, 0, 0, 1, 0)]
    assert seen == [0, 0, 0, 0, 1, 1, 1, 2]
    assert ends.look("b", 0) == 0
