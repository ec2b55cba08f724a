"""Which nodes can take a pod, and why each other one cannot. Pure.

The rules are those by which kube-scheduler filters nodes, as far as node and pod alone decide:
readiness, cordon, taints, `nodeSelector`, required node affinity. What depends on other pods
(processors, ports, spreading, volumes) only kube-scheduler knows: where it gives a claim back, the
node is barred for that pod for a while (cluster/returned.py).

What this release does not know (an operator of a later Kubernetes) never refuses a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_CHOICE: Final = "the pod's"
"""So begin the reasons that lie in what a pod chose, and not in how a node is."""
_HARD: Final = {"NoSchedule", "NoExecute"}
_OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Taints that say how a node is, and not for which pods it is meant."""
_CORDONED: Final = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True)
class Taint:
    """A node's taint that keeps pods away."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """As kubectl writes it."""
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


@dataclass(frozen=True)
class Worker:
    """A Node of the cluster, as far as it matters for where pods can run."""

    name: str
    ready: bool = True
    unready: str = ""
    """The words of its condition Ready, where it does not hold."""
    agentless: str = ""
    """Why no pod of a task can start there, whatever Kubernetes says, as a clause about it."""
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Toleration:
    """A pod's toleration; an empty key, value or effect is as in Kubernetes."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether the taint does not keep the pod away."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator != "Equal" or self.value == taint.value


@dataclass(frozen=True)
class Requirement:
    """One expression over the labels (or the name) of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds for these labels."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return True

    def _compares(self, value: str | None) -> bool:
        try:
            has, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return has > bound if self.operator == "Gt" else has < bound

    def __str__(self) -> str:
        """As people read it."""
        return " ".join((self.key, self.operator, ", ".join(self.values))).rstrip()


@dataclass(frozen=True)
class Term:
    """Requirements that must hold together; a term without any holds nowhere."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def holds(self, worker: Worker) -> bool:
        """Whether it holds for a node."""
        name = {"metadata.name": worker.name}
        return bool(self.labels or self.fields) and (
            all(one.holds(worker.labels) for one in self.labels)
            and all(one.holds(name) for one in self.fields)
        )

    def __str__(self) -> str:
        """As people read it."""
        return " and ".join(map(str, (*self.labels, *self.fields))) or "nothing"


@dataclass(frozen=True)
class Needs:
    """The needs of a pod on its node."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    """Of these one must hold; None if it asks for nothing."""
    tolerations: tuple[Toleration, ...] = ()
    gates: tuple[str, ...] = ()
    """The scheduling gates of other controllers, which may still change what it asks for."""
    node: str = ""
    """The node to which it is bound: it runs there, however that node is, and nowhere else."""
    known: bool = True
    """Whether a pod or a template says so. Else only what keeps every pod away counts."""


ANYWHERE: Final = Needs()
"""Of a pod that asks for nothing, and tolerates nothing."""
UNKNOWN: Final = Needs(known=False)
"""Of a place that is kept free for pods of which nothing is known yet."""


def misfit(worker: Worker | None, needs: Needs) -> str:
    """Why a pod cannot run on a node, as a clause about the node; "" if it can."""
    if worker is None:
        return "it is no node of the cluster"
    if needs.node == worker.name:
        return ""
    choice = _not_chosen(worker, needs)
    if choice:
        return choice
    if not worker.ready:
        return f"it is not Ready{f' ({worker.unready})' if worker.unready else ''}"
    if worker.agentless:
        return worker.agentless
    return _kept_away(worker, needs)


def _kept_away(worker: Worker, needs: Needs) -> str:
    if worker.cordoned and not _tolerated(Taint(_CORDONED, "", "NoSchedule"), needs):
        return "it is cordoned"
    for taint in worker.taints:
        if taint.effect in _HARD and not _tolerated(taint, needs):
            return f"the pod does not tolerate its taint {taint}"
    return ""


def _tolerated(taint: Taint, needs: Needs) -> bool:
    if not needs.known:
        return not taint.key.startswith(_OF_KUBERNETES)
    return any(one.tolerates(taint) for one in needs.tolerations)


def _not_chosen(worker: Worker, needs: Needs) -> str:
    if needs.node:
        return f"{_CHOICE} node is {needs.node}, where it runs already"
    if needs.gates:
        return f"{_CHOICE} scheduling gate {needs.gates[0]} is not Tierline's, and still there"
    for key, value in needs.selector:
        if worker.labels.get(key) != value:
            has = worker.labels.get(key)
            is_ = f"is {has}" if has is not None else "is not there"
            return f"{_CHOICE} nodeSelector wants {key}={value}, which {is_}"
    if needs.affinity is None or any(term.holds(worker) for term in needs.affinity):
        return ""
    wanted = "; or ".join(map(str, needs.affinity)) or "nothing"
    return f"{_CHOICE} required node affinity does not match it ({wanted})"


def listed(unfit: Mapping[str, str], most: int = 5) -> str:
    """Nodes that cannot take a pod, with the reason for each, as one sentence.

    First those that the pod would go to if they were well. A reason is told once.
    """
    ranked = sorted(unfit.items(), key=lambda one: (one[1].startswith(_CHOICE), one))
    alike: dict[str, list[str]] = {}
    for name, why in ranked[:most]:
        alike.setdefault(why, []).append(name)
    told = (
        f"node{'s' if len(names) > 1 else ''} {', '.join(names)}: {why}"
        for why, names in alike.items()
    )
    more = f"; and {len(ranked) - most} more nodes" if len(ranked) > most else ""
    return "; ".join(told) + more
