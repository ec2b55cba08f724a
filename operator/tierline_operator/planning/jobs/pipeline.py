"""How long one job takes when part of its weights stream in while it computes.

Theorem (P1, the pipeline recursion). A job's streamed extents s_0, s_1, … are copied in order, each
link copying its own extents one after the other; extent j needs the ring slot that extent j-g gave
back, and is *ready* when it and all before it are in place. With e_l the end of layer l, c_l its
compute time, x_j the end of the copy of s_j, y_j its readiness, need(l) the last streamed extent
that layer l or an earlier one reads, and lastLayer(s) the last layer that reads extent s:

    x_j = max(x_{j'}, e[lastLayer(s_{j-g})]) + size_j / bandwidth + overhead
          (j' is the extent before j on the same link)
    y_j = max(y_{j-1}, x_j)
    e_l = max(e_{l-1}, y_need(l)) + c_l                      and the job time is the last e_l.

It is the exact finishing time of the mechanism from an empty ring. It is built of maxima and sums
only, so it bounds every run whose layers and copies take no longer than planned.

The ring deadlocks, if and only if a layer reads more streamed extents than the ring has slots: then
the answer is RingTooSmall, never a number (trap T9). `max(compute, bytes / bandwidth)` is *not* a
bound (trap T2): it forgets the filling of the ring and every local shortage.

Theorem (any job that was seen). c_l of a profile are shares of its longest job. In another job one
layer may take longer than its share, up to its own longest L_l, and all together no longer than W =
sum of c_l. The recursion is a longest path: its time is the greatest sum, over chains of copies and
layers, of what they take, and in each chain the layers take at most min(W, sum of their L_l), which
is at most s * (sum of their L_l) + (1 - s) * W for any s from 0 to 1. So with F(c) the time of the
recursion,

    time of any such job <= F(s * L) + (1 - s) * W         for each s,

and the least of them is planned with (`spreads`). Where all layers are steady L = c, and s = 1 is
the recursion itself. The same holds for restarts, since no layer runs twice (restart.py).

One-extent-blocked variant (P3): `start_delay_s` starts every copy chain that much later, for a link
that may be busy with an extent of something else at dispatch: with as many as it serves at a time,
for none of them can be called back. A fully resident job is not delayed.

Theorem (fair turns). n devices read through one link that serves two extents at a time, takes the
devices in turns (none begins more than one extent between two of a device that waits) and never
lets an extent be overtaken by more than one that began after it. With B its measured total rate and
S the full extent, the recursion above bounds each device's jobs whatever the others do, if one copy
counts size_j / B + (n-1) S / B + n overheads (`LinkRate.devices`): at least a part of 1/n each.
Proof, in units of S / B: let i be the last extent up to j at whose arrival r_i none of the device
waits. From then until j begins at s_j the link is never idle, and does no more than what was on its
way at r_i (two extents), the device's own i .. j-1, and at most n-1 others before each of i .. j;
so with w_j the work of the other extent on its way at s_j,

    s_j + w_j + size_j <= r_i + 2 + size_i + .. + size_j + (n-1)(j-i+1) <= x_j + n - 1  for n >= 3.

For n = 2 one extent less has to be found. If nothing of the device is on its way at r_i, the other
one began its last extent after it and has no turn before i. If i-1 is, then the same holds, or the
extent served along with i-1 began before it and is in s_{i-1} + w_{i-1}, by induction at most
x_{i-1} + 1 - size_{i-1}. If i-2 is as well, x_{i-1} is not before its end, up to which two were
served. Then f_j <= s_j + w_j + size_j + 1 is at most x_j + n, and a copy's lateness (`late_s`) is n
for a full extent. At dispatch no more than two extents and n-1 turns go first, fewer than
`flight_s` has.

Several arenas: each one is a job root of its own, so its ring starts empty when its first layer may
run, not before; the job time of a task is the sum over its arenas.

Source: docs/design/theory.md, P1-P3 (checked against an event simulation); the same
check is in this repository's tests. Assumptions: times given are worst cases; nothing else uses the
links, or the bandwidth given is what is left. What had begun on them at dispatch is P3's; no load
begins during a job's stream (agents: policy/transfers.py), however often that waits for a slot.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from tierline_api.layout import ArenaLayout

NEVER = float("inf")
SHARES = (1.0, 0.5, 0.0)
"""Of each layer's longest time, for which a bound is computed; any from 0 to 1 gives one."""


