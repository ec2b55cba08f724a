"""A cluster of simulated nodes under faults: at the end all that can run runs, nothing twice.

    PYTHONPATH=cluster python -m tests.bench.cluster_faults --minutes 30 --nodes 50 --tasks 500

The API server, controllers, kube-scheduler and two operators are real; kubelets and agents are this
process: it renews what agents renew, starts pods that are bound to a node that is well, and ends
those that are deleted. Meanwhile, at random: nodes become NotReady and lose their pods, or are
cordoned; agents fall silent; pods are evicted; quotas shrink and grow; operators are killed.

A device holds exactly so many models, all of whose weights stay in fast memory: every look at the
claims shows whether any was promised twice. Ends with 1 if something is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from tests.bench.machine import describe
from tests.integration.conftest import install_crds
from tests.integration.operator.running import Nursery, Operator, User, conditions, placed, prepare
from tests.unit.placement.fleets import node, profile, quota, task

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.swap import SwapPolicy
from tierline_api.schema.quantities import parse_quantity
from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import KUBERNETES_BUILD

MODEL_MIB: Final = 64
PER_NODE: Final = 12
"""Models for which a device has memory."""
TENANTS: Final = 5
EVENTS_PER_POD: Final = 4
EVENTS_PER_TASK: Final = 8
"""Events of the operator that a run may leave: for each pod ever made, and each task."""
HEAL_S: Final = 600.0
"""So long after the last fault everything runs."""


@dataclass
class Simulated:
    """A node, its kubelet and its agent."""

    name: str
    ready: bool = True
    cordoned: bool = False
    beats: bool = True
    heals_at: float = 0.0


@dataclass
class Result:
    """What a run showed."""

    nodes: int
    tasks: int
    minutes: float
    faults: dict[str, int] = field(default_factory=dict)
    pods_made: int = 0
    looks_at_claims: int = 0
    promised_twice: list[str] = field(default_factory=list)
    running_at_the_end: int = 0
    not_running: list[str] = field(default_factory=list)
    healed_after_s: float | None = None
    operator_events: int = 0
    most_operator_events: int = 0
    all_events: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything is as it should be."""
        return (
            not self.promised_twice
            and self.running_at_the_end == self.tasks
            and self.operator_events <= self.most_operator_events
        )


