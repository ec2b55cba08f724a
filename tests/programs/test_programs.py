"""What a program cannot tell: whether it runs plain, observed, or managed by an agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import modes
from tests.programs.comparing import difference
from tests.programs.kinds import load

SOME = range(0, 120)
"""Seeds of programs; `python -m tests.programs --count 10000` runs as many as one likes."""
MODULES = range(0, 114, 3)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modes.Agent]:
    with modes.Agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


def faults(
    kind: str, plain: modes.Results, under: modes.Results
) -> dict[int, tuple[tuple[str, ...], str]]:
    """Return what differs, by number."""
    tags = load(kind).tags
    found = ((number, difference(plain[number], under[number])) for number in plain)
    return {number: (tags(number), text) for number, text in found if text is not None}


@pytest.mark.slow
def test_a_program_cannot_tell_that_it_runs_under_tierline(
    tmp_path: Path, agent: modes.Agent
) -> None:
    plain = modes.plain(tmp_path, "programs", SOME)
    assert sum("ended" in result for result in plain.values()) == 0
    assert faults("programs", plain, modes.observed(tmp_path, "programs", SOME)) == {}
    assert faults("programs", plain, agent.managed("programs", SOME)) == {}
    assert agent.streamed_bytes > 10 << 20, "it was streaming that they could not tell"


@pytest.mark.slow
def test_pytorchs_own_modules_give_the_same_outputs(tmp_path: Path, agent: modes.Agent) -> None:
    plain = modes.plain(tmp_path, "modules", MODULES)
    assert faults("modules", plain, agent.managed("modules", MODULES)) == {}
