"""The state machine of sessions for as long as there is time: `python -m tests.fuzz.sessions`.

Each round draws again, from a seed that is said, and so finds what the examples of `make test`,
which are the same in every run, do not. It ends with the number of steps, or with what it found.
"""

from __future__ import annotations

import argparse
import time

from hypothesis import seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from tests.integration.agent.hostile.test_session_machine import Sessions

_EXAMPLES = 100


class Counted(Sessions):
    """Sessions, with the number of steps of all of them."""

    steps = 0

    @invariant()
    def one_more(self) -> None:
        Counted.steps += 1


def main() -> None:
    """Run rounds until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    arguments = parser.parse_args()
    terms = settings(
        Sessions.TestCase.settings, max_examples=_EXAMPLES, derandomize=False, database=None
    )
    began_s, number = time.monotonic(), arguments.seed
    while time.monotonic() - began_s < arguments.seconds:
        print(f"seed {number}: {Counted.steps} steps so far", flush=True)
        run_state_machine_as_test(seed(number)(Counted), settings=terms)
        number += 1
    cpu_s = time.process_time()
    print(f"{Counted.steps} steps in {time.monotonic() - began_s:.0f} s, {cpu_s:.0f} s of a core")


if __name__ == "__main__":
    main()