class World:
    """The nodes of a cluster, and what happens to them and to the tasks."""

    def __init__(self, plane: ControlPlane, nodes: int, tasks: int, random: Random) -> None:
        self.plane, self.api, self.random = plane, plane.api, random
        self.users = [User(plane, plane.namespace()) for _ in range(TENANTS)]
        self.nodes = [Simulated(f"node-{number:02}") for number in range(nodes)]
        self.result = Result(nodes, tasks, 0.0)
        self.faults: Counter[str] = Counter()
        self._pods: set[str] = set()
        self._beat_at = self._kubelet_at = self._look_at = 0.0
        self._shrunk: dict[str, float] = {}
        for one in self.nodes:
            fast_mib = PER_NODE * MODEL_MIB
            self.users[0].node(node(one.name, fast_mib=fast_mib, dram_mib=1 << 16))
            self.users[0].worker(one.name, pods=250)
        self._beat()
        for user in self.users:
            user.apply(profile("m", mib=MODEL_MIB, compute_ms=1, workspace_mib=0))
        for number in range(tasks):
            self.users[number % TENANTS].apply(templated(f"t{number:03}"))

    # What kubelets and agents do

    def turn(self) -> None:
        """Let them do what is due."""
        now = time.monotonic()
        for one in self.nodes:
            if one.heals_at and one.heals_at <= now:
                self._heal(one)
        for namespace, at in list(self._shrunk.items()):
            if at <= now:
                self._limit(namespace, None)
        for due, every_s, do in (
            (self._beat_at, 10.0, self._beat),
            (self._kubelet_at, 2.0, self._be_kubelets),
            (self._look_at, 10.0, self._look),
        ):
            if now - due >= every_s:
                with contextlib.suppress(ApiError, OSError):
                    do()
        time.sleep(0.2)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        for one in self.nodes:
            if one.beats:
                now = datetime.now(UTC).isoformat()
                ready = {"type": "Ready", "status": "True", "reason": "Registered"}
                conditions_ = [{"lastTransitionTime": now, "message": "", **ready}]
                status = {"status": {"lastSeen": now, "conditions": conditions_}}
                self.api.merge(named("MemNode", one.name), status, subresource="status")

    def _be_kubelets(self) -> None:
        self._kubelet_at = time.monotonic()
        well = {one.name for one in self.nodes if one.ready}
        beating = {one.name for one in self.nodes if one.beats}
        for pod in self.pods():
            where = pod["spec"].get("nodeName")
            leaving = "deletionTimestamp" in pod["metadata"]
            with contextlib.suppress(ApiError):
                if leaving and (where is None or where in well):
                    self.api.delete(pod, gracePeriodSeconds=0)
                elif pod["status"].get("phase") == "Pending" and where in well & beating:
                    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
                    status = {"status": {"phase": "Running", **ready}}
                    self.api.merge(pod, status, subresource="status")

    def pods(self) -> list[Manifest]:
        """All pods that opted in."""
        found = self.api.list("v1", "Pod", labelSelector="tierline.io/task", resourceVersion="0")
        self._pods |= {pod["metadata"]["uid"] for pod in found}
        return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]

    def _look(self) -> None:
        """Look whether anything is promised twice; see the module's first lines."""
        self._look_at = time.monotonic()
        taken: Counter[tuple[str, str]] = Counter()
        of_pod: dict[str, list[str]] = defaultdict(list)
        for claim in self.api.list("resource.k8s.io/v1", "ResourceClaim"):
            place = placed(claim)
            if place is None:
                continue
            [result] = claim["status"]["allocation"]["devices"]["results"]
            taken[place] += sum(map(parse_quantity, result["consumedCapacity"].values()))
            of_pod[claim["metadata"]["ownerReferences"][0]["uid"]].append(claim["metadata"]["name"])
        most = PER_NODE * MODEL_MIB << 20
        wrong = [
            f"{place} has {size} of {most} bytes" for place, size in taken.items() if size > most
        ]
        wrong += [f"one pod has {names}" for names in of_pod.values() if len(names) > 1]
        self.result.looks_at_claims += 1
        self.result.promised_twice += wrong

    # Faults

    def fault(self) -> None:
        """Something goes wrong."""
        kinds: tuple[Callable[[], str], ...] = (
            *(self._flap, self._flap, self._hang, self._cordon, self._evict, self._evict),
            self._shrink,
        )
        if sum(bool(one.heals_at) for one in self.nodes) >= max(1, len(self.nodes) // 5):
            kinds = (self._evict, self._shrink)
        with contextlib.suppress(ApiError, OSError):
            self.faults[self.random.choice(kinds)()] += 1

    def _well(self) -> Simulated:
        return self.random.choice([one for one in self.nodes if not one.heals_at])

    def _flap(self) -> str:
        """A node is NotReady; its pods are taken off it, as the controller does after a while."""
        one = self._well()
        one.ready, one.heals_at = False, time.monotonic() + self.random.uniform(5, 60)
        self.users[0].worker(one.name, pods=250, ready="Unknown")
        for pod in self.pods():
            if pod["spec"].get("nodeName") == one.name and self.random.random() < 0.5:
                self.api.delete(pod, gracePeriodSeconds=0)
        return "a node is NotReady, and loses half of its pods"

    def _hang(self) -> str:
        one = self._well()
        one.beats, one.heals_at = False, time.monotonic() + self.random.uniform(20, 90)
        return "an agent is silent"

    def _cordon(self) -> str:
        one = self._well()
        one.cordoned, one.heals_at = True, time.monotonic() + self.random.uniform(5, 60)
        self.users[0].worker(one.name, pods=250, unschedulable=True)
        return "a node is cordoned"

    def _evict(self) -> str:
        pods = self.pods()
        for pod in self.random.sample(pods, min(len(pods), self.random.randint(1, 20))):
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": pod["metadata"]}
            with contextlib.suppress(ApiError):
                self.api.request("POST", self.api.address(pod, subresource="eviction"), eviction)
        return "up to 20 pods are evicted"

    def _shrink(self) -> str:
        user = self.random.choice(self.users)
        self._limit(user.namespace, self.random.randint(0, 120) * MODEL_MIB)
        self._shrunk[user.namespace] = time.monotonic() + self.random.uniform(10, 60)
        return "a MemQuota is lowered"

    def _limit(self, namespace: str, fast_mib: int | None) -> None:
        user = next(user for user in self.users if user.namespace == namespace)
        user.apply(quota("limit", fast_mib=1 << 20 if fast_mib is None else fast_mib))
        if fast_mib is None:
            self._shrunk.pop(namespace, None)

    def _heal(self, one: Simulated) -> None:
        one.ready = one.beats = True
        one.cordoned, one.heals_at = False, 0.0
        self.users[0].worker(one.name, pods=250)

    def heal(self) -> None:
        """Everything is well again."""
        for one in self.nodes:
            self._heal(one)
        for namespace in list(self._shrunk):
            self._limit(namespace, None)
        self._beat()

    # The end

    def not_running(self) -> list[str]:
        """Tasks that do not run, and what they say."""
        wrong = []
        for found in self.api.list("tierline.io/v1alpha1", "MemTask"):
            said = conditions(found)
            if said.get("Ready", {}).get("status") != "True":
                why = said.get("Ready" if placed_(found) else "Admitted", {}).get("message", "")
                wrong.append(f"{found['metadata']['name']}: {why}"[:200])
        return wrong

    def count(self) -> None:
        """Count what is left in etcd."""
        events = self.api.list("events.k8s.io/v1", "Event")
        by = Counter(str(event.get("reportingController")) for event in events)
        self.result.all_events = len(events)
        self.result.operator_events = by["tierline.io/operator"]
        self.result.pods_made = len(self._pods)
        self.result.most_operator_events = (
            EVENTS_PER_POD * len(self._pods) + EVENTS_PER_TASK * self.result.tasks
        )
        self.result.faults = dict(self.faults)


def templated(name: str) -> MemTask:
    """A task with weights that stay in fast memory, and with its own pod."""
    manifest = task(name, of="m", policy=SwapPolicy.RESIDENT, period_ms=10_000).to_api()
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]}
    manifest["spec"]["template"] = {"spec": spec}
    return MemTask.from_api(manifest)


