"""Whatever happens in whatever order: nothing is promised twice, and nobody waits for no reason.

A machine feeds random events to a fleet and plays the operator that allocates claims. After every
step the fleet's promises are checked by other means than its own: sums of memory, the exact test
over the planned job times, and a fresh fleet that knows only what a restarted operator could read.
"""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.placement.fleets import (
    EXACT,
    MIB,
    allocated,
    claim,
    node,
    profile,
    put_node,
    quota,
    settle,
    task,
)

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import TierQuota
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.optin import Standing
from tierline_api.objects.plan import Tier
from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.demand import SporadicTask, np_edf
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.seats import Claim, ClaimKey, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.needs.fitting import (
    ANYWHERE,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
    Worker,
)
from tierline_operator.planning.held import held_by
from tierline_operator.planning.request import TaskDemand

NODES = st.sampled_from(["a", "b"])
TASKS = st.sampled_from(["t0", "t1", "t2", "t3"])
SPACES = st.sampled_from(["default", "other"])
NAMED = [Term(fields=(Requirement("metadata.name", "In", (name,)),)) for name in "ab"]
NEEDS = st.sampled_from(
    [
        ANYWHERE,
        Needs(tolerations=(Toleration(operator="Exists"),)),
        *(Needs(affinity=(term,)) for term in NAMED),
    ]
)
MODELS = st.sampled_from(["m", "n"])


