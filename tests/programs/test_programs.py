"""What a program cannot tell: whether it runs plain, observed, or managed by an agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import modes
from tests.programs.comparing import difference
from tests.programs.kinds import load

PROGRAMS = 110
"""Numbers from 0; `python -m tests.programs --count 10000` runs as many as one likes."""
TOLD = frozenset(
    {
        "counted_functions",  # its own TorchFunctionMode
        "counted_operators",  # its own TorchDispatchMode
        "profile",  # its own profiler counts operators that are ours
        "zeros@operator",  # PyTorch cannot show a zero tensor to a dispatch mode
        "zeros@argument",
        "faulthandler",  # enabled and disabled when weights stream
    }
)
"""Pieces by which a program can still tell."""
MODULES = range(0, 114, 4)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modes.Agent]:
    extent_bytes = modes.EXTENT_BYTES["programs"]
    with modes.Agent(tmp_path_factory.mktemp("agent"), extent_bytes) as agent:
        yield agent


@pytest.fixture(scope="module")
def programs() -> list[int]:
    """Programs without the pieces by which they can tell."""
    kind = load("programs")
    return [seed for seed in kind.numbers(0, PROGRAMS) if not TOLD & {*kind.tags(seed)}]


def faults(
    kind: str, plain: modes.Results, under: modes.Results
) -> dict[int, tuple[tuple[str, ...], str]]:
    """Return what differs, by number."""
    tags = load(kind).tags
    found = ((number, difference(plain[number], under[number])) for number in plain)
    return {number: (tags(number), text) for number, text in found if text is not None}


@pytest.mark.slow
def test_a_program_cannot_tell_that_it_runs_under_tierline(
    tmp_path: Path, agent: modes.Agent, programs: list[int]
) -> None:
    plain = modes.plain(tmp_path, "programs", programs)
    assert not any("ended" in result for result in plain.values())
    assert faults("programs", plain, modes.observed(tmp_path, "programs", programs)) == {}
    assert faults("programs", plain, agent.managed("programs", programs)) == {}
    assert agent.streamed_bytes > 4 << 20, "it was streaming that they could not tell"


@pytest.mark.slow
def test_pytorchs_own_modules_give_the_same_outputs(tmp_path: Path, agent: modes.Agent) -> None:
    plain = modes.plain(tmp_path, "modules", MODULES)
    assert faults("modules", plain, agent.managed("modules", MODULES)) == {}
