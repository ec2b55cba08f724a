"""`tierline simulate` and `tierline explain`: a set that only layer preemption can admit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tierline_api.schema.quantities import size_for_people
from tierline_cli.errors import EXIT_INFEASIBLE, CommandError
from tierline_cli.main import BAD_INPUT, cli
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning import planner
from tierline_operator.planning.answer import HomesBy, Infeasible
from tierline_operator.planning.homes.placing import Placement, placements
from tierline_operator.planning.request import DeviceCapacity, TaskDemand


def _objects(name: str, period: str, layers: int, mebibytes: int, layer_ms: int) -> list[Any]:
    spec = {"realtime": {"period": period}, "memory": {"budget": "8Gi"}, "device": {"kind": "cpu"}}
    layer = {"bytes": mebibytes * 2**20 // layers, "computeTime": f"{layer_ms}ms"}
    profile = {
        "device": {"kind": "cpu", "product": "x"},
        "layers": [{"name": f"layer {number}", **layer} for number in range(layers)],
        "workspace": "16Mi",
    }
    about = {"apiVersion": "tierline.io/v1alpha1", "metadata": {"name": name, "namespace": "n"}}
    return [
        {**about, "kind": "MemTask", "spec": spec},
        {**about, "kind": "MemProfile", "spec": profile},
    ]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A small urgent model, and one of 2 GiB with jobs that take longer than the other can wait."""
    node = {
        "apiVersion": "tierline.io/v1alpha1",
        "kind": "MemNode",
        "metadata": {"name": "here"},
        "status": {
            "devices": [
                {
                    "name": "cpu",
                    "kind": "cpu",
                    "product": "x",
                    "fastBytes": 2**30,
                    "extentBytes": 32 * 2**20,
                    "preemption": ["LayerPreemptive", "RingKeeping"],
                }
            ],
            "tiers": [{"name": "dram", "capacityBytes": 2**34}],
            "links": [
                {"name": "h2d", "device": "cpu", "bandwidth": 20 * 10**9, "overhead": "10us"}
            ],
        },
    }
    path = tmp_path / "set.yaml"
    objects = [*_objects("urgent", "60ms", 8, 64, 1), *_objects("long", "500ms", 32, 2048, 4)]
    path.write_text(yaml.safe_dump_all([*objects, node]))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_explain_answers_for_each_way_of_scheduling(manifest: Path) -> None:
    result = run("explain", manifest, "--margin", "1", "--json")
    assert result.exit_code == 0
    answers = json.loads(result.output)
    assert answers.pop("chosen") == "ring-keeping"
    assert [answers[way]["admitted"] for way in answers] == [False, True, True]
    refused = answers["non-preemptive"]
    assert (refused["task"], refused["blocker"]) == ("urgent", "long")
    assert refused["shortfall_s"] > 0
    assert answers["ring-keeping"]["preemptible"] == ["long"]
    said = " ".join(run("explain", manifest, "--margin", "1").output.split())
    assert "non-preemptive: not admitted: urgent cannot keep its deadline of 60 ms" in said
    assert "long gives way where a layer ends: 32 MiB stay parked" in said
    assert "MiB of it for workspaces (the largest; jobs have them in turns)" in said
    assert "the agent runs it ring-keeping" in said
    admitted = run("admit", manifest, "--margin", "1")
    assert admitted.exit_code == 0
    assert "scheduling: ring-keeping; long gives way where a layer ends" in admitted.output


def test_a_device_whose_jobs_keep_it_refuses_what_only_preemption_admits(manifest: Path) -> None:
    *objects, node = yaml.safe_load_all(manifest.read_text())
    del node["status"]["devices"][0]["preemption"]
    manifest.write_text(yaml.safe_dump_all([*objects, node]))
    result = run("explain", manifest, "--margin", "1", "--json")
    assert result.exit_code == 3
    answers = json.loads(result.output)
    assert answers.pop("chosen") is None
    assert [answer["admitted"] for answer in answers.values()] == [False, True, True]
    assert run("admit", manifest, "--margin", "1").exit_code == 3


def test_a_set_is_played_by_the_scheduling_that_admission_chose(manifest: Path) -> None:
    result = run("simulate", manifest, "--margin", "1", "--duration", "2", "--json")
    assert result.exit_code == 0
    played = json.loads(result.stdout)
    assert played["scheduling"] == "ring-keeping"
    assert played["preemptions"] > 0
    assert [task["misses"] for task in played["tasks"]] == [0, 0]
    assert 0 < played["link_use"]["dram"] < 1


