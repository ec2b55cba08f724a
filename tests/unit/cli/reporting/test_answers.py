"""Answers of the planning commands: true sentences, whatever the files say, and no traceback.

The bad inputs are generated: of one good question, values of any field are replaced by others that
the API takes, or by nonsense.
"""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierline_cli import errors
from tierline_cli.main import BAD_INPUT, cli

_API = {"apiVersion": "tierline.io/v1alpha1"}
TASK: dict[str, Any] = {
    **_API,
    "kind": "MemTask",
    "metadata": {"name": "a"},
    "spec": {
        "realtime": {"period": "100ms"},
        "memory": {"budget": "8Gi"},
        "swap": {"tiers": ["dram"]},
        "device": {"kind": "cpu"},
    },
}
PROFILE: dict[str, Any] = {
    **_API,
    "kind": "MemProfile",
    "metadata": {"name": "a"},
    "spec": {
        "device": {"kind": "cpu", "product": "x"},
        "layers": [{"name": str(n), "bytes": 16 << 20, "computeTime": "2ms"} for n in range(4)],
        "workspace": "1Mi",
    },
}
NODE: dict[str, Any] = {
    **_API,
    "kind": "MemNode",
    "metadata": {"name": "here"},
    "status": {
        "devices": [
            {
                "name": "cpu",
                "kind": "cpu",
                "product": "x",
                "extentBytes": 4 << 20,
                "fastBytes": 256 << 20,
            }
        ],
        "tiers": [{"name": "dram", "capacityBytes": 1 << 34}],
        "links": [{"name": "h2d", "device": "cpu", "bandwidth": 10**10, "overhead": "10us"}],
    },
}
PLANNING = ("admit", "explain", "plan", "simulate")


