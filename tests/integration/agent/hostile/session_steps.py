"""The sessions' state machine by the million steps: run it as a module.

Rules and invariants are those of `test_session_machine.py`. Hypothesis draws what they are given,
once, at the begin; then a random generator picks from that, which is many times as fast as to draw
for each step. A fault ends it, with what led to it; the same seed leads to it again, as far as
threads allow.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.integration.agent.hostile.test_session_machine import STEPS, Sessions

_AT_ONCE, _TIMES = 40, 60
_SAID_EVERY_S = 60.0


def draw(strategy: st.SearchStrategy[Any], from_seed: int) -> list[Any]:
    """Many values of a strategy."""
    drawn: list[Any] = []

    @seed(from_seed)
    @settings(
        max_examples=_TIMES,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(strategy, min_size=_AT_ONCE, max_size=_AT_ONCE))
    def collect(values: list[Any]) -> None:
        drawn.extend(values)

    collect()
    return drawn


class Steps:
    """Runs of the machine, one after the other, each with an agent of its own."""

    def __init__(self, from_seed: int) -> None:
        self._random = random.Random(from_seed)  # noqa: S311 - chances, not secrets
        self._rules = [
            (
                rule.function,
                {name: draw(values, from_seed) for name, values in rule.arguments.items()},
            )
            for rule in Sessions.setup_state().rules
        ]
        self._invariants = Sessions.setup_state().invariants
        self.taken = 0
        self.last: list[tuple[str, dict[str, Any]]] = []

    def run(self) -> None:
        """One life of an agent. Raises what a rule or an invariant raises."""
        machine = Sessions()
        self.last.clear()
        try:
            for _ in range(STEPS):
                function, arguments = self._random.choice(self._rules)
                chosen = {name: self._random.choice(known) for name, known in arguments.items()}
                self.last.append((function.__name__, chosen))
                function(machine, **chosen)
                for one in self._invariants:
                    one.function(machine)
                self.taken += 1
        finally:
            machine.teardown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Take steps until the time is over; 1 if a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10**7)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    chosen = parser.parse_args(arguments)
    steps = Steps(chosen.seed)
    began_s = said_s = time.monotonic()
    while steps.taken < chosen.steps and time.monotonic() - began_s < chosen.seconds:
        try:
            steps.run()
        except BaseException:
            for name, values in steps.last:
                print(name, values)
            print(f"seed {chosen.seed}: a fault after {steps.taken} steps", flush=True)
            raise
        if time.monotonic() - said_s > _SAID_EVERY_S:
            said_s = time.monotonic()
            print(f"seed {chosen.seed}: {steps.taken} steps", flush=True)
    took_s = time.monotonic() - began_s
    print(f"seed {chosen.seed}: {steps.taken} steps in {took_s:.0f} s, no fault", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
