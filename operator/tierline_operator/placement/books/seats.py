"""The words of placement: devices, claims, and seats.

A *seat* is room for one pod of a task on one device. It belongs to a claim once the pod's claim is
there; before (and between two pods) it is kept free for the task, up to the task's `replicas`. The
plan of a seat that is kept free may change with every decision; that of a pod is held (holding.py).
An allocated claim is the truth about its seat's place; a seat without a claim is only a promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tierline_api.objects.optin import Standing
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.placement.needs.fitting import ANYWHERE, Needs, Worker, misfit
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.held import Held, held_by
from tierline_operator.planning.request import TaskDemand


class TaskKey(NamedTuple):
    """A MemTask."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.namespace}/{self.name}"


class ClaimKey(NamedTuple):
    """A ResourceClaim."""

    namespace: str
    name: str


class PodKey(NamedTuple):
    """A pod."""

    namespace: str
    name: str


class DeviceKey(NamedTuple):
    """A device of a node."""

    node: str
    device: str

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.node}/{self.device}"


@dataclass(frozen=True)
class Claim:
    """A pod's claim. Times are RFC 3339 texts in UTC, which sort as they are."""

    key: ClaimKey
    task: str
    created: str
    pod: str
    """Name of its pod; empty if nothing says which that is."""
    place: DeviceKey | None = None
    """Where it is allocated."""
    allocated: str = ""
    """When it was allocated."""
    order: int | None = None
    """The number of its admission."""
    profiling: bool = False
    """It was allocated to be measured, and got no plan of its own yet."""
    sharing: bool = False
    """It is measured while admitted tasks run, by the limit of its spec."""
    overdue: bool = False
    """It is measured for longer than others must wait for that."""
    unmeasured: bool = False
    """It is noted as not measured: its measuring was given up."""
    leaving: bool = False
    """It is being deleted: not to be allocated any more."""
    held: Held | None = None
    """The holding of its pod: the plan that is noted in it, once it is allocated."""
    terms: str = ""
    """The terms that are noted in it, as they are."""
    lost: bool = False
    """It is noted as lost: its pod holds nothing any more."""
    needs: Needs = ANYWHERE
    """The needs of its pod on a node."""
    barred: tuple[str, ...] = ()
    """Nodes that are not tried for it, because kube-scheduler gave it back from there."""
    returned: tuple[str, ...] = ()
    """All nodes from which it was given back, as long as no place is known to be its last."""
    times_returned: int = 0
    unscheduled: str = ""
    """The words of kube-scheduler on its pod, where it found no node for it."""
    overran_s: float | None = None
    """The over-run of two of its pod's last jobs beyond their plan, as its agent says."""

    @property
    def task_key(self) -> TaskKey:
        """The task it names."""
        return TaskKey(self.key.namespace, self.task)

    @property
    def pod_key(self) -> PodKey:
        """Its pod."""
        return PodKey(self.key.namespace, self.pod)

    def misfit(self, node: str, worker: Worker | None) -> str:
        """Why its pod cannot run on a node, as a clause about the node; "" if it can."""
        return self.why_returned if node in self.barred else misfit(worker, self.needs)

    @property
    def why_returned(self) -> str:
        """Why it was given back, as a clause about the node: the same each time."""
        said = f': "{self.unscheduled}"' if self.unscheduled else ""
        return (
            f"kube-scheduler found that the pod does not fit there{said}; it is tried again, ever "
            "more seldom"
        )


@dataclass
class Seat:
    """Room for one pod of a task."""

    task: TaskKey
    place: DeviceKey
    order: int
    """Counts admissions; tasks of a device are planned in this order, so that homes stay put."""
    claim: ClaimKey | None = None
    standing: Standing = Standing.PLANNED
    demand: TaskDemand | None = None
    plan: TaskPlan | None = None
    """Both None while it is being measured alone, or lost."""
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE
    """The scheduling that the plan needs to hold."""
    held: Held | None = None
    """The holding of its pod, from the decision on: it is planned by nothing else."""
    bound: bool = False
    """Whether its claim is allocated here, or may be: that was decided."""
    measured: bool = False
    """Its pod was started to be measured: it holds nothing (measuring.py)."""
    sharing: bool = False
    """Measured while admitted tasks run: until it has a profile, its plan is for its limit."""
    overdue: bool = False
    """It is measured for longer than others must wait for that."""
    reason: str = ""
    """A sentence, where it stands worse than planned."""
    unproven: str = ""
    """A sentence, where what runs there does not hold by what jobs were measured to take."""
    promised: TaskPlan | None = None
    """The plan before this one."""

    def grant(self, plan: TaskPlan | None, scheduling: Scheduling) -> None:
        """It has that plan now; if that differs by an earlier response alone, the one before.

        Each change of a device's tasks changes the bounds of all of them. A bound that was promised
        and still holds is not promised again: else one task that goes on changing would have
        everybody's objects written each time.
        """
        before = self.promised or self.plan
        self.promised, self.plan, self.scheduling = None, plan, scheduling
        if plan is None or before is None or self.demand is None:
            return
        new_s, old_s = plan.response_s, before.response_s
        if new_s is None or old_s is None or not new_s <= old_s <= self.demand.deadline_s:
            return
        if replace(before, response_s=new_s) == plan:
            self.plan = before

    def bind(self) -> None:
        """The decision for its pod is now held: the claim may be allocated with this plan."""
        if self.claim is None or self.plan is None or self.held is not None:
            return
        if self.standing is Standing.PROFILING:
            return  # its plan is for its limit, and gives it no memory
        self.held, self.bound = held_by(self.plan, self.scheduling), True
        self.measured = self.sharing = False
        if self.demand is not None:
            self.demand = replace(self.demand, held=self.held)

    def leave(self) -> None:
        """Its pod is gone, and with it what it held: the next one gets a plan of its own."""
        self.claim = None
        self.unbind()

    def unbind(self) -> None:
        """Nothing is decided any more for its pod: the claim is not allocated with its plan."""
        self.held = self.plan = None
        self.bound = self.measured = self.sharing = False

    def agree(self, claim: Claim) -> bool:
        """Hold what is noted in its pod's claim; returns whether that is something else."""
        self.bound = True
        before = self.held, self.measured, self.overdue, self.standing
        if claim.lost and self.standing is Standing.LOST:
            self.held = None
        elif claim.held is not None:
            self.held, self.measured, self.sharing = claim.held, False, False
        self.overdue = claim.overdue
        if self.held is None and self.plan is None and (claim.profiling or claim.unmeasured):
            self.measured, self.sharing = True, claim.sharing
            if claim.unmeasured:
                self.standing = Standing.UNMEASURED
            elif self.standing is Standing.PLANNED:
                self.standing = Standing.PROFILING
        return before != (self.held, self.measured, self.overdue, self.standing)