def test_programs_that_start_are_played(manifest: Path) -> None:
    def longest_s() -> float:
        way = ("--scheduling", "ring-keeping", "--margin", "1", "--duration", "2", "--json")
        result = run("simulate", manifest, *way)
        assert result.exit_code == 0
        played = json.loads(result.stdout)
        assert played["starting"] == starting
        urgent, _ = played["tasks"]
        assert 0 < urgent["response_worst_s"] <= urgent["predicted_worst_s"] + 2e-9
        return float(urgent["response_worst_s"])

    starting: list[str] = []
    alone_s = longest_s()
    objects = list(yaml.safe_load_all(manifest.read_text()))
    objects[3]["spec"]["firstSection"] = "30ms"
    manifest.write_text(yaml.safe_dump_all(objects))
    starting = ["long starts"]
    assert longest_s() > alone_s + 0.02
    said = run("simulate", manifest, "--margin", "1", "--duration", "1").output
    assert "programs that start again every 250 ms: long" in " ".join(said.split())


def test_programs_that_start_are_no_use_of_the_device_by_tasks(manifest: Path) -> None:
    """The plan says how long tasks have the device, and a program that starts is none."""

    def used() -> tuple[float, float]:
        way = ("--margin", "1", "--duration", "2", "--json")
        played = json.loads(run("simulate", manifest, *way).stdout)
        whole_s = played["simulated_s"]
        return played["device_use"] * whole_s, played["device_use_starting"] * whole_s

    alone, none = used()
    assert none == 0
    objects = list(yaml.safe_load_all(manifest.read_text()))
    objects[3]["spec"]["firstSection"] = "15ms"
    manifest.write_text(yaml.safe_dump_all(objects))
    tasks, starting = used()
    assert tasks == pytest.approx(alone)
    assert starting > 0.1
    words = run("simulate", manifest, "--margin", "1", "--duration", "1").output
    assert "for programs that start" in " ".join(words.split())


def test_a_way_of_scheduling_that_changes_nothing_is_refused(manifest: Path) -> None:
    objects = list(yaml.safe_load_all(manifest.read_text()))
    alone = manifest.with_name("alone.yaml")
    alone.write_text(yaml.safe_dump_all([*objects[:2], objects[4]]))
    result = run("simulate", alone, "--scheduling", "ring-keeping")
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "no job of these plans yields" in str(result.exception)
    assert (
        run("simulate", alone, "--scheduling", "non-preemptive", "--duration", "1").exit_code == 0
    )


def test_a_refused_set_is_played_with_the_plans_that_came_nearest(manifest: Path) -> None:
    way = ("--scheduling", "non-preemptive", "--duration", "2", "--margin", "1")
    result = run("simulate", manifest, *way, "--json")
    assert result.exit_code == 3
    played = json.loads(result.stdout)
    assert [task["misses"] > 0 for task in played["tasks"]] == [True, False]


@pytest.mark.slow
def test_an_admitted_set_is_drawn_and_traced(manifest: Path, tmp_path: Path) -> None:
    picture, trace = tmp_path / "gantt.png", tmp_path / "trace.json"
    way = ("--scheduling", "ring-keeping", "--duration", "2", "--margin", "1")
    for releases in ("together", "offset", "sporadic", "adaptive"):
        result = run("simulate", manifest, *way, "--releases", releases, "--json")
        played = json.loads(result.stdout)
        assert result.exit_code == 0
        for task in played["tasks"]:
            assert task["misses"] == 0
            assert task["response_worst_s"] <= task["predicted_worst_s"] + 2e-9
    result = run(
        "simulate", manifest, *way, "--png", picture, "--trace", trace, "--shortest", "0.5"
    )
    assert "preemptions" in result.output
    assert "link dram copies" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {
        "device",
        "link dram",
    }
    assert {event["name"] for event in events if event["ph"] == "X"} >= {"urgent", "long"}


def _with_objects(manifest: Path, *objects: dict[str, str]) -> Path:
    """The same set, of which the long task wishes that."""
    given = list(yaml.safe_load_all(manifest.read_text()))
    long = next(one for one in given if one["metadata"]["name"] == "long")
    long["spec"]["swap"] = {"tiers": ["dram", "nvme"], "objects": list(objects)}
    status = given[-1]["status"]
    if all(tier["name"] != "nvme" for tier in status["tiers"]):
        status["tiers"].append({"name": "nvme", "capacityBytes": 2**34})
        link = {"name": "nvme-read", "device": "cpu", "bandwidth": 3 * 10**9, "overhead": "10us"}
        status["links"].append(link)
    manifest.write_text(yaml.safe_dump_all(given))
    return manifest


