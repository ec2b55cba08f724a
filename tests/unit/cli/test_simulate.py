"""`tierline simulate` and `tierline explain`: a set that only layer preemption can admit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tierline_cli.main import cli


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
    """A small urgent model, and one of 2 GiB whose jobs take longer than the other can wait."""
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