def named(kind: str, name: str) -> Manifest:
    return {"apiVersion": "tierline.io/v1alpha1", "kind": kind, "metadata": {"name": name}}


def placed_(found: Manifest) -> bool:
    return conditions(found).get("Admitted", {}).get("status") == "True"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with what the chart installs."""
    plane = ControlPlane(built(KUBERNETES_BUILD), folder)
    try:
        plane.start().start_controllers(without=["node-lifecycle-controller"])
        install_crds(plane)
        prepare(plane)
        User(plane, plane.namespace()).wait_for_policies()
        yield plane
    finally:
        plane.stop()


def wait(world: World, operators: list[Operator], patience_s: float) -> float | None:
    """Wait until all tasks run; returns after how long."""
    begun = looked = time.monotonic()
    while time.monotonic() - begun < patience_s:
        for one in operators:
            if not one.runs:
                one.start()
        world.turn()
        if time.monotonic() - looked > 5:
            looked = time.monotonic()
            world.result.not_running = world.not_running()
            print(f"{len(world.result.not_running)} do not run", file=sys.stderr, flush=True)
            if not world.result.not_running:
                return time.monotonic() - begun
    return None


def run(plane: ControlPlane, folder: Path, options: argparse.Namespace) -> Result:
    """One run."""
    random = Random(options.seed)  # noqa: S311 - a choice of faults
    nursery = Nursery()
    settings = {"LOG_LEVEL": "warning"}
    operators = [Operator(plane, nursery, folder, f"o{n}", settings).start() for n in range(2)]
    world = World(plane, options.nodes, options.tasks, random)
    result = world.result
    try:
        if wait(world, operators, options.patience_s) is None:
            raise SystemExit(f"the tasks do not run at all: {result.not_running[:5]}")
        begun = time.monotonic()
        next_ = killed_at = begun
        while time.monotonic() - begun < options.minutes * 60:
            now = time.monotonic()
            if now >= next_:
                world.fault()
                next_ = now + random.uniform(0.5, 1.5) * options.every_s
            if now - killed_at > options.kill_every_s:
                killed_at = now
                leader = next((one for one in operators if one.runs and one.leads()), operators[0])
                leader.kill()
                leader.start()
                world.faults["the operator that leads is killed"] += 1
            world.turn()
        result.minutes = round((time.monotonic() - begun) / 60, 1)
        world.heal()
        result.healed_after_s = wait(world, operators, options.patience_s)
        result.running_at_the_end = options.tasks - len(result.not_running)
        world.count()
        return result
    finally:
        for one in operators:
            one.stop()
        nursery.close()


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--minutes", type=float, default=30)
    made.add_argument("--nodes", type=int, default=50)
    made.add_argument("--tasks", type=int, default=500)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--every-s", type=float, default=5.0, help="between two faults, on average")
    made.add_argument("--kill-every-s", type=float, default=120.0)
    made.add_argument("--patience-s", type=float, default=HEAL_S)
    made.add_argument("--json", type=Path)
    return made


def main() -> int:
    """Run it and tell."""
    options = parser().parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tl-faults-") as folder,
        cluster(Path(folder) / "plane") as plane,
    ):
        result = run(plane, Path(folder), options)
    told = {**describe(), **asdict(result), "holds": result.holds}
    text = json.dumps(told, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
