"""Which lives of an agent count."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.processes.lives import LONG_S, Lives


@in_loop
async def test_two_lives_that_ended_soon_are_remembered_until_one_does_not(tmp_path: Path) -> None:
    assert [Lives(tmp_path).crashing() for _ in range(4)] == [False, False, True, True]
    with suppress(OSError), Lives(tmp_path):
        raise OSError("it cannot start")
    assert Lives(tmp_path).crashing()
    with Lives(tmp_path) as orderly:
        assert orderly.crashing()
    assert [Lives(tmp_path).crashing() for _ in range(3)] == [False, False, True]


def test_it_is_trusted_again_when_it_has_lived_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    _, _, third = (Lives(tmp_path) for _ in range(3))
    now[0] = LONG_S - 1
    assert third.crashing()
    now[0] = LONG_S
    assert not third.crashing()


def test_another_pod_starts_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        Lives(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert not Lives(tmp_path).crashing()


def test_a_note_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    Lives(tmp_path)
    (tmp_path / "lives.json").write_text('{"boot": "?", "value": []}')
    assert not Lives(tmp_path).crashing()
