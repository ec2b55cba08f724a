"""A program of many models, observed and then managed by a real agent, in two processes.

Importing PyTorch takes seconds, so each process does everything, and the tests look at the traces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent_process import EXTENT_BYTES, AgentProcess, plan, wait_until
from tests.integration.torch.terms import PAIR, PAIR_DEADLINE_S, RELEASES
from tests.spans import largest_span

from tierline_api.layout import ArenaLayout, LayerShape, lay_out

_PROGRAM = Path(__file__).with_name("program.py")
_ROOT = _PROGRAM.parents[3]
_SPARE_EXTENTS = 4
_TIMEOUT_S = 600
_PERIOD_NS = 10**8


@dataclass(frozen=True)
class Outcome:
    """What two runs of the program left."""

    observed: dict[str, str | None]
    managed: dict[str, str | None]
    profile: dict[str, Any]
    layout: ArenaLayout
    observed_outputs: dict[str, str]
    task: dict[str, Any]
    jobs: list[dict[str, Any]]
    stderr: str
    epoch_ns: int


def _run(folder: Path, name: str, **environment: str) -> tuple[dict[str, str | None], str]:
    results = folder / f"{name}.jsonl"
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(results)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), **environment},
        timeout=_TIMEOUT_S,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {line["check"]: line["fault"] for line in lines}, done.stderr


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("torch")
    records = folder / "observed.jsonl"
    observed, _ = _run(
        folder,
        "seen",
        TIERLINE_OBSERVE=str(records),
        TIERLINE_OBSERVE_JOBS=str(RELEASES),
    )
    seen = [json.loads(line) for line in records.read_text().splitlines()]
    profile: dict[str, Any] = next(line["profile"] for line in seen if "profile" in line)
    outputs = {
        line["output"]["input"]: line["output"]["output"] for line in seen if "output" in line
    }
    shapes = [LayerShape(one["bytes"], one["pinned"], one["arena"]) for one in profile["layers"]]
    layout = lay_out(shapes, EXTENT_BYTES)
    pinned = tuple(sorted(layout.pinned_extents))
    ring = largest_span(layout) + 1

    agent = AgentProcess(folder, fast_extents=len(pinned) + ring + 32)
    settings = json.loads(agent.config.read_text())
    settings["tiers"][0]["size_bytes"] = 64 << 20
    agent.config.write_text(json.dumps(settings))
    agent.start()
    try:
        answer = agent.register(
            "program",
            plan(layout.extent_count + _SPARE_EXTENTS, resident=pinned, ring=ring),
            period_ns=_PERIOD_NS,
            deadline_ns=_PERIOD_NS,
            record_outputs=True,
        )
        assert answer["ok"], answer
        epoch_ns = time.monotonic_ns()
        agent.call("start", epoch_ns=epoch_ns, until_ns=0)
        managed, stderr = _run(
            folder, "kept", TIERLINE_SOCKET=answer["socket"], TIERLINE_REQUIRED="1"
        )
        # What a program says at its end comes in before its connection ends.
        wait_until(lambda: not agent.task("program")["clients"], "the agent lets go of it")
        yield Outcome(
            observed=observed,
            managed=managed,
            profile=profile,
            layout=layout,
            observed_outputs=outputs,
            task=agent.task("program"),
            jobs=agent.call("jobs", since=0)["jobs"],
            stderr=stderr,
            epoch_ns=epoch_ns,
        )
    finally:
        agent.stop()


def _faults(results: dict[str, str | None]) -> dict[str, str]:
    return {check: fault for check, fault in results.items() if fault is not None}


@pytest.mark.slow
def test_an_observed_program_gives_the_outputs_of_plain_pytorch(outcome: Outcome) -> None:
    assert _faults(outcome.observed) == {}


@pytest.mark.slow
def test_a_streamed_program_gives_the_outputs_of_plain_pytorch(outcome: Outcome) -> None:
    streamed = {check: outcome.managed[check] for check in outcome.observed}
    assert _faults(streamed) == {}


def test_odd_things_stay_correct(outcome: Outcome) -> None:
    odd = {
        check: fault for check, fault in outcome.managed.items() if check not in outcome.observed
    }
    assert len(odd) == 19, sorted(odd)
    assert _faults(odd) == {}


def test_the_plan_made_from_the_observed_run_fits_the_managed_one(outcome: Outcome) -> None:
    layout = outcome.layout
    expected = {
        sum(
            layout.extent_sizes[extent]
            for extent in layout.extents_of_arena(arena)
            if extent not in layout.pinned_extents
        )
        for arena in range(layout.arena_count)
    }
    streamed = {job["streamed_bytes"] for job in _in_loop(outcome)}
    assert streamed <= expected | {0}
    assert len(streamed) > layout.arena_count // 2
    assert "profile the task again" not in outcome.stderr


def _in_loop(outcome: Outcome) -> list[dict[str, Any]]:
    counted = [job for job in outcome.jobs if not job["warmup"]]
    return counted[: RELEASES * outcome.layout.arena_count]


def test_a_program_that_starts_after_the_releases_began_does_not_make_up_for_them(
    outcome: Outcome,
) -> None:
    releases_ns = sorted({job["release_ns"] for job in _in_loop(outcome)})
    missed, left = divmod(releases_ns[0] - outcome.epoch_ns, _PERIOD_NS)
    assert missed > 1  # it imports PyTorch and learns meanwhile
    assert left == 0


def test_weights_were_streamed_and_none_fetched_in_the_learned_order(outcome: Outcome) -> None:
    in_loop = _in_loop(outcome)
    assert sum(job["streamed_bytes"] for job in in_loop) > 10 * len(in_loop) * EXTENT_BYTES // 2
    assert sum(job["fetched_bytes"] for job in in_loop) == 0


def test_outputs_agree_by_digest_with_the_observed_run(outcome: Outcome) -> None:
    told = {
        job["input_digest"]: job["output_digest"]
        for job in _in_loop(outcome)  # later ones have other weights for the same input
        if job["input_digest"] in outcome.observed_outputs
    }
    differing = {
        given for given, output in told.items() if outcome.observed_outputs[given] != output
    }
    # Three programs give another output for the same input, by their nature.
    stateful = 2 * len(("addressed", "unsteady", "counting"))
    assert len(told) >= 2 * (outcome.layout.arena_count - len(PAIR))
    assert len(differing) <= stateful


def test_a_deadline_given_to_a_job_is_the_jobs(outcome: Outcome) -> None:
    spans = {job["deadline_ns"] - job["release_ns"] for job in outcome.jobs}
    assert spans == {10**8, round(PAIR_DEADLINE_S * 1e9)}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("pinned", "BertForMaskedLM: pinned: read more than once in a job"),
        ("pinned", "ViTModel: pinned: its module's forward encloses other streamed"),
        ("pinned", "Branches: pinned: read in a changing order"),
        ("pinned", "pair: pinned: read outside its own module's forward"),
        ("order_changed", "Orders called its modules in another order"),
        ("left_management", "a sealed weight was written"),
        ("left_management", "Sequential is no longer streamed: its weights were replaced"),
    ],
)
def test_the_status_says_why(outcome: Outcome, kind: str, text: str) -> None:
    found = [one for one in outcome.task["notices"] if text in one["text"]]
    assert [one["kind"] for one in found][:1] == [kind], outcome.task["notices"]


def test_an_order_change_is_told_once(outcome: Outcome) -> None:
    kinds = [one["kind"] for one in outcome.task["notices"]]
    assert kinds.count("order_changed") == 1


def test_arenas_of_dropped_models_are_used_again(outcome: Outcome) -> None:
    assert "more job roots than arenas" not in outcome.stderr


def test_only_replaced_weights_are_told_as_such(outcome: Outcome) -> None:
    texts = [one["text"] for one in outcome.task["notices"]]
    assert sum("its weights were replaced" in text for text in texts) == 3, texts
    assert outcome.stderr.count("its weights were replaced") == 1  # they have the same name


def test_what_is_left_alone_is_told(outcome: Outcome) -> None:
    assert "is left alone: it runs with gradients" in outcome.stderr


def test_the_workspace_was_measured(outcome: Outcome) -> None:
    assert outcome.profile["workspace_bytes"] == outcome.task["workspace_peak_bytes"] > 100_000
