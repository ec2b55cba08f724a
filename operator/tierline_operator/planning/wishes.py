"""Wishes of a task for some of its layers (`swap.objects`), in extents.

Layers lie in extents without gaps, so an object has every extent in which one of its bytes lies.
Where two objects meet in an extent, that is one thing only: resident if one of them is Resident or
weights lie in it that must be, and at home where the first object says that names a tier. An object
of which nothing is left that way is refused, like one that matches no weights, or contradicts
another one. So what a plan must fulfil is `extents` and `homed` of each wish, to the letter.

Pure. What no wish says, the planner decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from typing import Final

from tierline_api.layout import ArenaLayout
from tierline_api.objects.memprofile import Layer
from tierline_api.objects.swap import ObjectPolicy, SwapObject
from tierline_api.schema.quantities import size_for_people

MOST_RUNS: Final = 1000
"""A plan has at most 1024 runs of extents with one home."""
_NEAREST: Final = 3
_SHOWN: Final = 5


class WishError(ValueError):
    """An object cannot be had of these layers; the sentence names it, and the fix."""


@dataclass(frozen=True)
class Wish:
    """An object, in extents of its task."""

    name: str
    policy: ObjectPolicy | None
    """None: the plan decides."""
    tier: str | None
    """None: the plan decides."""
    size_bytes: int
    """Weights of its layers."""
    extents: frozenset[int]
    """All of them are resident, or none ever is."""
    homed: frozenset[int]
    """All of them have their home in its tier."""

    @property
    def kept(self) -> frozenset[int]:
        """Extents that are always resident."""
        return self.extents if self.policy is ObjectPolicy.RESIDENT else frozenset()

    @property
    def streamed(self) -> frozenset[int]:
        """Extents that never are."""
        return self.extents if self.policy is ObjectPolicy.STREAM else frozenset()

    @property
    def words(self) -> str:
        """Its wish in words, such as: to stream from pmem (12Mi)."""
        what = {ObjectPolicy.RESIDENT: "to stay resident", ObjectPolicy.STREAM: "to stream"}
        where = "" if self.tier is None else f" from {self.tier}"
        if self.policy is not ObjectPolicy.STREAM and self.tier is not None:
            where = f"{' and ' if self.policy else 'to '}live in {self.tier}"
        said = what[self.policy] if self.policy is not None else ""
        return f"{said}{where} ({size_for_people(self.size_bytes)})"


def wishes_of(
    objects: Sequence[SwapObject], layers: Sequence[Layer], layout: ArenaLayout
) -> tuple[Wish, ...]:
    """The wishes of a task with that profile, whose layers lie as `layout` says.

    Raises:
        WishError: an object matches no weights, contradicts another one, or can have no extent.
    """
    named = {
        one.name: [at for at, layer in enumerate(layers) if one.matches(layer.name)]
        for one in objects
    }
    for one in objects:
        _check_names(one, [layers[at] for at in named[one.name]], layers)
    _check_together(objects, named, layers)
    spans = _spans(layers, layout)
    reach = {
        one.name: frozenset(extent for at in named[one.name] for extent in spans[at])
        for one in objects
    }
    always = set(layout.pinned_extents)
    homes: dict[int, SwapObject] = {}
    for one in objects:
        if one.policy is ObjectPolicy.RESIDENT:
            always |= reach[one.name]
        for extent in sorted(reach[one.name]) if one.tier is not None else ():
            homes.setdefault(extent, one)
    _check_runs(homes, layout)
    found = []
    for one in objects:
        own = reach[one.name]
        streams = one.policy is ObjectPolicy.STREAM
        wish = Wish(
            one.name,
            one.policy,
            None if one.tier is None else one.tier.value,
            sum(layers[at].bytes for at in named[one.name]),
            frozenset() if one.policy is None else own - always if streams else own,
            frozenset(e for e in own if one.tier is not None and homes[e].tier is one.tier),
        )
        _check_left(wish, layout)
        found.append(wish)
    return tuple(found)


def misfit(wishes: Sequence[Wish], resident: frozenset[int], homes: Sequence[str]) -> str | None:
    """Which wish such a plan does not fulfil, as a clause; None if it fulfils all."""
    for wish in wishes:
        if not wish.kept <= resident:
            return f"the object {wish.name!r} is to stay resident, and the plan streams some of it"
        if wish.streamed & resident:
            return f"the object {wish.name!r} is to stream, and the plan keeps some of it resident"
        if any(homes[extent] != wish.tier for extent in wish.homed):
            return (
                f"the object {wish.name!r} is to live in {wish.tier}, and the plan has another home"
            )
    return None


def _check_names(one: SwapObject, meant: Sequence[Layer], layers: Sequence[Layer]) -> None:
    if not meant:
        raise WishError(f"the object {one.name!r} matches no layer; {_nearest(one.name, layers)}")
    if not any(layer.bytes for layer in meant):
        raise WishError(
            f"the object {one.name!r} matches {_listed([layer.name for layer in meant])}, which "
            "have no weights that no earlier layer reads; name the layer that reads them first"
        )
    pinned = [layer for layer in meant if layer.pinned and layer.bytes]
    if one.policy is ObjectPolicy.STREAM and pinned:
        size = size_for_people(sum(layer.bytes for layer in pinned))
        raise WishError(
            f"the object {one.name!r} cannot stream: {size} of it must stay resident "
            f"({_listed([layer.name for layer in pinned])}); name only layers that are not pinned"
        )


def _check_together(
    objects: Sequence[SwapObject], named: Mapping[str, Sequence[int]], layers: Sequence[Layer]
) -> None:
    policies: dict[int, SwapObject] = {}
    tiers: dict[int, SwapObject] = {}
    for one in objects:
        for at in named[one.name]:
            said = one if one.policy is None else policies.setdefault(at, one)
            if said.policy is not one.policy:
                raise _contradiction(said, one, layers[at], str(said.policy), str(one.policy))
            said = one if one.tier is None else tiers.setdefault(at, one)
            if said.tier is not one.tier:
                raise _contradiction(said, one, layers[at], str(said.tier), str(one.tier))


def _contradiction(a: SwapObject, b: SwapObject, layer: Layer, x: str, y: str) -> WishError:
    return WishError(
        f"the objects {a.name!r} and {b.name!r} contradict each other for the layer {layer.name}: "
        f"{x} and {y}; let only one of them match it"
    )


def _spans(layers: Sequence[Layer], layout: ArenaLayout) -> list[range]:
    """The extents of each layer of the profile."""
    at_base = [0] * layout.arena_count
    streamed = iter(zip(layout.first_extent, layout.last_extent, strict=True))
    spans = []
    for layer in layers:
        if layer.pinned:
            begin = at_base[layer.arena]
            at_base[layer.arena] = end = begin + layer.bytes
            base, size = layout.arena_first_extent[layer.arena], layout.extent_bytes
            last = (end - 1) // size if layer.bytes else begin // size - 1
            spans.append(range(base + begin // size, base + last + 1))
        else:
            first, last = next(streamed)
            spans.append(range(first, last + 1))
    return spans


def _check_runs(homes: Mapping[int, SwapObject], layout: ArenaLayout) -> None:
    changes = groupby(
        one.tier if (one := homes.get(extent)) is not None else None
        for extent in range(layout.extent_count)
    )
    runs = sum(1 for _ in changes)
    if runs > MOST_RUNS:
        raise WishError(
            f"the tiers of the objects change {runs} times from extent to extent, and a plan can "
            f"have {MOST_RUNS} such runs; name fewer layers, or more that follow each other"
        )


def _check_left(wish: Wish, layout: ArenaLayout) -> None:
    lost = "stream" if wish.policy is not None and not wish.extents else ""
    lost = lost or (f"live in {wish.tier}" if wish.tier is not None and not wish.homed else "")
    if lost:
        raise WishError(
            f"the object {wish.name!r} cannot {lost}: all of its {size_for_people(wish.size_bytes)}"
            f" share extents of {size_for_people(layout.extent_bytes)} with weights that another "
            "object, or pinning, has elsewhere; let one object have both, or make extents smaller"
        )


def _nearest(name: str, layers: Sequence[Layer]) -> str:
    known = list(dict.fromkeys(layer.name for layer in layers if not layer.pinned))
    plain = name.removesuffix(".*").replace("*", "").replace("?", "")[:64]
    close = get_close_matches(plain, known, n=_NEAREST, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"its profile has {_listed(known)}" if known else "no layer of its profile can be named"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
