"""Hindrances of a task's own objects: refusals, for as long as they last.

An event tells of a refusal once, and is gone after an hour. Here is what still holds, for the
task's status. Nothing of it outlives the leader: the next one tries, and is refused, too.
"""

from __future__ import annotations

from tierline_operator.placement.books.seats import TaskKey


class Hindrances:
    """By task and kind of object: a sentence that says what is refused, and what to do."""

    def __init__(self) -> None:
        self._of: dict[TaskKey, dict[str, str]] = {}
        """None empty: a name may never come again."""

    def note(self, key: TaskKey, kind: str, sentence: str) -> None:
        """An object of a task is refused."""
        self._of.setdefault(key, {})[kind] = sentence

    def over(self, key: TaskKey, *kinds: str) -> None:
        """Objects of these kinds are as they should be, or are not needed any more."""
        left = {kind: said for kind, said in self._of.pop(key, {}).items() if kind not in kinds}
        if left:
            self._of[key] = left

    def forget(self, key: TaskKey) -> None:
        """The task is gone."""
        self._of.pop(key, None)

    def told(self, key: TaskKey) -> str:
        """All of it as clauses; "" if there is nothing."""
        return "; ".join(self._of.get(key, {}).values())

    def holds(self, key: TaskKey, *kinds: str) -> bool:
        """Whether an object of these kinds is refused."""
        return not self._of.get(key, {}).keys().isdisjoint(kinds)

    def __len__(self) -> int:
        """Of how many tasks something is refused."""
        return len(self._of)
