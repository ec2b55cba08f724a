"""The operator on a real API server: how fast tasks are placed, and what it costs to stand still.

    PYTHONPATH=cluster python -m tests.bench.operator [--nodes 1000] [--tasks 1000] [--pods 5]

MemNodes are objects without agents, pods are gated objects without a kubelet, and each has its
claim as kube-controller-manager would make it. First everything is created, then an operator is
started on it: the time until every task is admitted in its status, and every pod has its device, is
the time of its work. With `--pods 0` it is that of the verdicts alone. Then nothing happens for a
while, and every request of the operator in that while is counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families
from tests.bench.machine import describe, print_head
from tests.integration.conftest import install_crds
from tests.integration.operator.running import (
    Nursery,
    Operator,
    User,
    conditions,
    placed,
    prepare,
    until,
)
from tests.unit.placement.fleets import node, profile, task

from tierline_cluster.api import Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import free_port
from tierline_cluster.versions import KUBERNETES_BUILD


@contextmanager
def api_server(folder: Path) -> Iterator[ControlPlane]:
    """A fresh API server with what the chart installs."""
    plane = ControlPlane(built(KUBERNETES_BUILD), folder)
    try:
        plane.start()
        install_crds(plane)
        prepare(plane)
        yield plane
    finally:
        plane.stop()


def create(user: User, nodes: int, tasks: int, pods: int) -> None:
    """Everything that there is before the operator comes."""
    user.apply(profile("m", compute_ms=5))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: user.node(node(f"node-{n:04}")), range(nodes)))
        list(pool.map(lambda n: user.apply(task(f"t{n:04}", of="m")), range(tasks)))
        both = [(f"t{t:04}", f"t{t:04}-{p}") for t in range(tasks) for p in range(pods)]
        list(pool.map(lambda names: opted_in(user, *names), both))


def opted_in(user: User, of: str, name: str) -> None:
    """A pod with the claim that the controller would make for it."""
    pod = user.pod(name, of)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    user.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": f"{name}-claim",
                "namespace": user.namespace,
                "labels": {"tierline.io/task": of},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"devices": {"requests": [request]}},
        }
    )


def is_admitted(task: Manifest) -> bool:
    """Whether a task's status says that it is admitted."""
    return bool(conditions(task).get("Admitted", {}).get("status") == "True")


def requests_of(port: int) -> float:
    """Requests that the operator has made of its own accord (watches are not among them)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tierline_operator_api_requests_total"
    )


def watches_of(plane: ControlPlane) -> float:
    """Watches that anyone has opened at the API server so far."""
    text = plane.api.request("GET", "/metrics")
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "apiserver_request_total" and sample.labels.get("verb") == "WATCH"
    )


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run."""
    with api_server(folder / "plane") as plane:
        user = User(plane, plane.namespace())
        begun = time.monotonic()
        create(user, options.nodes, options.tasks, options.pods)
        print(f"created everything in {time.monotonic() - begun:.0f} s", flush=True)
        port = free_port()
        nursery = Nursery()
        given = {"METRICS_PORT": str(port), "RESYNC_S": "600"}
        operator = Operator(plane, nursery, folder, "bench", settings=given)
        usual = {"LEASE_DURATION_S": "15", "RENEW_DEADLINE_S": "10", "RETRY_PERIOD_S": "2"}
        operator.settings |= usual
        count = options.tasks * options.pods
        try:
            begun = time.monotonic()
            operator.start()
            until("it leads", operator.leads, 120)
            led = time.monotonic()

            def all_admitted() -> bool:
                time.sleep(1)
                found = plane.api.list("tierline.io/v1alpha1", "MemTask", user.namespace)
                return all(is_admitted(one) for one in found)

            def all_out() -> bool:
                time.sleep(1)
                return all(placed(claim) for claim in user.claims())

            until("every task is admitted", all_admitted, 3600)
            admitted_s = time.monotonic() - led
            until("every pod has its device", all_out, 3600)
            busy_s = time.monotonic() - led
            time.sleep(10)
            worked = requests_of(port)
            watched = watches_of(plane)
            time.sleep(options.idle)
            idle = requests_of(port) - worked
            idle_watches = watches_of(plane) - watched
            assert operator.pid is not None
            process = psutil.Process(operator.pid)
            memory = process.memory_info().rss
            processor_s = sum(process.cpu_times()[:2])
        finally:
            operator.stop()
            nursery.close()
    return {
        "nodes": options.nodes,
        "tasks": options.tasks,
        "pods": count,
        "start_s": round(led - begun, 1),
        "admitted_s": round(admitted_s, 1),
        "tasks_per_s": round(options.tasks / admitted_s, 1),
        "placed_s": round(busy_s, 1),
        "pods_per_s": round(count / busy_s, 1),
        "requests_per_task": round(worked / options.tasks, 2),
        "processor_s": round(processor_s, 1),
        "idle_requests_per_minute": round(idle * 60 / options.idle, 1),
        "idle_watches_per_minute": round(idle_watches * 60 / options.idle, 1),
        "memory_mib": round(memory / 2**20),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5, help="pods of each task")
    parser.add_argument("--idle", type=float, default=60, help="seconds without any change")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    about = describe()
    print_head(about)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<26}{value:>10,}")
    if options.json:
        options.json.write_text(json.dumps(about | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
