"""Well-formed messages in an order, with numbers or in an amount that no library sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import (
    EXTENT,
    FOR_EVER,
    NO_ARENA,
    RESIDENT,
    Wire,
    frame,
)

_MOST = (1 << 64) - 1
_MOST_32 = (1 << 32) - 1
_HUGE = (0x7FFFFFFF, 0xFFFFFFFF)
_DIGEST = b"x" * 32
Step = tuple[str, dict[str, Any]]


def _says(name: str, **values: Any) -> Step:
    return name, values


def _begin(job: int = 1, arena: int = NO_ARENA, **values: Any) -> Step:
    return _says("JobBegin", **{"job": job, "arena": arena, "deadline_ns": FOR_EVER, **values})


def _end(job: int = 1, **values: Any) -> Step:
    return _says("JobEnd", job=job, **values)


def _reserve(extents: int = 1, arena: int = 0, **values: Any) -> Step:
    sizes = {"weight_bytes": extents * EXTENT, "largest_span_extents": 1}
    return _says("Reserve", arena=arena, **{**sizes, **values})


def _does(name: str, *steps: Step, load: int = 0, together: bool = False) -> Behaviour:
    """Send these after a load of so many extents; each waits for a GRANT, unless `together`."""

    def run(target: Target) -> None:
        wire = Wire(target)
        if load:
            wire.load(load)
        if together:
            wire.send_bytes(b"".join(frame(n, 9 + k, **v) for k, (n, v) in enumerate(steps)))
        for step, values in () if together else steps:
            wire.send(step, **values)
            if step == "JobBegin":
                wire.until("Grant", "Error")
        wire.settle()

    return f"{name}{' at once' * together}", run


def sequences() -> Iterator[Behaviour]:
    """All of them."""
    yield from _loading()
    yield from _jobs()
    yield from _reports()
    yield from _workspaces()
    yield from _offers()


def _loading() -> Iterator[Behaviour]:
    for size in (16 * EXTENT + 1, 17 * EXTENT, 1 << 40, FOR_EVER, _MOST, (1 << 64) - EXTENT):
        yield _does(f"RESERVE {size} bytes", _reserve(weight_bytes=size))
    for pinned in (5 * EXTENT, 2 * EXTENT + 1, _MOST):
        yield _does(f"RESERVE pins {pinned}", _reserve(2, pinned_bytes=pinned))
    for span in (0, 6, 17, *_HUGE):
        yield _does(f"RESERVE span {span}", _reserve(16, largest_span_extents=span))
    for arena in (1, 15):
        yield _does(f"RESERVE arena {arena} first", _reserve(arena=arena))
    yield _does("RESERVE twice", _reserve(), _reserve(), together=True)
    yield _does("16 arenas", *[_reserve(arena=arena) for arena in range(16)], together=True)
    yield _does("arenas beyond the plan", _reserve(16), _reserve(arena=1), together=True)
    yield _does("RESERVE, FREE", *[_reserve(16), _says("Free")] * 200, together=True)
    for extents in range(1, 15):
        steps = _reserve(extents), _says("Free"), _reserve(15 - extents)
        yield _does(f"RESERVE {extents}, FREE, RESERVE", *steps, together=True)
    yield _does("FREE first", _says("Free"))
    yield _does("FREE twice", _reserve(), _says("Free"), _says("Free"), together=True)
    yield _does("STORE first", _says("Store", length=1))
    for extent in (4, 5, *_HUGE):
        yield _does(f"STORE {extent}", _reserve(4), _says("Store", extent=extent, length=1))
        yield _does(f"FETCH {extent}", _says("Fetch", extent=extent), load=4)
    for slot in (4, 63):
        yield _does(f"STORE in {slot}", _reserve(4), _says("Store", staging_slot=slot, length=1))
        yield _does(f"FETCH in {slot}", _says("Fetch", staging_slot=slot), load=4)
    for length in (EXTENT + 1, 1 << 30):
        yield _does(f"STORE {length} bytes", _reserve(4), _says("Store", length=length))
    last = _says("Store", extent=1, length=6)
    yield _does("STORE too much", _reserve(weight_bytes=EXTENT + 5), last)
    yield _does("STORE after SEAL", _says("Store", length=EXTENT), load=4)
    yield _does("SEAL first", _says("Seal"))
    yield _does("SEAL of nothing", _reserve(4), _says("Seal"))
    yield _does("SEAL twice", _says("Seal"), load=4)
    for following in ("Seal", "Free"):
        steps = _reserve(), _says("Store", length=EXTENT), _says(following)
        yield _does(f"STORE, {following}", *steps, together=True)
    for count, first, end in ((1, 0, 4), (1, 0, _HUGE[1]), (1, 3, 0), (8000, 0, 3), (8000, 3, 0)):
        yield f"SEAL {count} layers {first}-{end}", _seals(count, first, end)
    yield _does("FREE, JOB_BEGIN", _says("Free"), _begin(arena=0), load=4, together=True)
    yield _does("FETCH first", _says("Fetch"))
    fetches = [_says("Fetch", extent=number % 4) for number in range(500)]
    yield _does("FETCH", *fetches, load=4, together=True)
    yield _does("FETCH, FREE", *fetches[:10], _says("Free"), load=4, together=True)


def _seals(count: int, first: int, end: int) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        wire.load(4, seal=False)
        wire.send("Seal", items=[{"first_extent": first, "last_extent": end}] * count)
        wire.settle()

    return run


def _jobs() -> Iterator[Behaviour]:
    yield _does("JOB_BEGIN, FREE", _begin(arena=0), _says("Free"), load=4, together=True)
    for arena in (3, 16, 1 << 31):
        yield _does(f"JOB_BEGIN of arena {arena}", _begin(arena=arena))
    yield _does("JOB_BEGIN before SEAL", _reserve(), _begin(arena=0), together=True)
    yield _does("JOB_BEGIN twice", _begin(1), _begin(2), together=True)
    yield _does("JOB_BEGIN of job 0", _begin(0))
    yield _does("due before its release", _begin(release_ns=5, deadline_ns=4))
    most = {"release_ns": _MOST, "deadline_ns": _MOST}
    names = ("end_ns", "workspace_peak_bytes", "stall_ns", "fetched_bytes")
    sums = dict.fromkeys(names, _MOST)
    yield _does("all numbers most", _begin(_MOST, **most), _end(_MOST, **sums))
    yield _does("all numbers 0", _begin(deadline_ns=0), _end())
    yield _does("JOB_END first", _end())
    yield _does("JOB_END of another", _begin(1), _end(2))
    yield _does("JOB_END twice", _begin(), _end(), _end())
    yield _does("JOB_BEGIN, JOB_END", _begin(arena=0), _end(), load=4, together=True)
    for arena in (0, NO_ARENA):
        jobs = [step for job in range(1, 300) for step in (_begin(job, arena), _end(job))]
        yield _does(f"300 jobs of arena {arena}", *jobs, load=4, together=True)
    warm = {"flags": 1, "deadline_ns": 0}
    jobs = [
        step
        for job in range(1, 30)
        for step in (_begin(job, **warm), _end(job, workspace_peak_bytes=1 << 63))
    ]
    yield _does("WARMUP jobs", *jobs, together=True)
    rewind, free = _says("Rewind", job=1), _says("Free")
    give_away = _says("Yield", job=1, arena=0)
    yield _does("REWIND first", rewind)
    yield _does("REWIND without an arena", _begin(), rewind)
    for following in (rewind, _end(), free, give_away, _begin(2)):
        name = following[0]
        yield _does(f"REWIND, {name}", _begin(arena=0), rewind, following, load=16)
        yield f"REWIND, {name} in a job at once", _in_a_job(rewind, following)
    yield _does("REWIND 20 times", _begin(arena=0), *[rewind] * 20, load=16)
    for position, consumed in (
        (9, 0),
        (9, 8),
        (9, 12),
        (9, _MOST_32),
        (16, 15),
        (_MOST_32, _MOST_32),
    ):
        later = _says("Rewind", job=1, arena=0, position=position, consumed=consumed)
        name = f"REWIND to {position} with {consumed} consumed"
        yield _does(name, _begin(arena=0), later, later, _end(), load=16)
        yield f"{name} in a job at once", _in_a_job(later, rewind, later)
    yield _does("YIELD first", give_away)
    yield _does("YIELD unasked", _begin(arena=0), give_away, load=8)
    for flags in (0, 1):
        yield _does("JOB_TAKEN", _says("JobTaken", job=1, arena=NO_ARENA, flags=flags))
    yield _does("JOB_RETURNED", _says("JobReturned", job=1))
    yield _does("JOB_RETURNED of a granted job", _begin(), _says("JobReturned", job=1))
    yield _does("JOB_HELD", _says("JobHeld", job=1))
    yield _does("ACK", _says("Ack", job=1))
    yield _does("ACK in a job", _begin(), _says("Ack", job=1), _end())


def _in_a_job(*steps: Step) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        wire.load(16)
        wire.job()
        wire.send_bytes(b"".join(frame(n, 9 + k, **v) for k, (n, v) in enumerate(steps)))
        wire.settle()

    return run


def _reports() -> Iterator[Behaviour]:
    yield _does("READY twice", _says("Ready"), _says("Ready"))
    outputs = [_says("Output", job=job, output_digest=b"y") for job in range(1, 200)]
    yield _does("OUTPUT of no job", *outputs, together=True)
    again = [_says("Output", job=1, output_digest=bytes([k])) for k in range(50)]
    yield _does("OUTPUT 50 times", _begin(), _end(), *again)
    yield _does("ERROR", *[_says("Error", code=1, reason="x" * 200)] * 500, together=True)
    for kind in range(1, 6):
        yield _does(f"NOTICE {kind}", _says("Notice", kind=kind, size_bytes=_MOST, text="x"))
    forged = "a\n2026-01-01 00:00:00 ERROR tierline_agent: forged\x1b[2J"
    yield _does("NOTICE with a line of its own", _says("Notice", kind=3, text=forged))
    notices = [_says("Notice", kind=3, text="x" * 190)] * 2000
    yield _does("NOTICE 2000 times", *notices, together=True)
    yield _does("PROFILE of no arena", _says("Profile", total_layers=1))
    for first, total in ((0xFFFFFFFF, 1), (1, 0xFFFFFFFF), (65536, 65536), (65537, 65537)):
        layers = _says("Profile", first_layer=first, total_layers=total)
        yield _does(f"PROFILE {first} of {total}", layers, load=4)
    layers = _says("Profile", total_layers=65536, items=[{"name": b"n" * 60}] * 500)
    yield _does("PROFILE of 65536 layers", *[layers] * 100, load=4, together=True)


def _workspaces() -> Iterator[Behaviour]:
    for size in (0, 1, EXTENT, 4 * EXTENT + 1, FOR_EVER, _MOST):
        for flags in (0, 1):
            asked = _says("Workspace", workspace_bytes=size, flags=flags)
            yield _does(f"WORKSPACE of {size}, flags {flags}", asked)
    asked = _says("Workspace", workspace_bytes=EXTENT, flags=1)
    yield _does("WORKSPACE twice", asked, asked, together=True)
    ended = _end(workspace_peak_bytes=_MOST)
    yield _does("WORKSPACE used beyond its end", asked, _begin(), ended, _begin(2), _end(2))
    yield _does("WORKSPACE, JOB_BEGIN", asked, _begin(), _end(), together=True)


def _offers() -> Iterator[Behaviour]:
    def digests(count: int, arena: int = 0, **values: Any) -> Step:
        return _says("Digests", arena=arena, items=[_DIGEST] * count, **values)

    def attach(extents: int, placement: list[int], ring: int = 0, **values: Any) -> Step:
        sizes = {"weight_bytes": extents * EXTENT, "ring_slots": ring}
        return _says("Attach", items=placement, **{**sizes, **values})

    flood = [digests(2040, first=k * 2040) for k in range(40)]
    yield _does("DIGESTS beyond all bounds", *flood, together=True)
    yield _does("DIGESTS out of order", digests(1, first=5))
    yield _does("DIGESTS of 16 arenas", *[digests(2000, arena) for arena in range(16)])
    yield _does("ATTACH without digests", attach(1, [0], 1))
    yield _does("ATTACH placed oddly", digests(2), attach(2, [7, 9], 1))
    yield _does(
        "ATTACH too many residents", digests(6), attach(6, [RESIDENT + k for k in range(6)])
    )
    for ring in (0, 1 << 31):
        yield _does(f"ATTACH with a ring of {ring}", digests(1), attach(1, [0], ring))
    yield _does("ATTACH 16370 extents", attach(16370, [0] * 16370, 1))
    yield _does("ATTACH twice", digests(1), attach(1, [0], 1), attach(1, [0], 1, arena=1))
    yield _does("ATTACH with a job", digests(1), attach(1, [0], 1, running_job=3))
    for extents in (9, 0xFFFFFFFF):
        for size in (EXTENT, extents * EXTENT):
            offer = _says("WorkspaceReturn", workspace_bytes=size, extent_count=extents, flags=1)
            yield _does(f"WORKSPACE_RETURN of {size} in {extents}", offer)