def test_explain_lists_where_objects_lie_and_why(manifest: Path) -> None:
    wished = _with_objects(
        manifest,
        {"name": "layer 3", "policy": "Stream", "tier": "nvme"},
        {"name": "layer 2?", "policy": "Resident"},
    )
    said = " ".join(run("explain", wished, "--margin", "1").output.split())
    assert "long, 'layer 3': 64Mi in nvme (as it wishes), all of it streamed in each job" in said
    assert "long, 'layer 2?': 640Mi in dram (the first of its tiers with room), all of it " in said
    assert "long, 'the rest'" not in said
    assert "long, the rest: 1344Mi in dram (the first of its tiers with room), " in said
    answer = json.loads(run("explain", wished, "--margin", "1", "--json").output)["ring-keeping"]
    first = next(one for one in answer["objects"] if one["object"] == "layer 3")
    assert (first["homes"], first["resident_bytes"]) == ({"nvme": 64 << 20}, 0)
    plans = {task["name"]: task["plan"] for task in answer["tasks"]}
    assert [run["tier"] for run in plans["long"]["homes"]] == ["dram", "nvme", "dram"]
    assert set(range(40, 60)) <= set(plans["long"]["residentExtents"])


def test_explain_names_the_object_that_cannot_be_had(manifest: Path) -> None:
    wished = _with_objects(manifest, {"name": "layer *", "policy": "Resident"})
    result = run("admit", wished, "--margin", "1", "--json")
    assert result.exit_code == 3
    assert json.loads(result.output)["object"] == {"task": "long", "name": "layer *"}
    said = run("explain", wished, "--margin", "1").output
    assert said.count("the object 'layer *' of long is to stay resident") == len(Scheduling)
    unknown = run("explain", _with_objects(manifest, {"name": "layr 3", "tier": "dram"}))
    assert isinstance(unknown.exception, BAD_INPUT)
    assert "object 'layr 3' matches no layer; did you mean layer 3 or " in str(unknown.exception)


def test_more_releases_than_anybody_waits_for_are_refused_at_once(manifest: Path) -> None:
    asked = CliRunner().invoke(cli, ["simulate", str(manifest), "--duration", "36000"])
    assert isinstance(asked.exception, CommandError)
    assert str(asked.exception) == (
        "--duration 36000 has 672,000 releases, and at most 100,000 are played; "
        "give at most 5.36e+03"
    )


def _with_dram_for_one(manifest: Path) -> Path:
    """Two streamed models of 1 GiB, of which the second one is the urgent one."""
    node = list(yaml.safe_load_all(manifest.read_text()))[-1]
    of_node = node["status"]
    of_node["devices"][0]["fastBytes"], of_node["tiers"][0]["capacityBytes"] = 2**28, 5 * 2**28
    of_node["tiers"].append({"name": "nvme", "capacityBytes": 2**34})
    of_node["links"].append(
        {"name": "nvme-read", "device": "cpu", "bandwidth": 2 * 10**9, "overhead": "10us"}
    )
    objects = [*_objects("patient", "4s", 32, 1024, 2), *_objects("hasty", "300ms", 32, 1024, 2)]
    for task in objects[::2]:
        task["spec"]["swap"] = {"tiers": ["dram", "nvme"], "policy": "Stream"}
    manifest.write_text(yaml.safe_dump_all([*objects, node]))
    return manifest


def test_a_scarce_tier_goes_where_a_deadline_needs_it_and_explain_says_so(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scarce = _with_dram_for_one(manifest)
    assert run("admit", scarce, "--margin", "1").exit_code == 0
    said = " ".join(run("explain", scarce, "--margin", "1").output.split())
    why = "scarce tiers go first to what deadlines need, then to whom they gain most"
    assert said.count(f"({why}), all of it streamed in each job") == 4
    assert f"patient, its weights: {_nvme_of('patient', scarce)} in nvme and " in said

    with monkeypatch.context() as before:
        before.setattr(planner, "placements", _in_order)
        refused = run("admit", scarce, "--margin", "1", "--json")
    assert refused.exit_code == EXIT_INFEASIBLE
    assert json.loads(refused.output)["reason"] in {"Overload", "DeadlineMissed"}


def _nvme_of(task: str, manifest: Path) -> str:
    answer = json.loads(run("explain", manifest, "--margin", "1", "--json").output)
    lies = [one for one in answer[answer["chosen"]]["objects"] if one["task"] == task]
    assert [one["homes_by"] for one in lies] == ["gain"]
    return size_for_people(lies[0]["homes"]["nvme"])


def _in_order(
    tasks: Sequence[TaskDemand], device: DeviceCapacity
) -> tuple[Placement, ...] | Infeasible:
    """Filled in the order in which tasks are given, as the one placement that there is."""
    found = placements(tasks, device)
    if isinstance(found, Infeasible):
        return found
    return tuple(one for one in found if one.by is HomesBy.ORDER)