class RingTooSmall(ValueError):  # noqa: N818 - the contract's name: an answer, not a fault
    """A layer reads more streamed extents than the ring has slots; the job would never end."""

    def __init__(self, layer: int, span: int, ring_extents: int) -> None:
        super().__init__(
            f"layer {layer} streams {span} extents at once, but the ring has {ring_extents}: "
            "give the ring more extents or keep part of that layer resident"
        )
        self.layer = layer
        self.span = span
        self.ring_extents = ring_extents


@dataclass(frozen=True)
class LinkRate:
    """The guarantee of a link: measured worst bandwidth (bytes/s) and overhead per extent (s).

    `in_flight` > 1: the link serves so many extents at a time at the same total rate. An extent
    may then share it with the in_flight - 1 after it, so it is ready up to so many copies later.
    `devices` > 1: it serves so many in turns, and the rate is of all they read together.
    """

    bandwidth_bytes_per_s: float
    overhead_s: float = 0.0
    in_flight: int = 1
    devices: int = 1
    turn_bytes: int = 0
    """The full extent, which each of the other devices may have before each one of this device."""
    staged: bool = False
    """Its bytes are copied once more, by the engine that copies from all tiers in turn."""

    def slowed(self, margin: float) -> LinkRate:
        """The same with everything taking so many times as long, overheads included."""
        return replace(
            self,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / margin,
            overhead_s=self.overhead_s * margin,
        )

    def copy_s(self, size_bytes: int) -> float:
        """Seconds that the link is busy with one extent of `size_bytes`, others' turns included."""
        moved_bytes = size_bytes + (self.devices - 1) * self.turn_bytes
        return moved_bytes / self.bandwidth_bytes_per_s + self.devices * self.overhead_s

    def flight_s(self, size_bytes: int) -> float:
        """Seconds until all that it serves at a time has arrived, if that has just begun."""
        return self.in_flight * self.copy_s(size_bytes)


