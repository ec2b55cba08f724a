"""What an earlier agent lent, and has not come back.

A client that lives has it mapped, wherever it is: it is memory in use, by the plan of its task, as
if this agent had lent it. Whose clients are still away is told when nobody is waited for any more;
before that nothing is lent to anybody.

Invariant: what counts as absent is never lent, and may still be brought back by its owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tierline_agent.devices.base import Identity


class Owner(NamedTuple):
    """In whose plan an extent counts."""

    domain: str
    task: str | None
    """Of a resident extent; "" of what a domain shares, None of what nobody had mapped."""


class Lent:
    """The extents of an earlier agent, by their identity."""

    def __init__(self) -> None:
        self._owners: dict[Identity, Owner] = {}
        self._tasks: Collection[str] = ()
        self._domains: Collection[str] = ()
        self.absent = 0
        """How many of them clients have mapped that are away."""

    def __bool__(self) -> bool:
        return bool(self._owners)

    @property
    def owners(self) -> Mapping[Identity, Owner]:
        """All of them."""
        return self._owners

    def expect(self, owners: Mapping[Identity, Owner]) -> None:
        """These were an earlier agent's; until `away` says so, none counts."""
        self._owners = dict(owners)

    def away(self, tasks: Collection[str], domains: Collection[str]) -> None:
        """Living clients of these tasks, which are of these domains, have not come back."""
        self._tasks, self._domains = tasks, domains
        self.absent = sum(map(self._counts, self._owners.values()))

    def counts(self, identity: Identity) -> bool:
        """Whether this one is absent."""
        owner = self._owners.get(identity)
        return owner is not None and self._counts(owner)

    def absent_of(self, task: str) -> int:
        """How many resident extents of a task are."""
        if task not in self._tasks:
            return 0
        return sum(owner.task == task for owner in self._owners.values())

    def take(self, identity: Identity) -> None:
        """This one is back, or its number is another one's now."""
        if self.counts(identity):
            self.absent -= 1
        self._owners.pop(identity, None)

    def forget(self) -> bool:
        """Nobody can bring any back; returns whether there were some."""
        some = bool(self._owners)
        self._owners, self.absent = {}, 0
        return some

    def _counts(self, owner: Owner) -> bool:
        return (
            owner.task in self._tasks
            if owner.task
            else (owner.task is not None and owner.domain in self._domains)
        )
