"""Builders of small fleets: nodes, profiles, tasks and claims with what a test cares about."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tierline_api.devices.device import DeviceKind, DeviceSelector
from tierline_api.devices.preemption import Scheduling
from tierline_api.objects.memnode import (
    Device,
    Health,
    Link,
    LinkName,
    MemNode,
    MemNodeStatus,
    TierStatus,
)
from tierline_api.objects.memprofile import Layer, MemProfile, MemProfileSpec, ProfiledDevice
from tierline_api.objects.memquota import MemQuota, MemQuotaSpec
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.optin import Standing
from tierline_api.objects.plan import Tier
from tierline_api.objects.realtime import Criticality, Realtime
from tierline_api.objects.swap import Memory, Swap, SwapPolicy
from tierline_api.objects.terms import Terms
from tierline_api.schema.metadata import ClusterObjectMeta, ObjectMeta
from tierline_operator.placement.books.rules import KindRules, Rules
from tierline_operator.placement.books.seats import Claim, ClaimKey, DeviceKey, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.needs.fitting import Worker
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.held import Held
from tierline_operator.planning.request import Margins

MIB = 2**20
START = datetime(2026, 11, 21, tzinfo=UTC)
EXACT = Rules(
    by_kind={kind: KindRules(Margins(1.0, 1.0), 0.0, 0.0) for kind in DeviceKind},
)
"""No margins, so that a test can count in its head."""


def node(
    name: str,
    *,
    devices: int = 1,
    fast_mib: int = 512,
    dram_mib: int = 4096,
    link_mib_s: int = 10_000,
    product: str = "Trial CPU",
    kind: DeviceKind = DeviceKind.CPU,
    health: Health = Health.HEALTHY,
    yields: bool = False,
    extent_mib: int = 1,
    training: bool = True,
) -> MemNode:
    """A node of equal devices, with DRAM below them."""
    names = [f"{kind.value}{number}" for number in range(devices)]
    return MemNode(
        metadata=ClusterObjectMeta(name=name),
        status=MemNodeStatus(
            devices=tuple(
                Device(
                    name=device,
                    kind=kind,
                    product=product,
                    fast_bytes=fast_mib * MIB,
                    extent_bytes=extent_mib * MIB,
                    preemption=tuple(Scheduling) if yields else (),
                    health=health,
                    training=training,
                )
                for device in names
            ),
            tiers=(TierStatus(name=Tier.DRAM, capacity_bytes=dram_mib * MIB),),
            links=tuple(
                Link(
                    name=LinkName.H2D,
                    device=device,
                    bandwidth=link_mib_s * MIB,
                    overhead_s=0.0,
                )
                for device in names
            ),
        ),
    )


def profile(
    name: str,
    *,
    mib: int = 64,
    compute_ms: float = 10,
    layers: int = 8,
    namespace: str = "default",
    product: str = "Trial CPU",
    kind: DeviceKind = DeviceKind.CPU,
    workspace_mib: int = 4,
    digest: str | None = None,
) -> MemProfile:
    """A model of equal layers."""
    return MemProfile(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=MemProfileSpec(
            device=ProfiledDevice(kind=kind, product=product),
            layers=tuple(
                Layer(
                    name=f"layer{number}",
                    bytes=mib * MIB // layers,
                    compute_time_s=compute_ms / 1000 / layers,
                )
                for number in range(layers)
            ),
            workspace_bytes=workspace_mib * MIB,
            digest=digest,
        ),
    )


def task(
    name: str,
    *,
    period_ms: float = 100,
    deadline_ms: float | None = None,
    namespace: str = "default",
    replicas: int = 1,
    of: str | None = None,
    number: int = 0,
    criticality: Criticality = Criticality.HARD,
    policy: SwapPolicy = SwapPolicy.AUTO,
    budget_mib: int = 1024,
    model: str | None = None,
    kind: DeviceKind = DeviceKind.CPU,
    generation: int = 1,
    leaving: bool = False,
    status: Any = None,
    limit_ms: float | None = None,
) -> MemTask:
    """A task; `of` names its profile, `number` its age (0 is the oldest)."""
    created = START + timedelta(seconds=number)
    return MemTask(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            generation=generation,
            creation_timestamp=created,
            deletion_timestamp=created if leaving else None,
        ),
        spec=MemTaskSpec(
            realtime=Realtime(
                period_s=period_ms / 1000,
                deadline_s=(deadline_ms or period_ms) / 1000,
                criticality=criticality,
                measuring_limit_s=None if limit_ms is None else limit_ms / 1000,
            ),
            memory=Memory(budget_bytes=budget_mib * MIB),
            swap=Swap(policy=policy),
            device=DeviceSelector(kind=kind, model=model),
            profile=of,
            replicas=replicas,
        ),
        status=status,
    )


def claim(
    name: str,
    of: str,
    *,
    namespace: str = "default",
    place: DeviceKey | None = None,
    number: int = 0,
    profiling: bool = False,
    leaving: bool = False,
    order: int | None = None,
    held: Held | None = None,
) -> Claim:
    """A claim of a pod of task `of`; `held` is the plan noted in it."""
    created = (START + timedelta(seconds=number)).isoformat()
    return Claim(
        key=ClaimKey(namespace, name),
        task=of,
        created=created,
        pod=f"pod-{name}",
        place=place,
        allocated=created if place else "",
        order=order,
        profiling=profiling,
        leaving=leaving,
        held=held,
    )


def allocated(of: Fleet, known: Claim) -> Claim:
    """The claim with what the operator writes into it: its place and its plan, or that it lost."""
    seat = of.seat_of(known.key)
    assert seat is not None
    spec = of.spec_of(known.task_key)
    assert spec is not None
    lost = seat.standing == Standing.LOST
    planless = {Standing.PROFILING, Standing.MEASURED}
    return replace(
        known,
        place=seat.place,
        allocated=known.allocated or known.created,
        order=seat.order,
        profiling=seat.standing in planless or (lost and seat.measured),
        sharing=seat.standing is Standing.PROFILING and seat.plan is not None,
        unmeasured=seat.standing == Standing.UNMEASURED,
        held=seat.held if not lost else None,
        terms=json.dumps(Terms.of(spec).to_api()),
        lost=lost,
    )


def run(of: Fleet, name: str, *, number: int = 0) -> Claim:
    """Start a pod of a task that has its place; returns its claim as the operator leaves it."""
    made = claim(f"c-{name}", name, number=number)
    feed(of, made)
    made = allocated(of, made)
    feed(of, made)
    return made


def plan_of_pod(of: Fleet, known: Claim) -> TaskPlan:
    """The plan by which a pod stands."""
    seat = of.seat_of(known.key)
    assert seat is not None
    assert seat.plan is not None
    return seat.plan


def quota(
    name: str, *, namespace: str = "default", fast_mib: int | None = None, **more: Any
) -> MemQuota:
    """A quota; without figures it limits nothing."""
    fast_bytes = None if fast_mib is None else fast_mib * MIB
    return MemQuota(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=MemQuotaSpec(fast_memory_bytes=fast_bytes, **more),
    )


def fleet(*objects: Any, rules: Rules = EXACT) -> Fleet:
    """A fleet that has seen these objects and settled."""
    made = Fleet(rules)
    feed(made, *objects)
    return made


def feed(into: Fleet, *objects: Any) -> None:
    """Let a fleet see more objects, and settle."""
    puts = {
        Worker: into.put_worker,
        MemNode: partial(put_node, into),
        MemProfile: into.put_profile,
        MemTask: into.put_task,
        MemQuota: into.put_quota,
        Claim: into.put_claim,
    }
    for item in objects:
        puts[type(item)](item)  # type: ignore[operator]
    settle(into)


def put_node(into: Fleet, made: MemNode) -> None:
    """Let a fleet see a MemNode, and its Node, to which any pod may go; a Node seen stays."""
    into.put_node(made)
    if made.name not in into.workers:
        into.put_worker(Worker(made.name))


def settle(of: Fleet) -> set[TaskKey]:
    """Settle until there is nothing more to do; returns the tasks that changed."""
    changed: set[TaskKey] = set()
    for _ in range(1000):
        done = of.settle()
        changed |= done.changed
        if not done.more:
            return changed
    raise AssertionError("the fleet does not come to rest")


def places(of: Fleet, name: str, namespace: str = "default") -> list[str]:
    """Where the seats of a task are, as node/device."""
    verdict = of.verdict(TaskKey(namespace, name))
    assert verdict is not None
    return [str(seat.place) for seat in verdict.seats]


def said(of: Fleet, name: str, namespace: str = "default") -> tuple[str, str, str]:
    """Status, reason and message of Admitted."""
    verdict = of.verdict(TaskKey(namespace, name))
    assert verdict is not None
    admitted = verdict.admitted
    return admitted.status.value, admitted.reason.value, admitted.message
