from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tierline
from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memprofile import Layer, MemProfile, MemProfileSpec, ProfiledDevice
from tierline_api.objects.observed import ObservedProfile
from tierline_api.schema.metadata import ObjectMeta
from tierline_torch import calls, dispatch, process
from tierline_torch.arenas import gates
from tierline_torch.arenas.contents import Entry
from tierline_torch.backends import observed
from tierline_torch.backends.observed import _Measured
from tierline_torch.learning import course
from tierline_torch.learning.survey import ModuleSurvey

MS = 1_000_000


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "observed.jsonl"
    monkeypatch.setenv("TIERLINE_OBSERVE", str(path))
    monkeypatch.setenv("TIERLINE_OBSERVE_JOBS", "4")
    monkeypatch.setattr(process, "_process", process.Process())
    monkeypatch.setattr(nn.Module, "__call__", calls._call)
    monkeypatch.setattr(calls, "_outermost", dispatch.prepare())
    return path


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (profile,) = [line["profile"] for line in lines if "profile" in line]
    return profile, [line["output"] for line in lines if "output" in line]


def taken(path: Path) -> MemProfileSpec:
    """The profile as the API takes it."""
    seen = ObservedProfile.written(path.read_text())
    assert seen is not None
    device = ProfiledDevice(kind=DeviceKind.CPU, product="x")
    return MemProfile.from_api(seen.memprofile(ObjectMeta(name="a"), device).to_api()).spec


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
    assert profile["workspace_known"]
    assert len(profile["weights_digest"]) == 64
    assert len({(one["input"], one["output"]) for one in outputs}) == 2
    assert [parameter.data_ptr() for parameter in model.parameters()] == where


