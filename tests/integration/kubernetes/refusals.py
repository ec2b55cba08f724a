"""What users write wrong, and what `kubectl apply` says of it: one table, and the page made of it.

    PYTHONPATH=cluster python -m tests.integration.kubernetes.refusals --write | --check

CASES are the mistakes of all levels (tests/unit/api, tests/unit/pods) that the API server refuses,
and those that only it can see. refusals.yaml beside this file records the exact message of each, as
a real API server gave it to kubectl; a test holds every message against the server, and tells the
new one if it differs. docs/refusals.md is generated from both. Wrong statuses are not here: no user
writes them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from tests.unit.api.api_objects import CLUSTER, REMOVED, edited, profile, task
from tests.unit.api.api_objects import WRONG as WRONG_OBJECTS
from tests.unit.pods.pod_cases import TASK, Manifest, container, inline, pod, preload, templated
from tests.unit.pods.pod_cases import WRONG as WRONG_PODS

REPOSITORY: Final = Path(__file__).parents[3]
RECORD: Final = Path(__file__).with_suffix(".yaml")
PAGE: Final = REPOSITORY / "docs" / "refusals.md"
_COMMAND: Final = "PYTHONPATH=cluster python -m tests.integration.kubernetes.refusals --write"


class Case(NamedTuple):
    """One mistake."""

    section: str
    mistake: str
    manifest: Manifest
    right: tuple[Manifest, ...]
    """Manifests without mistake, to show what is wrong by the least difference to one of them."""
    before: Manifest | None = None
    """What is there already when the manifest is applied."""


def quota(**edits: Any) -> Manifest:
    """Return a good MemQuota with fields edited."""
    good = {
        "apiVersion": "tierline.io/v1alpha1",
        "kind": "MemQuota",
        "metadata": {"name": "all"},
        "spec": {"fastMemory": "8Gi", "tiers": [{"tier": "dram", "capacity": "64Gi"}]},
    }
    return edited(good, edits)


def workload(kind: str, of: Manifest) -> Manifest:
    """Return a workload of any kind that makes pods like `of`."""
    if kind in {"Deployment", "CronJob"}:
        return templated(kind, of)
    made = templated("Deployment", of)
    made |= {"kind": kind}
    if kind == "StatefulSet":
        made["spec"]["serviceName"] = "camera"
    if kind == "Job":
        made |= {"apiVersion": "batch/v1"}
        del made["spec"]["selector"]
        made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    if kind == "ReplicationController":
        made |= {"apiVersion": "v1"}
        made["spec"]["selector"] = made["spec"]["selector"]["matchLabels"]
    return made


_RIGHT: Final = {"MemTask": task(), "MemProfile": profile(), "MemQuota": quota()}
_RIGHT_PODS: Final = (
    pod(),
    pod(annotations=inline()),
    pod(annotations={}),
    pod(container(volumeMounts=[{"name": "v", "mountPath": "/data"}]), volumes=[]),
)


def _of_objects() -> Iterator[Case]:
    for wrong in WRONG_OBJECTS:
        if wrong.refused_by == CLUSTER and "status" not in wrong.object:
            kind = wrong.object["kind"]
            yield Case(kind, wrong.id, wrong.object, (_RIGHT[kind],))
    more = {
        "an execution time longer than the period, without a deadline": task(
            spec__realtime={"period": "1s", "executionTime": "2s"}
        ),
        "a reserve in GB": task(spec__memory__reserved="1GB"),
        "a label that is no label": task(metadata__labels={"a b": "c"}),
    }
    for mistake, manifest in more.items():
        yield Case("MemTask", mistake, manifest, (task(),))
    more = {
        "a workspace in MB": profile(spec__workspace="12MB"),
        "a name with a point": profile(metadata__name="camera.front"),
        "no device": profile(spec__device=REMOVED),
        "a layer without size": profile(spec__layers__0__bytes=REMOVED),
        "a misspelt field of a layer": profile(spec__layers__0__compute="1ms"),
    }
    for mistake, manifest in more.items():
        yield Case("MemProfile", mistake, manifest, (profile(),))
    more = {
        "fast memory in GB": quota(spec__fastMemory="8GB"),
        "negative fast memory": quota(spec__fastMemory=-1),
        "a tier twice": quota(spec__tiers=[{"tier": "dram", "capacity": "1Gi"}] * 2),
        "a tier nobody knows": quota(spec__tiers__0__tier="ram"),
        "a tier without capacity": quota(spec__tiers=[{"tier": "dram"}]),
        "more of the links than there is": quota(spec__linkPercent=101),
        "a share in words": quota(spec__linkPercent="half"),
        "a misspelt field": quota(spec__linkPercentage=50),
        "a name with a point": quota(metadata__name="for.all"),
        "no spec": quota(spec=REMOVED),
    }
    for mistake, manifest in more.items():
        yield Case("MemQuota", mistake, manifest, (quota(),))


def _of_pods() -> Iterator[Case]:
    for mistake, wrong in WRONG_PODS.items():
        yield Case("Pod", mistake, wrong.pod, _RIGHT_PODS)
    there = edited(pod(annotations={}), {"metadata__name": "started"})
    late = edited(there, {"metadata__annotations": {TASK: "camera"}})
    yield Case("Pod", "opting in after the pod was made", late, (there,), before=there)


def _of_workloads() -> Iterator[Case]:
    later = pod(annotations=inline(deadline="51ms"))
    elsewhere = pod(container(env=[preload(None)]))
    for kind, mistake, wrong in (
        ("Deployment", "a deadline after the period", later),
        ("Deployment", "LD_PRELOAD from elsewhere", elsewhere),
        ("StatefulSet", "a container nobody has", WRONG_PODS["a container nobody has"].pod),
        ("DaemonSet", "a node by name", WRONG_PODS["a node by name"].pod),
        ("ReplicaSet", "a task with capitals", WRONG_PODS["a task with capitals"].pod),
        ("ReplicationController", "a budget in GB", WRONG_PODS["a budget in GB"].pod),
        ("Job", "a description without period", WRONG_PODS["a description without period"].pod),
        ("CronJob", "a deadline after the period", later),
        ("CronJob", "an annotation nobody knows", WRONG_PODS["an annotation nobody knows"].pod),
    ):
        right = tuple(workload(kind, good) for good in _RIGHT_PODS)
        yield Case("Workloads", f"{kind}: {mistake}", workload(kind, wrong), right)


CASES: Final = (*_of_objects(), *_of_pods(), *_of_workloads())


def recorded() -> dict[str, dict[str, str]]:
    """Return the message of each mistake, by section."""
    found: dict[str, dict[str, str]] = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return found


def same(message: str, other: str) -> bool:
    """Whether two messages say the same: the API server lists several causes in any order."""
    return _parts(message) == _parts(other)


def _parts(message: str) -> list[str]:
    return sorted(message.replace("[", "").replace("]", "").split(", "))


def differences(right: object, wrong: object, path: str = "") -> list[str]:
    """Return what makes a right manifest the wrong one, a field a line."""
    if isinstance(right, Mapping) and isinstance(wrong, Mapping):
        lines = []
        for key in (*wrong, *(key for key in right if key not in wrong)):
            below = key if "/" in key else f"{path}.{key}".removeprefix(".")
            if key not in wrong:
                lines.append(f"{below}: is missing")
            else:
                lines += differences(right.get(key, REMOVED), wrong[key], below)
        return lines
    if isinstance(right, list) and isinstance(wrong, list) and len(right) == len(wrong):
        pairs = enumerate(zip(right, wrong, strict=True))
        return [
            line for n, (good, bad) in pairs for line in differences(good, bad, f"{path}[{n}]")
        ]
    if isinstance(wrong, Mapping) and any("/" in key for key in wrong):
        return differences({}, wrong, path)
    return [] if right == wrong else [f"{path}: {json.dumps(wrong, ensure_ascii=False)}"]


def page() -> str:
    """Return docs/refusals.md."""
    said = recorded()
    lines = [
        "# What is refused, and how",
        "",
        f"<!-- Generated by `{_COMMAND}`. -->",
        "",
        f"{len(CASES)} mistakes, and what `kubectl apply` says of each, recorded from a real API"
        " server. Nothing of Tierline runs when",
        "a manifest is refused: the rules are in the CRDs and the admission policies that the chart"
        " installs.",
        "",
        'In front kubectl writes `Error from server (Invalid): error when creating "FILE":`, or'
        " (BadRequest) where a field does not",
        'exist. Of a single wrong MemTask it says shorter `The MemTask "camera" is invalid:`.'
        " `<nil>: Invalid value: null: some",
        "validation rules were not checked` goes away with the mistake before it. A pod of a"
        " workload is refused with its workload.",
    ]
    for section, cases in groupby(CASES, lambda case: case.section):
        lines += ["", f"## {section}", "", "| mistake | written | answer |", "|---|---|---|"]
        for case in cases:
            shown = min((differences(right, case.manifest) for right in case.right), key=_length)
            written = "<br>".join(_code(line) for line in shown)
            answer = _code(said[section][case.mistake])
            lines.append(f"| {case.mistake} | {written} | {answer} |")
    return "\n".join(lines) + "\n"


def _length(lines: list[str]) -> int:
    return sum(map(len, lines))


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def main() -> int:
    """Write or check the page; returns 1 when it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="ask a server, write record and page")
    action.add_argument("--check", action="store_true", help="fail if the page is out of date")
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is out of date; run {_COMMAND}", file=sys.stderr)
        return 1
    from tests.integration.kubernetes.refused import record  # noqa: PLC0415 - needs a cluster

    record()
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
