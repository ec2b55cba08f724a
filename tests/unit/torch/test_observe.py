from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tierline
from tierline_torch import calls, process
from tierline_torch.contents import Entry
from tierline_torch.observe import _Measured


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "observed.jsonl"
    monkeypatch.setenv("TIERLINE_OBSERVE", str(path))
    monkeypatch.setenv("TIERLINE_OBSERVE_JOBS", "4")
    monkeypatch.setattr(process, "_process", process.Process())
    monkeypatch.setattr(nn.Module, "__call__", calls._call)
    return path


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (profile,) = [line["profile"] for line in lines if "profile" in line]
    return profile, [line["output"] for line in lines if "output" in line]


def test_a_loop_is_profiled(records: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    where = [parameter.data_ptr() for parameter in model.parameters()]
    with torch.inference_mode():
        for release in tierline.periodic():
            model(torch.full((2, 8), float(release.index % 2)))
    profile, outputs = read(records)
    assert [(one["name"], one["bytes"], one["arena"]) for one in profile["layers"]] == [
        ("0", 576, 0),
        ("2", 320, 0),
    ]
    assert len(profile["compute_s"]) == 4
    total = sum(one["compute_s"] for one in profile["layers"])
    assert total == pytest.approx(max(profile["compute_s"]), rel=1e-6)
    assert profile["workspace_bytes"] >= 2 * 16 * 4 + 64
    assert len(profile["weights_digest"]) == 64
    assert len({(one["input"], one["output"]) for one in outputs}) == 2
    assert [parameter.data_ptr() for parameter in model.parameters()] == where


def test_a_program_without_a_loop_is_profiled_at_its_end(records: Path) -> None:
    model = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        for _ in range(6):
            model(torch.ones(2, 8))
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    backend.finish()
    profile, outputs = read(records)
    assert len(profile["compute_s"]) == 2  # two are recorded, two warm up
    assert len(outputs) == 6


def test_weights_outside_of_arenas_are_pinned_layers_of_one_more(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = nn.Linear(8, 16).eval()
    kept = seen.weight.detach()  # who knows what the program does to it
    beside = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        for _ in range(6):
            seen(torch.ones(2, 8))
            beside(torch.ones(2, 8))
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    profile, _ = read(records)
    told = [(one["name"], one["bytes"], one["pinned"], one["arena"]) for one in profile["layers"]]
    assert told == [
        ("Linear", 64, False, 0),
        ("Linear", 576, False, 1),
        ("outside: others see its memory", 512, True, 2),
    ]
    assert "Linear: 512 bytes stay resident: others see its memory" in capsys.readouterr().err
    assert kept.shape == (16, 8)


def test_a_model_of_which_nothing_can_be_moved_is_profiled(records: Path) -> None:
    model = nn.BatchNorm1d(8, affine=False).eval()
    with torch.inference_mode():
        for _ in range(6):
            model(torch.ones(2, 8))
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    profile, _ = read(records)
    (layer,) = profile["layers"]
    assert (layer["bytes"], layer["pinned"]) == (0, True)
    assert layer["compute_s"] == pytest.approx(max(profile["compute_s"]))


def test_a_profile_is_written_as_soon_as_enough_jobs_counted(records: Path) -> None:
    model = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        for _ in range(8):
            model(torch.ones(2, 8))
    assert len(read(records)[0]["compute_s"]) == 4


def test_a_model_that_is_gone_before_it_was_settled_is_profiled(records: Path) -> None:
    with torch.inference_mode():
        nn.Linear(8, 16).eval()(torch.ones(2, 8))
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    profile, _ = read(records)
    (layer,) = profile["layers"]
    assert layer["bytes"] == 576
    assert layer["compute_s"] > 0


def test_models_of_other_weights_have_other_digests(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        monkeypatch.setattr(process, "_process", process.Process())
        with torch.inference_mode():
            model = nn.Linear(8, 16).eval()
            model(torch.ones(8))
        backend = process.process().backend
        assert backend is not None
        backend.finish()
        digests.add(read(records)[0]["weights_digest"])
    assert len(digests) == 2


def test_times_are_typical_and_sum_to_the_worst_job() -> None:
    entries = (Entry("a", 64, pinned=False), Entry("b", 64, pinned=False))
    jobs: list[tuple[float, ...]] = [(1.0, 2.0), (5.0, 2.0), (1.0, 6.0)]
    totals = [sum(times) for times in jobs]
    measured = _Measured(entries, 9.0, totals, layers_s=jobs)
    worst, mean = zip(*measured.compute_s(), strict=True)
    assert worst == pytest.approx([7 / 3, 14 / 3])
    assert mean == pytest.approx([17 / 9, 34 / 9])


def test_where_no_job_counted_the_slowest_other_one_stands_in() -> None:
    pinned, *rest = Entry("p", 512, pinned=True), Entry("a", 64, pinned=False)
    entries = (pinned, *rest, Entry("b", 192, pinned=False))
    assert _Measured(entries, 8.0).compute_s() == [(0.0, None), (2.0, None), (6.0, None)]
    warm = _Measured(entries, 8.0, uncounted_s=[4.0, 2.0])
    assert warm.compute_s() == [(0.0, None), (1.0, None), (3.0, None)]


def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERLINE_OBSERVE", str(tmp_path / "absent" / "file"))
    here = process.Process()
    assert here.backend is None
    assert here.backend is None
    told = capsys.readouterr().err
    assert told.count("could not write TIERLINE_OBSERVE") == 1
    assert "this program runs without Tierline" in told


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_a_number_of_jobs_that_is_none_is_refused(
    records: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("TIERLINE_OBSERVE_JOBS", number)
    monkeypatch.setenv("TIERLINE_REQUIRED", "1")
    with pytest.raises(tierline.TierlineError, match=f"TIERLINE_OBSERVE_JOBS={number}"):
        _ = process.Process().backend