def test_a_workspace_that_nobody_could_measure_is_said_to_be_unknown(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server with threads that compute: of its jobs only inputs and buffers are seen."""
    model = nn.Linear(8, 16).eval()

    def serve() -> None:
        with torch.inference_mode():
            for _ in range(6):
                model(torch.ones(2, 8))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    profile, _ = read(records)
    assert (profile["workspace_bytes"], profile["workspace_known"]) == (64, False)
    assert "what its jobs allocate could not be measured" in capsys.readouterr().err


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
    other = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        for _ in range(6):
            seen(torch.ones(2, 8))
            other(torch.ones(2, 8))
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
    assert profile["calls"] == [1]
    assert taken(records).release_jobs == 1


@pytest.mark.parametrize(("counts", "streamed"), [((10,), 0), ((5, 5), 5), ((4, 4), 8)])
def test_models_of_more_layers_than_a_profile_holds_stay_resident(
    records: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], streamed: int
) -> None:
    for module in (course, observed):
        monkeypatch.setattr(module, "MOST_ENTRIES", 8)
    models = [nn.Sequential(*(nn.Linear(4, 4) for _ in range(n))).eval() for n in counts]
    with torch.inference_mode():
        for _ in range(6):
            for model in models:
                model(torch.ones(2, 4))
    backend = process.process().backend
    assert backend is not None
    backend.finish()
    layers = read(records)[0]["layers"]
    assert sum(not one["pinned"] for one in layers) == streamed
    assert sum(one["bytes"] for one in layers) == sum(counts) * 128  # each has two of 64 bytes
    told = [one["name"] for one in layers if one["pinned"]]
    assert all("more layers than a profile holds" in one for one in told)
    assert len(told) == (streamed < sum(counts))


def test_more_models_than_a_profile_tells_apart_stay_resident_and_count(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observed, "MAX_ARENAS", 3)
    models = [nn.Linear(4, 4).eval() for _ in range(4)]
    with torch.inference_mode():
        for _ in tierline.periodic():
            for model in models:
                model(torch.ones(2, 4))
    spec = taken(records)
    assert [(one.arena, one.pinned) for one in spec.layers] == [
        *((0, False), (1, False)),
        *((2, True), (2, True)),
    ]
    assert (spec.calls, spec.weight_bytes) == ((1, 1, 2), 4 * 128)
    assert "a task has at most 2 job roots: it stays resident; put modules that" in (
        capsys.readouterr().err
    )


_TIME_S = st.floats(0, 1e3)


@given(
    st.integers(1, 4).flatmap(
        lambda count: st.tuples(
            st.lists(
                st.tuples(st.integers(0, 1 << 40), st.booleans()), min_size=count, max_size=count
            ),
            st.lists(st.tuples(*[_TIME_S] * count), max_size=4),
        )
    ),
    st.lists(_TIME_S, max_size=5),
    st.lists(_TIME_S, max_size=3),
    _TIME_S,
)
def test_whatever_was_measured_is_a_profile(
    layers: tuple[list[tuple[int, bool]], list[tuple[float, ...]]],
    jobs_s: list[float],
    uncounted_s: list[float],
    recorded_s: float,
) -> None:
    sizes, timed = layers
    entries = tuple(Entry("a", size, pinned=pinned) for size, pinned in sizes)
    measured = _Measured(entries, recorded_s, jobs_s, uncounted_s, timed)
    for (worst_s, mean_s), longest_s in zip(
        measured.compute_s(), measured.longest_s(), strict=True
    ):
        made = Layer(
            name="a",
            bytes=0,
            compute_time_s=worst_s,
            mean_compute_time_s=mean_s,
            longest_compute_time_s=longest_s,
        )
        assert Layer.from_api(made.to_api()).to_api() == made.to_api()


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


def test_a_module_for_each_request_does_not_keep_the_profile_from_being_written(
    records: Path,
) -> None:
    model = nn.Linear(8, 8).eval()
    with torch.inference_mode():
        for _ in range(12):
            nn.Linear(8, 16).eval()(model(torch.ones(2, 8)))
    profile, _ = read(records)
    assert [layer["bytes"] for layer in profile["layers"]] == [320]
    assert len(profile["compute_s"]) == 4


def test_a_loop_with_a_model_for_each_job_is_profiled_after_many(records: Path) -> None:
    with torch.inference_mode():
        for _ in range(4 * 20):
            nn.Linear(8, 16).eval()(torch.ones(2, 8))
    profile, _ = read(records)
    assert [layer["bytes"] for layer in profile["layers"]] == [576]
    assert profile["compute_s"] == []


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


class _Device:
    """A device with a clock of its own, which stands still but for work that is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = time.perf_counter_ns()
        self.given_ns = 0
        """Of work that it was given, and has not done."""
        self.capturing = False
        for clock in (time, gates):
            monkeypatch.setattr(clock, "perf_counter_ns", lambda: self.now_ns)

    def finish(self) -> bool:
        if not self.capturing:
            self.now_ns, self.given_ns = self.now_ns + self.given_ns, 0
        return not self.capturing


class _Slow(nn.Module):
    """Two layers; in the first `jobs` calls each has the device compute, or waits, for 30 ms."""

    def __init__(self, device: _Device, jobs: int, *, at_once: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.device, self.jobs, self.at_once = device, jobs, at_once
        self.captures = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.jobs -= 1
        if self.jobs == 0 and self.captures:
            with calls.current.without_lease():
                self.device.capturing = True
                self.run(x)
                self.device.now_ns += 1000 * MS
                self.device.capturing = False
        return self.run(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.jobs >= 0 and not self.device.capturing:
                self.device.given_ns += 30 * MS
            x = layer(x)
            if self.at_once:
                self.device.finish()
        return x


@pytest.mark.parametrize("at_once", [True, False], ids=["cpu", "launches"])
def test_first_jobs_are_measured_where_they_give_the_device_away(
    records: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Also where a call returns before the device has done what it was given."""
    device = _Device(monkeypatch)
    monkeypatch.setattr(ModuleSurvey, "finish", lambda _: device.finish())
    model = _Slow(device, 2, at_once=at_once).eval()
    with torch.inference_mode():
        for _ in tierline.periodic():
            model(torch.ones(2, 4))
    profile, _ = read(records)
    assert profile["first_section_s"] == 0.03  # one of them, not both
    assert profile["first_extra_s"] >= 0


def test_a_capture_keeps_nobody_waiting(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    monkeypatch.setattr(ModuleSurvey, "finish", lambda _: device.finish())
    model = _Slow(device, 2, at_once=False).eval()
    model.captures = True
    with torch.inference_mode():
        for _ in tierline.periodic():
            model(torch.ones(2, 4))
    assert read(records)[0]["first_section_s"] == 0.03


def test_a_layer_that_was_slow_in_a_short_job_is_told() -> None:
    entries = (Entry("a", 1, pinned=False), Entry("b", 1, pinned=False))
    measured = _Measured(entries, 8.0, jobs_s=[3.0, 6.0], layers_s=[(1.0, 2.0), (5.0, 1.0)])
    assert measured.longest_s() == [5.0, 2.0]
    slower = _Measured(entries, 8.0, jobs_s=[12.0], layers_s=[(1.0, 2.0), (5.0, 1.0)])
    assert slower.longest_s() == [8.0, 4.0]  # in a worst job, of which no layer was timed
    assert _Measured(entries, 8.0).longest_s() == [None, None]


def test_it_is_written_whatever_rights_the_program_gives_up(records: Path) -> None:
    """Here the file's path leads nowhere any more, as after setuid, chroot or setrlimit."""
    folder = records.parent
    model = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        model(torch.ones(2, 8))
        moved = folder.rename(folder.with_name(f"{folder.name}-moved"))
        for release in tierline.periodic():
            model(torch.full((2, 8), float(release.index % 2)))
    profile, outputs = read(moved / records.name)
    assert len(profile["compute_s"]) == 4
    assert len(outputs) > 4


def test_a_program_goes_on_when_nothing_can_be_written(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        model(torch.ones(2, 8))
        seen = records.read_text()
        os.closerange(700, 1000)
        moved = records.parent.rename(records.parent.with_name(f"{records.parent.name}-moved"))
        assert model(torch.ones(2, 8)).shape == (2, 16)
    assert (moved / records.name).read_text() == seen
    assert "could not write TIERLINE_OBSERVE=" in capsys.readouterr().err


def test_nothing_is_written_into_a_file_that_has_the_number(records: Path) -> None:
    model = nn.Linear(8, 16).eval()
    with torch.inference_mode():
        model(torch.ones(2, 8))
        lines = records.read_text().count("\n")
        own = os.open(records.with_name("own"), os.O_CREAT | os.O_RDWR)
        for number in range(700, 800):  # as after closerange
            if _is_record(number, records):
                os.dup2(own, number)
        model(torch.ones(2, 8))
    assert records.with_name("own").read_bytes() == b""
    assert records.read_text().count("\n") > lines


def _is_record(number: int, records: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), records.stat())
    except OSError:
        return False