class Pipeline:
    """The recursion for one task: what does not depend on residency and ring is computed once."""

    def __init__(
        self,
        layout: ArenaLayout,
        compute_s: Sequence[float],
        link_of_extent: Sequence[int],
        links: Sequence[LinkRate],
        start_delay_s: float = 0.0,
        passes: Sequence[int] = (),
        *,
        kept: frozenset[int] = frozenset(),
        streamed: frozenset[int] = frozenset(),
        in_turn: bool = False,
        longest_s: Sequence[float] = (),
        gate_s: float = 0.0,
    ) -> None:
        """`longest_s`: the longest time of each layer in any job; without it, or where it is less,
        no layer takes longer than its `compute_s`. Both have `gate_s` in them, which each takes.

        `passes`: how often a release runs each arena; those that are not named once.

        `in_turn`: one engine copies for all links, in the order of the stream.

        `kept` and `streamed` are extents that plans always keep, and never (curve.py).

        `compute_s` per layer that is not pinned; a layout without layers may have one figure.

        `link_of_extent` gives each extent's index into `links`. Raises ValueError where the lengths
        do not match.
        """
        if len(compute_s) != layout.layer_count and (layout.layer_count or len(compute_s) > 1):
            raise ValueError(f"{len(compute_s)} compute times for {layout.layer_count} layers")
        if len(link_of_extent) != layout.extent_count:
            raise ValueError(
                f"{len(link_of_extent)} links for {layout.extent_count} extents: give one each"
            )
        self.layout = layout
        self.kept, self.streamed = kept, streamed
        self.compute_s = tuple(compute_s)
        self.start_delay_s = start_delay_s
        named = [max(1, count) - 1 for count in passes[: layout.arena_count]]
        self._again = [*named, *[0] * (layout.arena_count - len(named))]
        """How often a release runs each arena once more."""
        self.release_compute_s = sum(self.compute_s) + sum(
            self._again[arena] * seconds
            for arena, seconds in zip(layout.layer_arena, self.compute_s, strict=False)
        )
        """Time of its layers in a release."""
        self.longest_s = self.compute_s
        if layout.layer_count and longest_s:
            pairs = zip(longest_s, self.compute_s, strict=True)
            self.longest_s = tuple(max(longest, share) for longest, share in pairs)
        self.spreads = self._spreads(gate_s)
        """Layer times, and what is added to the recursion's time of them: each is a bound."""
        self.link_of_extent = (0,) * len(link_of_extent) if in_turn else tuple(link_of_extent)
        """Copies of equal numbers wait for each other."""
        self.link_count = min(1, len(links)) if in_turn else len(links)
        # After extents of the same link the second copy is hidden by the next one's first.
        mixed = in_turn and len(set(link_of_extent)) > 1
        again_s = min((link.copy_s(layout.extent_bytes) for link in links), default=0.0)
        self.copy_s = [
            links[link].copy_s(size) + (again_s if mixed and links[link].staged else 0.0)
            for link, size in zip(link_of_extent, layout.extent_sizes, strict=True)
        ]
        # How much later than its own copy an extent can be ready, because the next ones share.
        self.late_s = [
            (links[link].in_flight - 1) * links[link].copy_s(layout.extent_bytes)
            for link in link_of_extent
        ]
        # The extents each layer is the first to read: where the stream must have got to.
        self.new_extents: list[range] = []
        self.arena_starts: list[bool] = []
        arena = -1
        reached = 0
        for first, last, owner in zip(
            layout.first_extent, layout.last_extent, layout.layer_arena, strict=True
        ):
            begins = owner != arena
            if begins:
                arena, reached = owner, first
            self.arena_starts.append(begins)
            self.new_extents.append(range(reached, last + 1))
            reached = max(reached, last + 1)

    def _spreads(self, gate_s: float) -> list[tuple[tuple[float, ...], float]]:
        if sum(self.longest_s) <= sum(self.compute_s) * (1 + 1e-9):
            return [(self.compute_s, 0.0)]
        layers = self.layout.layer_count
        runs = layers + sum(self._again[arena] for arena in self.layout.layer_arena)
        work_s = max(0.0, self.release_compute_s - runs * gate_s)
        return [
            (
                tuple(gate_s + share * max(0.0, seconds - gate_s) for seconds in self.longest_s),
                (1 - share) * work_s,
            )
            for share in SHARES
        ]

    def total_s(self, resident: Set[int], ring_extents: int) -> float:
        """Time of a release in seconds, or infinity where the ring deadlocks."""
        try:
            return self._least(resident, ring_extents, 0)[0]
        except RingTooSmall:
            return NEVER

    def call_s(self, resident: Set[int], ring_extents: int) -> float:
        """Time of the longest job of a release, that is of one arena. Raises RingTooSmall."""
        return self._least(resident, ring_extents, 1)[0]

    def layers_s(self, resident: Set[int], ring_extents: int) -> tuple[float, ...]:
        """The layer times with which a release has the time of `total_s`. Raises RingTooSmall."""
        return self._least(resident, ring_extents, 0)[1]

    def _least(
        self, resident: Set[int], ring_extents: int, figure: int
    ) -> tuple[float, tuple[float, ...]]:
        return min(
            (self._run(resident, ring_extents, times)[figure] + more_s, times)
            for times, more_s in self.spreads
        )

    def _run(
        self,
        resident: Set[int],
        ring_extents: int,
        compute_s: tuple[float, ...],
    ) -> tuple[float, float]:
        """Times of a release and of its longest job."""
        layout = self.layout
        copy_s, late_s, last_layer = self.copy_s, self.late_s, layout.last_layer
        link_of = self.link_of_extent
        pinned = layout.pinned_extents
        held = resident if resident >= pinned else {*resident, *pinned}
        if not layout.layer_count:
            seconds = sum(compute_s)
            return seconds, seconds
        end = ready = begun = longest = 0.0
        again = 0
        ends: list[float] = []
        stream: list[int] = []
        clock = [0.0] * self.link_count
        for layer, compute in enumerate(compute_s):
            if self.arena_starts[layer]:
                longest = max(longest, end - begun)
                end += again * (end - begun)
                again = self._again[layout.layer_arena[layer]]
                stream = []
                begun = ready = end
                clock = [end + self.start_delay_s] * self.link_count
            for extent in self.new_extents[layer]:
                if extent in held:
                    continue
                link = link_of[extent]
                begin = clock[link]
                slot = len(stream) - ring_extents
                if slot >= 0:
                    reader = last_layer[stream[slot]] if ring_extents else layer
                    if reader >= layer:
                        raise RingTooSmall(layer, self.span(layer, resident), ring_extents)
                    # Not max(): a call here would double the time of the planner's inner loop.
                    begin = begin if begin > ends[reader] else ends[reader]
                clock[link] = copied = begin + copy_s[extent]
                copied += late_s[extent]
                ready = ready if ready > copied else copied
                stream.append(extent)
            end = ready if ready > end else end
            end += compute
            ends.append(end)
        return end + again * (end - begun), max(longest, end - begun)

    def span(self, layer: int, resident: Set[int]) -> int:
        """Extents that a layer streams at once."""
        held = self.layout.pinned_extents
        read = range(self.layout.first_extent[layer], self.layout.last_extent[layer] + 1)
        return sum(1 for extent in read if extent not in resident and extent not in held)
