"""What a program cannot tell: whether it runs plain, observed, or managed by an agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.programs import modes
from tests.programs.comparing import difference
from tests.programs.generator import generate
from tests.programs.kinds import load
from tests.shares import share

EXCHANGES = (168, 233, 236, 240, 385, 439, 505, 591, 662, 848, 851, 1480, 1570, 2140)
"""They exchange or resize tensors, or save weights while jobs run."""
THREADS = (181, 920, 1085, 1237)
"""Their jobs run in threads that have computed nothing before; one has a tensor without memory."""
ADDRESSES = (1025, 1105, 1225, 1525, 1305, 1335, 1515, 2335, 2415)
"""Code that PyTorch does not know keeps the address of a weight of theirs."""
NAMED = (*EXCHANGES, *THREADS, *ADDRESSES)


def bringing_a_piece(numbers: Iterable[int]) -> Iterator[int]:
    """Those with a piece that neither the named ones have nor one before them."""
    seen = {piece for number in NAMED for piece in generate(number).tags}
    for number in numbers:
        if not seen.issuperset(pieces := generate(number).tags):
            seen.update(pieces)
            yield number


PROGRAMS = (*share(tuple(bringing_a_piece(range(110))), tuple(range(110))), *NAMED)
"""`python -m tests.programs --count 10000` runs as many as one likes."""
FORKS = (36, 45, 51, 58, 137, 150, 207, 246, 255, 284, 305, 340, 396, 416)
"""Each way to fork, moment and use at least once; `forks.pairs()` has each two of them together."""
MODULES = sorted({*range(0, 114, 4), 70, 71})
"""A quarter of all, and transformers, for which PyTorch chooses kernels by what modes are on."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modes.Agent]:
    with modes.Agent(tmp_path_factory.mktemp("agent"), "programs") as agent:
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
    programs = PROGRAMS
    plain = modes.plain(tmp_path, "programs", programs)
    assert not any("ended" in result for result in plain.values())
    assert faults("programs", plain, modes.observed(tmp_path, "programs", programs)) == {}
    assert faults("programs", plain, agent.managed("programs", programs)) == {}
    assert agent.streamed_bytes > 4 << 20, "it was streaming that they could not tell"


@pytest.mark.slow
def test_forked_children_read_the_weights_and_run_the_model(
    tmp_path: Path, agent: modes.Agent
) -> None:
    plain = modes.plain(tmp_path, "forks", FORKS)
    assert not any("ended" in result for result in plain.values())
    assert faults("forks", plain, agent.managed("forks", FORKS)) == {}


@pytest.mark.slow
def test_pytorchs_own_modules_give_the_same_outputs(tmp_path: Path, agent: modes.Agent) -> None:
    plain = modes.plain(tmp_path, "modules", MODULES)
    assert faults("modules", plain, agent.managed("modules", MODULES)) == {}
