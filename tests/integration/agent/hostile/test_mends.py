"""The state machine of sessions finds a mend that is taken out: see `tests.mends`."""

from __future__ import annotations

import pytest
from tests.mends.finding import find
from tests.mends.mends import MACHINE, MENDS

SECONDS = ("job-limit", "a-failed-write-is-tried-again", "left-in-a-turn-of-its-own")
"""What is found within seconds; `make mends` looks for all."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SECONDS)
def test_the_state_machine_finds_a_mend_taken_out(name: str) -> None:
    (mend,) = [one for one in MENDS if one.name == name]
    found = find(mend, MACHINE)
    assert found.failed, "nobody protects this mend"
    assert "ModuleNotFoundError" not in found.why
