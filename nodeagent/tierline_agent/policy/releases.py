"""In which order a task's jobs are served, whatever its program says: a constant-bandwidth server.

Admission charges a task one release a period, due its deadline later. Its program says when a job
was released and when it is due; the agent serves the k-th release as if it had come at

    e_k = max(what the program names, when it asks, e_(k-1) + period),    due at e_k + D,

where D is its deadline less the jitter that it was planned with: how long after a release it asks,
at most. So e_k is no later than that after the release, and what is due is due by its deadline.

"What it names" is the release, or the named deadline less the task's, if that is later. A release
that waited for the task's own job before it counts from when it was due to begin: only what passes
between that job's end and its own request is added. A job that is throttled (`excess`) asks when it
is let go, and its release comes no earlier: what it is due by from when it began to wait may be
long over by then, and would come before all others.

Theorem (P12, bandwidth preservation; Abeni, Buttazzo, RTSS 1998). Others' deadlines hold as
admitted, however often a program releases and whatever it names. For in a window from a moment at
which nobody waits with a deadline up to the window's end, all jobs of the task that are due in it
have e_k in it, a period apart: no more than the demand test counts. A job that is served before its
e_k is due after the window of any deadline up to its own, so it blocks at most once there, in place
of a job of its own that the test counts.

Others' response times hold, too. They count a job a period from the moment on at which the device
is wanted; without more a fast program would be served as often as it asks before a job that is due
much later. So before its time, which is e_k without the deadline that it names, a job gets the
device only while nobody waits whose time has come (`leases`): one of them may have it when somebody
comes, in place of one that the bound counts, and none follows.

Windows never reach over a moment at which nobody with a rank waits: what a task did before it is
forgotten, so a program that is alone may run as often as it likes.

Jobs of one named release are one release, as many as its plan has; where that does not say, as long
as each is another part of it: one arena, once. So are those of a program that names the release of
each, within a period. Between them the device is kept for the next one, in all for as long as was
planned (`kept_ns`).

Nothing here knows clocks, sessions or leases.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Due:
    """When a job is due among others, and from when on it has a claim on their time."""

    deadline_ns: int
    eligible_ns: int
    too_soon: bool = False
    """It is a release more than the period allows, and was put off."""
    too_urgent: bool = False
    """It names a deadline that is earlier than its task's, which is not its."""


@dataclass
class Releases:
    """The releases of one task. Times in nanoseconds of one clock."""

    _named_ns: int | None = None
    """The program's name for the last one."""
    _served_ns: int = 0
    """As what it was served: e_k."""
    _eligible_ns: int = 0
    """When its time came: e_k, if it does not name a later deadline than its task's."""
    _asked_ns: int = 0
    """When its last job asked for the device."""
    _ended_ns: int = 0
    """When a job of it that had the device ended last."""
    _parts: set[Hashable] = field(default_factory=set)
    """The parts that its jobs ran."""
    _calls: int = 0
    """How many it had."""
    _between_ns: int = 0
    """Time that has passed between them."""

    def begins(
        self,
        *,
        now_ns: int,
        release_ns: int,
        deadline_ns: int,
        part: Hashable,
        period_ns: int,
        relative_ns: int,
        idle_ns: int,
        jitter_ns: int = 0,
        calls: int | None = None,
        throttled: bool = False,
    ) -> Due:
        """A job asks for the device, or goes on with it.

        `release_ns` and `deadline_ns` are what its program says; `idle_ns` is the last moment at
        which nobody with a rank had or wanted the device. `calls`: how many jobs a release has by
        its plan; None: one of each part.
        """
        before_ns, forgotten = self._named_ns, idle_ns > self._asked_ns
        too_soon = False

        def since_ns(named_ns: int) -> int:
            """When it came, with what passed between the last job's end and its request."""
            return named_ns + max(0, now_ns - max(named_ns, self._ended_ns))

        if not self._is_part(part, release_ns, period_ns, calls, forgotten=forgotten):
            named_ns = max(release_ns, deadline_ns - relative_ns)
            if before_ns is None or forgotten:
                served_ns, eligible_ns = max(named_ns, now_ns), max(release_ns, now_ns)
            else:
                served_ns, eligible_ns = since_ns(named_ns), since_ns(release_ns)
                if served_ns < self._served_ns + period_ns:
                    too_soon = release_ns < before_ns + period_ns
                    served_ns = self._served_ns + period_ns
                eligible_ns = max(eligible_ns, self._eligible_ns + period_ns)
            self._named_ns, self._served_ns = release_ns, served_ns
            self._eligible_ns = eligible_ns
            self._parts.clear()
            self._calls = self._between_ns = 0
        else:
            self._between_ns += max(0, now_ns - self._ended_ns)
        if throttled:
            self._served_ns = max(self._served_ns, now_ns)
            self._eligible_ns = max(self._eligible_ns, now_ns)
        self._parts.add(part)
        self._calls += 1
        self._asked_ns = now_ns
        too_urgent = deadline_ns < release_ns + relative_ns
        due_ns = self._served_ns + relative_ns - jitter_ns
        return Due(due_ns, self._eligible_ns, too_soon, too_urgent)

    def _is_part(
        self,
        part: Hashable,
        release_ns: int,
        period_ns: int,
        calls: int | None,
        *,
        forgotten: bool,
    ) -> bool:
        """Whether a job belongs to the last release."""
        full = part in self._parts if calls is None else self._calls >= calls
        if self._named_ns is None or full:
            return False
        if release_ns == self._named_ns:
            return True
        return not forgotten and release_ns < self._named_ns + period_ns

    def kept_ns(self, calls: int | None, between_ns: int) -> int | None:
        """How long the device is kept for the release's next job; None if none is to come."""
        if calls is None or self._calls >= calls:
            return None
        return max(0, between_ns - self._between_ns)

    def adopts(self, *, now_ns: int, release_ns: int, part: Hashable) -> None:
        """A job that was begun with an agent before this one."""
        self._named_ns = self._served_ns = self._eligible_ns = release_ns
        self._asked_ns, self._parts, self._calls = now_ns, {part}, 1

    def ends(self, now_ns: int) -> None:
        """A job that had the device has ended."""
        self._ended_ns = now_ns
