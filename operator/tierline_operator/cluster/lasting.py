"""Lasting states: things come into one and leave it, and it has a limit. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

K = TypeVar("K")
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Lasting(Generic[K]):
    """Which things have been in a state for longer than a limit; the clock is an argument."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._limit = timedelta(seconds=limit_s)
        self._since: dict[K, datetime] = {}
        """The longest first."""
        self.over: set[K] = set()

    def again(self, key: K) -> None:
        """Whatever a thing was in begins again."""
        self._since.pop(key, None)
        self.over.discard(key)

    def resume(self, key: K) -> None:
        """One was over the limit already, as an operator before this one wrote."""
        self._since = {key: _LONG_AGO, **self._since}
        self.over.add(key)

    def turn(self, there: AbstractSet[K], now: datetime) -> set[K]:
        """Take the things in the state now; returns those in it for longer than the limit, once."""
        for key in self._since.keys() - there:
            del self._since[key]
        self.over &= there
        for key in there - self._since.keys():
            self._since[key] = now
        new: set[K] = set()
        for key, since in self._since.items():
            if since + self._limit > now:
                break
            if key not in self.over:
                new.add(key)
        self.over |= new
        return new

    @property
    def next(self) -> datetime | None:
        """When to look again."""
        waiting = (at for key, at in self._since.items() if key not in self.over)
        first = next(waiting, None)
        return None if first is None else first + self._limit
