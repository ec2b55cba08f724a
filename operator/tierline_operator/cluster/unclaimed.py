"""Pods that run without a claim, and claims with a place that no pod has. Pure.

A pod that is bound to a node and has not ended holds what it was given there, whatever became of
its claim: deleted under it, emptied, or allocated elsewhere by hand. So the fleet keeps others from
its device, from all of its node's where nobody knows which it was, until it has a claim there
again or is gone. A claim that is made again counts, and does no more: the node prepared the first
one for the pod, and lets go what that granted.

The other way round, a claim that names no pod and that no pod names (its owner was cut out of it, a
backup was restored) would keep its place for ever, as nothing of Kubernetes ends it. It is noted
once its place was kept as long as any other without a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from tierline_operator.cluster.decode import KnownClaim, KnownPod
from tierline_operator.cluster.lasting import Lasting
from tierline_operator.placement.books.seats import ClaimKey, DeviceKey, PodKey, TaskKey
from tierline_operator.placement.fleet import Fleet

_TOLD_AFTER_S: Final = 10.0
"""Pods and claims end in any order: what does not last is not told."""


class Unclaimed:
    """What of pods and claims does not belong together."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pods: dict[tuple[str, str], KnownPod] = {}
        """Those that run without the claim that they started with, by namespace and uid."""
        self._kept: dict[tuple[str, str], str] = {}
        """The node of each that keeps others away."""
        self._long: Lasting[tuple[str, str]] = Lasting(_TOLD_AFTER_S)
        self._ownerless: dict[ClaimKey, TaskKey] = {}
        """Allocated claims that name no pod."""
        self._nobodys: Lasting[ClaimKey] = Lasting(fleet.rules.keep_free_s)

    def see(self, pod: KnownPod, claims: Iterable[KnownClaim], last: DeviceKey | None) -> None:
        """A pod, its claims, or both have changed; `last` is where it had a place, if known.

        A pod that asks for no claim was made while no admission policy was in force. No agent gave
        it anything: it is told of, and keeps nobody away.
        """
        runs = pod.opted_in and bool(pod.node) and not pod.over
        known = list(claims)
        if not runs or any(claim.serves(pod) for claim in known):
            self._pods.pop(_key(pod), None)
        else:
            self._pods[_key(pod)] = pod
        if not runs or not pod.asks or any(claim.places(pod) for claim in known):
            self._give_back(pod)
        elif _key(pod) not in self._kept:
            there = last if last is not None and last.node == pod.node else None
            self._kept[_key(pod)] = pod.node
            self._fleet.put_unclaimed(_name(pod), pod.node, there)

    def drop(self, pod: KnownPod) -> None:
        """A pod is gone."""
        self._pods.pop(_key(pod), None)
        self._give_back(pod)

    def _give_back(self, pod: KnownPod) -> None:
        node = self._kept.pop(_key(pod), None)
        if node is not None:
            self._fleet.drop_unclaimed(_name(pod), node)

    def see_claim(self, known: KnownClaim) -> None:
        """A claim is there, or changed."""
        if known.meta.owner is None and known.claim.place is not None and not known.reserved:
            self._ownerless[known.claim.key] = known.claim.task_key
        else:
            self.drop_claim(known.claim.key)

    def drop_claim(self, key: ClaimKey) -> None:
        """A claim is gone."""
        self._ownerless.pop(key, None)

    def turn(self, pods: Mapping[tuple[str, str], KnownPod], now: datetime) -> set[TaskKey]:
        """Tasks of which there is something to tell by now; `pods` are all, by name."""
        told = self._long.turn(self._pods.keys(), now)
        named: set[ClaimKey] = set()
        if self._ownerless:  # almost never
            there = (pod for pod in pods.values() if not pod.over)
            named = {ClaimKey(pod.meta.namespace, pod.claim) for pod in there}
        given_up = self._nobodys.turn(self._ownerless.keys() - named, now)
        return {TaskKey(key[0], self._pods[key].task) for key in told} | {
            self._ownerless[key] for key in given_up
        }

    @property
    def next(self) -> list[datetime]:
        """When to look again."""
        return [at for at in (self._long.next, self._nobodys.next) if at is not None]

    def is_told(self, pod: KnownPod) -> bool:
        """Whether a pod has run without a claim for some time, and is to stay."""
        return _key(pod) in self._long.over and not pod.meta.leaving

    def is_nobodys(self, key: ClaimKey) -> bool:
        """Whether a claim has had a place for long, and no pod."""
        return key in self._nobodys.over


def _key(pod: KnownPod) -> tuple[str, str]:
    return pod.meta.namespace, pod.meta.uid


def _name(pod: KnownPod) -> PodKey:
    return PodKey(pod.meta.namespace, pod.meta.name)
