"""The operator on a real API server: how fast it rules on tasks, and what standing still costs.

    PYTHONPATH=cluster python -m tests.bench.operator [--nodes 1000] [--tasks 10000] [--paced 3000]

MemNodes are objects without agents. First a backlog of MemTasks is created, then an operator is
started on it: from the moment when it leads until the first status of every task is a verdict, with
the processor time of each process meanwhile. With `--pods` each task has gated pods, objects
without a kubelet with claims as kube-controller-manager would make them, and the time until all
have their device is told, too. Then a process of its own (verdicts.py) creates tasks at a fixed
rate and watches for their verdicts. Then nothing happens for a while, and every request of the
operator in that while is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.bench.machine import describe, print_head
from tests.bench.verdicts import is_verdict
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

from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import free_port
from tierline_cluster.versions import KUBERNETES_BUILD


@contextmanager
def api_server(options: argparse.Namespace, folder: Path) -> Iterator[ControlPlane]:
    """A fresh API server with what the chart installs."""
    plane = ControlPlane(options.programs or built(KUBERNETES_BUILD), folder)
    rights = yaml.safe_load_all(options.rights.read_text()) if options.rights else None
    try:
        plane.start()
        install_crds(plane)
        prepare(plane, rights)
        yield plane
    finally:
        plane.stop()


def create_pods(user: User, tasks: int, pods: int) -> None:
    """Pods of the first tasks, each with its claim."""
    with ThreadPoolExecutor(8) as pool:
        both = [(f"t{t:06}", f"t{t:06}-{p}") for t in range(tasks) for p in range(pods)]
        list(pool.map(lambda names: opted_in(user, *names), both))


def others(plane: ControlPlane, user: User, **options: float) -> dict[str, float]:
    """What `tests.bench.verdicts` prints, run with these options."""
    words = [word for name, value in options.items() for word in (f"--{name}", f"{value:g}")]
    command = [sys.executable, "-m", "tests.bench.verdicts", "--namespace", user.namespace, *words]
    done = subprocess.run(
        command,
        env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


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


def metric(port: int, name: str, **labels: str) -> float:
    """The sum of the operator's series of that name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def requests_of(port: int) -> float:
    """Requests that the operator has made of its own accord (watches are not among them)."""
    return metric(port, "tierline_operator_api_requests_total")


def seconds_of(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Processor time of each process so far, with that of its threads."""
    return {name: sum(one.cpu_times()[:2]) for name, one in processes.items()}


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
    with api_server(options, folder / "plane") as plane:
        user = User(plane, plane.namespace())
        made = others(plane, user, nodes=options.nodes, tasks=options.tasks)
        create_pods(user, options.tasks, options.pods)
        print(f"created everything; the tasks in {made['created_s']} s", flush=True)
        port = free_port()
        nursery = Nursery()
        given = {"METRICS_PORT": str(port)}
        operator = Operator(plane, nursery, folder, "bench", settings=given)
        usual = {"LEASE_DURATION_S": "60", "RENEW_DEADLINE_S": "50", "RETRY_PERIOD_S": "2"}
        operator.settings |= usual
        try:
            begun = time.monotonic()
            operator.start()
            until("it leads", operator.leads, 120)
            led = time.monotonic()
            assert operator.pid is not None
            processes = {
                "operator": psutil.Process(operator.pid),
                **{daemon.name: psutil.Process(daemon.pid) for daemon in plane.daemons},
            }
            before = seconds_of(processes)

            def all_heard() -> bool:
                time.sleep(1)
                return metric(port, "tierline_operator_verdict_seconds_count") >= options.tasks

            until("every task has its verdict", all_heard, 3600)
            heard_s = time.monotonic() - led
            spent = {k: v - before[k] for k, v in seconds_of(processes).items()}
            tasks = plane.api.list("tierline.io/v1alpha1", "MemTask", user.namespace)
            assert all(map(is_verdict, tasks)), "the first word on each task is its verdict"
            admitted = sum(conditions(one)["Admitted"]["status"] == "True" for one in tasks)
            until("every pod has its device", lambda: all(map(placed, user.claims())), 3600)
            placed_s = time.monotonic() - led
            count = options.tasks * options.pods
            time.sleep(5)
            worked = requests_of(port)
            found = {
                "nodes": options.nodes,
                "tasks": options.tasks,
                "pods": count,
                "start_s": round(led - begun, 1),
                "verdicts_s": round(heard_s, 1),
                "verdicts_per_s": round(options.tasks / heard_s, 1),
                "admitted": admitted,
                "requests_per_verdict": round(worked / options.tasks, 2),
                **{
                    f"{name}_ms_per_verdict": round(1000 * s / options.tasks, 2)
                    for name, s in spent.items()
                },
            }
            if count:
                found |= {"placed_s": round(placed_s, 1), "pods_per_s": round(count / placed_s, 1)}
            if options.paced:
                found["paced"] = others(
                    plane, user, first=options.tasks, tasks=options.paced, rate=options.rate
                )
            time.sleep(5)
            worked, watched = requests_of(port), watches_of(plane)
            time.sleep(options.idle)
            per_minute = 60 / options.idle
            return found | {
                "idle_requests_per_minute": round((requests_of(port) - worked) * per_minute, 1),
                "idle_watches_per_minute": round((watches_of(plane) - watched) * per_minute, 1),
                "memory_mib": round(processes["operator"].memory_info().rss / 2**20),
            }
        finally:
            operator.stop()
            nursery.close()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10_000, help="the backlog")
    parser.add_argument("--pods", type=int, default=0, help="pods of each task of the backlog")
    parser.add_argument("--paced", type=int, default=3000, help="tasks created afterwards")
    parser.add_argument("--rate", type=float, default=100, help="so many of them a second")
    parser.add_argument("--idle", type=float, default=60, help="seconds without any change")
    parser.add_argument("--programs", type=Path, help="folder of etcd and kube-apiserver")
    parser.add_argument("--rights", type=Path, help="the operator's rights as Helm makes them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    about = describe()
    print_head(about)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    flat = {k: v for k, v in found.items() if k != "paced"} | found.get("paced", {})
    for name, value in flat.items():
        print(f"{name.replace('_', ' '):<34}{value:>10,}")
    if options.json:
        options.json.write_text(json.dumps(about | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