class Cluster(RuleBasedStateMachine):
    """Random events, and an operator that allocates what has a seat."""

    told = EXACT

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(self.told)
        self.nodes: dict[str, MemNode] = {}
        self.workers: dict[str, Worker] = {}
        self.profiles: dict[tuple[str, str], MemProfile] = {}
        self.tasks: dict[TaskKey, MemTask] = {}
        self.claims: dict[ClaimKey, Claim] = {}
        self.number = 0

    @initialize()
    def two_nodes_with_all_profiles_and_two_pods(self) -> None:
        for name in ("a", "b"):
            self.worker_changes(name, ready=True, cordoned=False, tainted=False)
            self.node_comes_or_changes(name, fast=64, speed=10_000, devices=1, dram=1000, extent=1)
        for space in ("default", "other"):
            self.profile_is_measured(space, "m", ms=20, mib=48)
            self.profile_is_measured(space, "n", ms=5, mib=16)
        for name, of in (("t0", "m"), ("t1", "n")):
            self.task_comes_or_changes("default", name, of, 200, 1, Criticality.HARD)
            self.pod_comes("default", name, ANYWHERE)
        self.operator_allocates()

    def tick(self) -> int:
        self.number += 1
        return self.number

    @rule(
        name=NODES,
        fast=st.sampled_from([24, 64, 256]),
        speed=st.sampled_from([1000, 10_000]),
        devices=st.sampled_from([1, 2]),
        dram=st.sampled_from([100, 1000]),
        extent=st.sampled_from([1, 1, 2]),
    )
    def node_comes_or_changes(
        self, name: str, fast: int, speed: int, devices: int, dram: int, extent: int
    ) -> None:
        made = node(
            *(name,),
            fast_mib=fast,
            link_mib_s=speed,
            devices=devices,
            dram_mib=dram,
            extent_mib=extent,
        )
        self.nodes[name] = made
        put_node(self.fleet, made)

    @rule(name=NODES, ready=st.booleans(), cordoned=st.booleans(), tainted=st.booleans())
    def worker_changes(self, name: str, ready: bool, cordoned: bool, tainted: bool) -> None:
        taints = (Taint("dedicated", "infra", "NoSchedule"),) if tainted else ()
        self.workers[name] = Worker(name, ready=ready, cordoned=cordoned, taints=taints)
        self.fleet.put_worker(self.workers[name])

    @rule(name=NODES)
    def worker_goes(self, name: str) -> None:
        self.workers.pop(name, None)
        self.fleet.drop_worker(name)

    @rule(name=NODES)
    def node_goes(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.fleet.drop_node(name)

    @rule(space=SPACES, name=MODELS, ms=st.sampled_from([5, 20, 45]), mib=st.sampled_from([16, 48]))
    def profile_is_measured(self, space: str, name: str, ms: int, mib: int) -> None:
        made = profile(name, namespace=space, compute_ms=ms, mib=mib)
        self.profiles[space, name] = made
        self.fleet.put_profile(made)

    @rule(
        space=SPACES,
        name=TASKS,
        of=MODELS,
        period=st.sampled_from([60, 100, 200, 1000]),
        replicas=st.sampled_from([0, 1, 2]),
        criticality=st.sampled_from(list(Criticality)),
    )
    def task_comes_or_changes(
        self, space: str, name: str, of: str, period: int, replicas: int, criticality: Criticality
    ) -> None:
        made = task(
            *(name,),
            namespace=space,
            of=of,
            period_ms=period,
            replicas=replicas,
            criticality=criticality,
            number=self.tick(),
        )
        self.tasks[TaskKey(space, name)] = made
        self.fleet.put_task(made)

    @rule(space=SPACES, name=MODELS)
    def profile_goes(self, space: str, name: str) -> None:
        self.profiles.pop((space, name), None)
        self.fleet.drop_profile(space, name)

    @rule(space=SPACES, name=TASKS)
    def task_goes(self, space: str, name: str) -> None:
        self.tasks.pop(TaskKey(space, name), None)
        self.fleet.drop_task(TaskKey(space, name))

    @rule(space=SPACES, name=TASKS, needs=NEEDS)
    def pod_comes(self, space: str, name: str, needs: Needs) -> None:
        number = self.tick()
        made = replace(claim(f"c{number}", name, namespace=space, number=number), needs=needs)
        self.claims[made.key] = made
        self.fleet.put_claim(made)

    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        if self.claims:
            key = data.draw(st.sampled_from(sorted(self.claims)))
            del self.claims[key]
            self.fleet.drop_claim(key)

    @rule(data=st.data(), needs=NEEDS)
    def gated_pod_asks_otherwise(self, data: st.DataObject, needs: Needs) -> None:
        gated = sorted(key for key, known in self.claims.items() if known.place is None)
        if gated:
            key = data.draw(st.sampled_from(gated))
            self.claims[key] = replace(self.claims[key], needs=needs)
            self.fleet.put_claim(self.claims[key])

    @rule(data=st.data())
    def scheduler_gives_back(self, data: st.DataObject) -> None:
        there = sorted(key for key, known in self.claims.items() if known.place)
        if there:
            key = data.draw(st.sampled_from(there))
            known = self.claims[key]
            assert known.place is not None
            self.claims[key] = replace(
                *(known,),
                **{"place": None, "allocated": "", "held": None, "lost": False, "order": None},
                **{"profiling": False, "sharing": False, "unmeasured": False, "overdue": False},
                barred=(known.place.node,),
                returned=(known.place.node,),
            )
            self.fleet.put_claim(self.claims[key])

    @rule(data=st.data())
    def barred_nodes_open(self, data: st.DataObject) -> None:
        barred = sorted(key for key, known in self.claims.items() if known.barred)
        if barred:
            key = data.draw(st.sampled_from(barred))
            self.claims[key] = replace(self.claims[key], barred=(), returned=())
            self.fleet.put_claim(self.claims[key])

    @rule()
    def measuring_takes_long(self) -> None:
        for key, known in self.claims.items():
            if known.profiling:
                self.claims[key] = replace(known, overdue=True)
                self.fleet.put_claim(self.claims[key])

    @rule(space=SPACES, fast=st.sampled_from([16, 64, None]), dram=st.sampled_from([48, 100, None]))
    def quota_changes(self, space: str, fast: int | None, dram: int | None) -> None:
        tiers = () if dram is None else (TierQuota(tier=Tier.DRAM, capacity_bytes=dram * MIB),)
        self.fleet.put_quota(quota("q", namespace=space, fast_mib=fast, tiers=tiers))

    @rule(data=st.data())
    def allocation_is_taken_away(self, data: st.DataObject) -> None:
        """As Kubernetes does before it deletes the claim of a pod that has ended."""
        if self.claims:
            key = data.draw(st.sampled_from(sorted(self.claims)))
            self.claims[key] = replace(
                self.claims[key], place=None, allocated="", held=None, leaving=True, lost=False
            )
            self.fleet.put_claim(self.claims[key])

    @rule()
    def operator_allocates(self) -> None:
        settle(self.fleet)
        for key, pending in sorted(self.claims.items()):
            seat = self.fleet.seat_of(key)
            if pending.place is None and seat is not None and seat.standing == Standing.LOST:
                self.fleet.give_up(key)
            elif pending.place is None and seat is not None:
                made = replace(pending, allocated=f"{self.tick():09}")
                self.claims[key] = allocated(self.fleet, made)
                self.fleet.put_claim(self.claims[key])

    @rule()
    def operator_notes(self) -> None:
        settle(self.fleet)
        for key, known in sorted(self.claims.items()):
            if known.place is not None and self.fleet.seat_of(key) is not None:
                noted = allocated(self.fleet, known)
                if known.held and noted.held:
                    assert noted.held == known.held, "what a pod holds never changes"
                self.claims[key] = noted
                self.fleet.put_claim(noted)

    @invariant()
    def everything_holds(self) -> None:
        settle(self.fleet)
        check(self.fleet, self.claims, self.tasks)

    @invariant()
    def a_restart_promises_nothing_twice(self) -> None:
        again = Fleet(self.told)
        for known in self.claims.values():
            again.put_claim(known)
        for made in self.tasks.values():
            again.put_task(made)
        for there in self.nodes.values():
            again.put_node(there)
        for worker in self.workers.values():
            again.put_worker(worker)
        for measured in self.profiles.values():
            again.put_profile(measured)
        settle(again)
        check(again, self.claims, self.tasks)


class Crowd(Cluster):
    """The same where every task is first added to the plans that are there."""

    told = replace(EXACT, few_waiting=0, crowded_from=0)


def check(fleet: Fleet, claims: dict[ClaimKey, Claim], tasks: dict[TaskKey, MemTask]) -> None:
    """The promises of a fleet that has settled."""
    nobody_waits_for_no_reason(fleet)
    nobody_measured_waits_for_nobody(fleet)
    nobody_is_placed_where_its_pod_cannot_run(fleet)
    for ledger in fleet.devices().values():
        device_holds(ledger)
    for claim_key, known in claims.items():
        if known.place is not None and known.task_key not in tasks and known.held is None:
            assert fleet.devices()[known.place].closed, "nobody knows what it takes"
        elif known.place is not None:
            seat = fleet.seat_of(claim_key)
            assert seat is not None
            assert seat.place == known.place, "claims are the truth"
            if known.held is not None and seat.plan is not None:
                assert held_by(seat.plan) == known.held, "nobody changes what a pod holds"
    for key, made in tasks.items():
        verdict = fleet.verdict(key)
        assert verdict is not None
        live = sum(1 for c in claims.values() if c.task_key == key)
        assert len(verdict.seats) <= max(live, made.spec.replicas)
        held = [seat.claim for seat in verdict.seats if seat.claim]
        assert len(held) == len(set(held))
        if verdict.admitted.status.value == "True":
            assert all(seat.standing == Standing.PLANNED for seat in verdict.seats)
            assert key not in fleet.waiting()
        else:
            assert verdict.admitted.message


def nobody_waits_for_no_reason(fleet: Fleet) -> None:
    """Every device, asked once more, refuses every task that waits."""
    for key in fleet.waiting():
        entry = fleet._entries[key]
        profile_known = fleet._profile(entry) is not None
        for ledger in fleet._seating.fitting(entry) if profile_known else ():
            demand = fleet._seating.demand(entry, ledger)
            if ledger.closed or not isinstance(demand, TaskDemand):
                continue
            together = [known for known, _ in ledger.planned] + [demand]
            answer, _ = fleet._book.try_set(ledger, together)
            assert answer is None, f"{key} has room on {ledger.key}"


def nobody_is_placed_where_its_pod_cannot_run(fleet: Fleet) -> None:
    """But what is allocated there already, and what is being withdrawn from there."""
    for entry in fleet._entries.values():
        for seat in entry.seats:
            given_up = seat.standing is Standing.LOST and seat.bound
            assert given_up or not fleet._seating.unfit_seat(entry, seat)


def nobody_measured_waits_for_nobody(fleet: Fleet) -> None:
    """A measured task waits for one that is measured now, or can be next: one of them is at it."""
    for ledger in fleet.devices().values():
        standings = [seat.standing for seat in ledger.seats]
        if Standing.MEASURED in standings:
            assert standings.count(Standing.PROFILING) == 1, f"{ledger.key} is at rest"
            assert not ledger.planned, "where somebody is measured nothing has a plan"


def device_holds(ledger: Ledger) -> None:
    """Memory adds up and every guaranteed deadline passes the exact test."""
    planned = ledger.planned
    if not planned:
        return
    assert ledger.device is not None
    assert not [s for s in ledger.seats if s.standing == Standing.PROFILING]
    rings: dict[str, int] = defaultdict(int)
    for demand, plan in planned:
        rings[demand.domain] = max(rings[demand.domain], plan.ring_extents)
    resident = sum(len(plan.resident_extents) for _, plan in planned)
    workspace = max(plan.workspace_bytes for _, plan in planned)
    used = (resident + sum(rings.values())) * ledger.device.extent_bytes + workspace
    assert used <= ledger.device.fast_bytes
    verdict = np_edf(
        [
            SporadicTask(
                demand.name,
                demand.period_s,
                None if demand.criticality is Criticality.BEST_EFFORT else demand.deadline_s,
                plan.job_time_s,
            )
            for demand, plan in planned
        ]
    )
    assert verdict.ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Cluster, Crowd])
def test_whatever_happens(kind: type[Cluster]) -> None:
    kind.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
    kind.TestCase("runTest").runTest()