def changed(of: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value at a path such as status.links.0.bandwidth."""
    made = copy.deepcopy(of)
    at: Any = made
    *way, last = path.split(".")
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[int(last) if isinstance(at, list) else last] = value
    return made


def asked(folder: Path, *documents: dict[str, Any], command: str = "admit") -> int:
    """The exit code of a command about these documents."""
    path = folder / "question.yaml"
    path.write_text("\n---\n".join(json.dumps(one) for one in documents))
    more = ["--duration", "0.2"] if command == "simulate" else []
    with pytest.raises(SystemExit) as ended:
        errors.run(cli, "tierline", [command, str(path), *more], BAD_INPUT)
    code = ended.value.code
    return code if isinstance(code, int) else 0


def said(
    folder: Path, capsys: pytest.CaptureFixture[str], *documents: dict[str, Any]
) -> tuple[int, str]:
    code = asked(folder, *documents)
    output = capsys.readouterr()
    return code, " ".join((output.out + output.err).split())


def test_the_good_question_is_admitted(tmp_path: Path) -> None:
    for command in PLANNING:
        assert asked(tmp_path, TASK, PROFILE, NODE, command=command) == 0


def test_memory_that_is_reserved_beyond_all_weights_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keen = changed(TASK, "spec.memory.reserved", "4Gi")
    code, words = said(tmp_path, capsys, keen, PROFILE, NODE)
    assert code == 3
    assert "4096 MiB of fast memory and there are 256 MiB: 3840 MiB are missing" in words
    fits = changed(TASK, "spec.memory.reserved", "128Mi")
    assert said(tmp_path, capsys, fits, PROFILE, NODE)[0] == 0


def test_a_profile_of_another_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(PROFILE, "spec.device.product", "y")
    code, words = said(tmp_path, capsys, TASK, other, NODE)
    assert code == 2
    assert "MemProfile/a was measured on y and this device is x; measure it there" in words
    stated = changed(TASK, "spec.realtime.executionTime", "8ms")
    assert said(tmp_path, capsys, stated, other, NODE)[0] == 0


def test_a_stated_worst_below_the_measured_mean_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = changed(TASK, "spec.realtime.executionTime", "1ms")
    mean = changed(PROFILE, "spec.layers.0.meanComputeTime", "1001us")
    code, words = said(tmp_path, capsys, states, mean, NODE)
    assert code == 2
    assert (
        "MemTask/a: spec.realtime.executionTime 1ms is to be the worst of a job, and its mean in "
        "MemProfile/a, measured on this product, is 1.001ms; write at least that" in words
    )
    for command in PLANNING:
        assert asked(tmp_path, states, mean, NODE, command=command) == 2
    equal = changed(PROFILE, "spec.layers.0.meanComputeTime", "1ms")
    elsewhere = changed(mean, "spec.device.product", "y")  # a time of its own is for that
    for good in (equal, elsewhere):
        assert asked(tmp_path, states, good, NODE) == 0


def test_a_stated_time_of_layers_that_take_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = changed(TASK, "spec.realtime.executionTime", "1ms")
    none = PROFILE
    for layer in range(4):
        none = changed(none, f"spec.layers.{layer}.computeTime", "0s")
    code, words = said(tmp_path, capsys, states, none, NODE)
    assert code == 2
    assert "executionTime 1ms is shared among the layers by their computeTime, and all of" in words


def test_memory_that_others_have_more_than_all_of_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = changed(NODE, "status.devices.0.usedBytes", 328 << 20)
    code, words = said(tmp_path, capsys, TASK, PROFILE, full)
    assert code == 3
    assert "and none is left:" in words
    assert "-72" not in words


@pytest.mark.parametrize("links", [[], [{**NODE["status"]["links"][0], "device": "gpu-0"}]])
def test_a_tier_without_a_measured_link_is_said_to_be_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], links: list[dict[str, Any]]
) -> None:
    unmeasured = changed(NODE, "status.links", links)
    code, words = said(tmp_path, capsys, TASK, PROFILE, unmeasured)
    assert code == 3
    assert "the link from dram to this device was not measured" in words


@pytest.mark.parametrize("bandwidth", [1, 99_999, 10**15, 2**60])
def test_a_bandwidth_that_no_link_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bandwidth: int
) -> None:
    odd = changed(NODE, "status.links.0.bandwidth", bandwidth)
    code, words = said(tmp_path, capsys, TASK, PROFILE, odd)
    assert code == 2
    assert f"the link h2d of cpu moves {bandwidth} bytes a second, which no link does" in words


@pytest.mark.parametrize("deadline", [None, "9ms"])
def test_a_remedy_is_enough_as_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deadline: str | None
) -> None:
    """A deadline that nobody wrote moves with its period; one that was written stays."""
    short = changed(TASK, "spec.realtime.period", "9ms" if deadline is None else "30ms")
    if deadline is not None:
        short = changed(short, "spec.realtime.deadline", deadline)
    code, words = said(tmp_path, capsys, short, PROFILE, NODE)
    assert code == 3
    what, value = words.partition("; a ")[2].split(" for a would")[0].split(" of ")
    assert what == ("period" if deadline is None else "deadline")
    mended = changed(short, f"spec.realtime.{what}", value.replace(" ", ""))
    assert said(tmp_path, capsys, mended, PROFILE, NODE)[0] == 0


_SIZES = st.sampled_from(["1", "4k", "64Ki", "1Mi", "100Mi", "3Gi", "1Ti", "512Pi", "1Ei"])
_TIMES = st.sampled_from(["1us", "7us", "1ms", "99ms", "3.3s", "7m", "24h"])
_COUNTS = st.sampled_from([1, 2, 65536, 1 << 20, 1 << 26, 1 << 40, 1 << 60])
_NONSENSE: st.SearchStrategy[Any] = st.sampled_from(
    [-1, 0, "", "x", "-5", "1e9", "nan", None, [], {}, True, 1.5, "0s"]
)
_FIELDS: dict[str, tuple[int, str, st.SearchStrategy[Any]]] = {
    name: (which, path, values)
    for which, path, values in (
        (0, "spec.realtime.period", _TIMES),
        (0, "spec.realtime.deadline", _TIMES),
        (0, "spec.realtime.executionTime", _TIMES),
        (0, "spec.realtime.criticality", st.sampled_from(["Hard", "Soft", "BestEffort"])),
        (0, "spec.memory.budget", _SIZES),
        (0, "spec.memory.reserved", _SIZES),
        (0, "spec.memory.weights", _SIZES),
        (0, "spec.memory.workspace", _SIZES),
        (0, "spec.swap.policy", st.sampled_from(["Auto", "Resident", "Stream", "Swap"])),
        (0, "spec.swap.workspace", st.sampled_from(["Discard", "Preserve"])),
        (0, "spec.swap.onBudgetExceeded", st.sampled_from(["Fail", "Spill"])),
        (0, "spec.swap.tiers", st.sampled_from([["dram"], ["pmem", "nvme"], ["nvme", "dram"]])),
        (0, "spec.device.kind", st.sampled_from(["cpu", "cuda"])),
        (1, "spec.workspace", _SIZES),
        (1, "spec.layers.0.bytes", _COUNTS),
        (1, "spec.layers.1.computeTime", _TIMES),
        (1, "spec.layers.2.meanComputeTime", _TIMES),
        (1, "spec.layers.2.pinned", st.booleans()),
        (1, "spec.layers.1.arena", st.integers(0, 15)),
        (1, "spec.layers.3.arena", st.integers(0, 15)),
        (1, "spec.device.product", st.sampled_from(["x", "y"])),
        (2, "status.devices.0.fastBytes", _COUNTS),
        (2, "status.devices.0.usedBytes", _COUNTS),
        (2, "status.devices.0.extentBytes", st.sampled_from([1 << n for n in range(16, 31)])),
        (2, "status.devices.0.workspacesOverlay", st.booleans()),
        (2, "status.tiers.0.capacityBytes", _COUNTS),
        (2, "status.tiers.0.name", st.sampled_from(["dram", "pmem"])),
        (2, "status.links.0.bandwidth", _COUNTS),
        (2, "status.links.0.overhead", _TIMES),
        (2, "status.links.0.devices", st.integers(1, 64)),
    )
    for name in (path,)
}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(PLANNING),
    fields=st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, max_size=3, unique=True),
    data=st.data(),
)
def test_whatever_the_files_say_the_answer_is_a_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    fields: list[str],
    data: st.DataObject,
) -> None:
    documents = [TASK, PROFILE, NODE]
    for field in fields:
        which, path, values = _FIELDS[field]
        value = data.draw(st.one_of(values, values, values, _NONSENSE), label=field)
        documents[which] = changed(documents[which], path, value)

    code = asked(tmp_path, *documents, command=command)

    output = capsys.readouterr()
    assert code in {0, 2, 3}, output.err
    assert "Traceback" not in output.err
    assert "nan" not in output.out.split()
    assert not re.search(r"-\d[\d.]* MiB", output.out)
    if code == 2:
        assert len(output.err.strip().splitlines()) == 1


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([8, 12, 20, 40, 100]),
            st.sampled_from([None, 0.3, 0.6, 0.9]),
            st.sampled_from([1, 2, 5, 9]),
            st.integers(1, 6),
            st.sampled_from([None, 1, 4, 30]),
            st.sampled_from([None, 1, 3]),
            st.sampled_from([1, 1, 3]),
        ),
        min_size=1,
        max_size=4,
    ),
    fast_mib=st.sampled_from([40, 64, 96, 160, 512]),
    yields=st.booleans(),
)
def test_a_remedy_that_is_offered_is_admitted_when_taken(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: list[tuple[int, float | None, int, int, int | None, int | None, int]],
    fast_mib: int,
    *,
    yields: bool,
) -> None:
    """Tasks of (period ms, deadline as a share of it, ms and 16 MiB a layer, layers, how many ms a
    first job keeps the device, how many pass before a job asks for it, and jobs a release)."""
    tasks, profiles = {}, []
    for number, row in enumerate(rows):
        period_ms, share, layer_ms, layers, first_ms, late_ms, calls = row
        one = changed(TASK, "metadata.name", f"t{number}")
        one = changed(one, "spec.realtime.period", f"{period_ms}ms")
        if share is not None:
            one = changed(one, "spec.realtime.deadline", f"{int(period_ms * share * 1000)}us")
        tasks[f"t{number}"] = one
        made = [{**PROFILE["spec"]["layers"][0], "computeTime": f"{layer_ms}ms"}] * layers
        own = changed(PROFILE, "metadata.name", f"t{number}")
        if first_ms is not None:
            own = changed(own, "spec.firstSection", f"{first_ms}ms")
            own = changed(own, "spec.firstExtra", f"{2 * first_ms}ms")
        if late_ms is not None:
            own = changed(own, "spec.jitter", f"{late_ms}ms")
        if calls > 1:
            own = changed(own, "spec.calls", [calls])
            own = changed(own, "spec.between", "1ms")
        profiles.append(changed(own, "spec.layers", made))
    node = changed(NODE, "status.devices.0.fastBytes", fast_mib << 20)
    if yields:
        node = changed(node, "status.devices.0.preemption", ["LayerPreemptive", "RingKeeping"])

    code, words = said(tmp_path, capsys, *tasks.values(), *profiles, node)

    if code != 3:
        assert code == 0, words
        return
    if told := re.search(r"a (deadline|period) of ([\d.]+) (ms|s) for (t\d) would be", words):
        what, value, unit, name = told.groups()
        tasks[name] = changed(tasks[name], f"spec.realtime.{what}", value + unit)
    elif told := re.search(r"the others would hold without (t\d)", words):
        del tasks[told.group(1)]
    elif told := re.search(r"; ([\d.]+) MiB more fast memory would be enough", words):
        more = math.ceil(float(told.group(1)) * 2**20)
        node = changed(node, "status.devices.0.fastBytes", (fast_mib << 20) + more)
    elif "no single deadline or period" in words:
        assert not a_coarse_search_finds_one(tasks, [*profiles, node], tmp_path, capsys), words
        return
    else:
        assert "enough" not in words
        return
    code, after = said(tmp_path, capsys, *tasks.values(), *profiles, node)
    assert code == 0, f"{words} -- {after}"


def a_coarse_search_finds_one(
    tasks: dict[str, Any],
    others: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> bool:
    """Whether one period that is 2, 4 or 8 times as long, or one deadline as long as the period,
    lets the tasks be admitted."""
    for name, task in tasks.items():
        period_ms = int(task["spec"]["realtime"]["period"].removesuffix("ms"))
        ways = [("period", f"{period_ms * times}ms") for times in (2, 4, 8)]
        for what, value in [*ways, ("deadline", f"{period_ms}ms")]:
            longer = {**tasks, name: changed(task, f"spec.realtime.{what}", value)}
            if said(tmp_path, capsys, *longer.values(), *others)[0] == 0:
                return True
    return False
