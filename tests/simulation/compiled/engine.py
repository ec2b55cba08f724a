"""The product's simulator (operator/tierline_operator/simulation), compiled: 10^6 runs in minutes.

The same mechanism step by step, over tables instead of objects, by numba; so there is one truth:
tests/unit/simulation/test_compiled.py plays random sets on both with the same draws and wants the
same completion times, bit for bit. Change device.py first, then this.

The lease policy is written out (earliest deadline first, best effort last, ties by arrival), as
nothing of Python can be called from here; the same test compares with the agent's own code.
Invariant: at most one event of the device and one of each link is outstanding, so there is no heap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numba
import numpy as np
from tests.simulation.compiled.draws import FIRST, SECOND, STEP, UNIT
from tests.simulation.compiled.records import JOB, LINK, RUN
from tests.simulation.compiled.tables import (
    LAYER_PREEMPTIVE,
    NON_PREEMPTIVE,
    RING_KEEPING,
    Table,
    Tables,
)

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """The function, compiled when it is first called and kept on disk."""
    ready: Any = numba.njit(cache=True, nogil=True)(function)
    return ready


def inlined(function: _F) -> _F:
    """The same, written out where it is called: passing tables costs more than most calls do."""
    ready: Any = numba.njit(inline="always")(function)
    return ready


TOLERANCE_S: Final = 2e-9
INSTANT_S: Final = 1e-9
JOBS: Final = 128
"""Jobs that may be alive at once; more end the run (sets that are not admitted only)."""
OUT_OF_JOBS: Final = 1
DEADLOCK: Final = 2

GATE, DISPATCH, LAYER = 0, 1, 2
ARRIVALS, LAYERS, COPIES, LINKS = 0, 1, 2, 3
NOBODY: Final = -1
FOREIGN: Final = -1
DEVICE: Final = -1
NOTHING: Final = -2
_BEST_EFFORT: Final = 1e300


class State(NamedTuple):
    """All that changes in a run. Tables of one row are records that functions may change."""

    run: Table
    jobs: Table
    links: Table
    rings: Table
    """The job with extents in each domain's ring."""
    arrived: Table
    """By job and position of its stream."""
    nexts: Table
    """By job and link: how far into its queue."""
    due: Table
    legal: Table
    draws: Table
    shares: Table


_STEP, _FIRST, _SECOND = np.uint64(STEP), np.uint64(FIRST), np.uint64(SECOND)
_11, _27, _30, _31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)


@inlined
def _draw(state: State, stream: int) -> float:
    state.draws[stream] += _STEP
    mixed = state.draws[stream]
    mixed = (mixed ^ (mixed >> _30)) * _FIRST
    mixed = (mixed ^ (mixed >> _27)) * _SECOND
    return float((mixed ^ (mixed >> _31)) >> _11) * UNIT


@inlined
def _share(state: State, stream: int, least: float, hold: float) -> float:
    if least >= 1.0:
        return 1.0
    if _draw(state, stream) >= hold:
        state.shares[stream] = least + (1.0 - least) * _draw(state, stream)
    return float(state.shares[stream])


@inlined
def _order(state: State) -> int:
    """Rises with each event and job: what comes first among equals."""
    state.run[0].count += 1
    return int(state.run[0].count)


@inlined
def _new_epoch(state: State, slot: int) -> None:
    state.run[0].epochs += 1
    state.jobs[slot].epoch = state.run[0].epochs


@inlined
def _open(state: State, slot: int) -> None:
    """The next part of a job, from its first layer, with an empty ring."""
    job = state.jobs[slot]
    job.layer = job.published = job.consumed = 0
    _new_epoch(state, slot)
    state.nexts[slot, :] = 0
    state.arrived[slot, :] = 0


@inlined
def _part(tables: Tables, state: State, slot: int) -> int:
    job = state.jobs[slot]
    return int(tables.tasks[job.task].first_part + job.part)


@inlined
def _lose_ring(tables: Tables, state: State, slot: int, seen: Any) -> None:
    job = state.jobs[slot]
    domain = tables.tasks[job.task].domain
    if state.rings[domain] == slot:
        state.rings[domain] = NOBODY
    if job.published > job.consumed:
        seen.rings_lost += 1
    _new_epoch(state, slot)
    job.published = job.consumed
    state.arrived[slot, job.consumed :] = 0
    part = _part(tables, state, slot)
    for link in range(state.links.shape[0]):
        at, end = tables.queues[part, link]
        while at < end and tables.positions[at] < job.consumed:
            at += 1
        state.nexts[slot, link] = at - tables.queues[part, link, 0]


@inlined
def _occupy_links(tables: Tables, state: State, attack: Any, displaces: bool) -> None:
    longest_s = 0.0
    for number in range(state.links.shape[0]):
        link = state.links[number]
        link.taken = 0
        if link.at < math.inf or tables.foreign_s[number] == 0.0:
            continue
        if attack.busy >= 1.0 or _draw(state, LINKS) < attack.busy:
            link.taken = 1
            longest_s = max(longest_s, tables.foreign_s[number])
    if longest_s == 0.0:
        return
    for number in range(state.links.shape[0]):
        link = state.links[number]
        if link.at < math.inf or not (link.taken or (displaces and tables.foreign_s[number] > 0.0)):
            continue
        link.order = _order(state)
        link.at = state.run[0].now + (longest_s if displaces else tables.foreign_s[number])
        link.position = FOREIGN


@inlined
def _urgency(job: Any) -> float:
    """The absolute deadline in whole nanoseconds; then best effort, and first jobs last."""
    if job.starts:
        return math.inf
    return min(_BEST_EFFORT, float(np.rint(job.deadline_s * 1e9)))


@inlined
def _first(state: State) -> int:
    best = NOBODY
    for slot in range(state.run[0].slots):
        job = state.jobs[slot]
        if not job.waiting:
            continue
        if best == NOBODY:
            best = slot
            continue
        mine, least = _urgency(job), _urgency(state.jobs[best])
        if mine < least or (mine == least and job.key < state.jobs[best].key):
            best = slot
    return best


@inlined
def _waits(tables: Tables, state: State, slot: int) -> bool:
    job = state.jobs[slot]
    layer = tables.parts[_part(tables, state, slot)].first_layer + job.layer
    return bool(job.published < tables.layers[layer].needs)


@inlined
def _yields(tables: Tables, state: State, slot: int) -> bool:
    holder = state.jobs[slot]
    preempts = tables.device[0].scheduling != NON_PREEMPTIVE
    if not preempts or not tables.tasks[holder.task].preemptible:
        return False
    if tables.device[0].yields_while_waiting == 0 and (holder.stood or _waits(tables, state, slot)):
        return False
    mine = _urgency(holder)
    for other in range(state.run[0].slots):
        if state.jobs[other].waiting and _urgency(state.jobs[other]) < mine:
            return True
    return False


@inlined
def _take(tables: Tables, state: State, attack: Any) -> None:
    """Make the jobs that have arrived."""
    run, due = state.run[0], state.due
    for number in range(tables.tasks.shape[0]):
        while due[number] <= run.now:
            task = tables.tasks[number]
            may = due[number] + task.period_s
            if run.late_second == number:
                may += 2 * INSTANT_S
                run.late_second = NOBODY
            then = may
            if attack.sporadic > 0 and _draw(state, ARRIVALS) < 0.5:
                then += attack.sporadic * task.period_s * _draw(state, ARRIVALS)
            state.legal[number] = may
            due[number] = then if then < attack.until_s else math.inf
            slot = 0
            while slot < JOBS and state.jobs[slot].alive:
                slot += 1
            if slot == JOBS:
                run.failed = OUT_OF_JOBS
                return
            run.slots = max(run.slots, slot + 1)
            job = state.jobs[slot]
            job.task, job.key, job.arrival_s = number, _order(state), run.now
            job.deadline_s = run.now + task.deadline_s
            job.part, job.waiting, job.alive = 0, 1, 1
            job.begun = job.stood = 0
            job.starts = task.starts
            job.opens_s = 0.0
            _open(state, slot)


@inlined
def _provoked(state: State, by: int) -> None:
    now = state.run[0].now
    for number in range(state.due.shape[0]):
        held_back = state.legal[number] <= now < state.due[number] < math.inf
        if number != by and held_back and _draw(state, ARRIVALS) < 0.7:
            state.due[number] = now + INSTANT_S


@inlined
def _begin(tables: Tables, state: State, attack: Any, seen: Any) -> None:
    """The holder's dispatch has ended: it takes the ring if it streams."""
    slot = state.run[0].holder
    state.run[0].phase = GATE
    task = tables.tasks[state.jobs[slot].task]
    before = state.rings[task.domain]
    if not task.streams or before == slot:
        return
    if before != NOBODY:
        _lose_ring(tables, state, before, seen)
    state.rings[task.domain] = slot
    state.jobs[slot].opens_s = 0.0
    for number in range(state.links.shape[0]):
        link = state.links[number]
        if link.position != FOREIGN and link.at < math.inf:
            state.jobs[slot].opens_s = max(state.jobs[slot].opens_s, link.at)
    _occupy_links(tables, state, attack, state.jobs[slot].begun == 0)
    state.jobs[slot].begun = 1


@inlined
def _arrive(tables: Tables, state: State, number: int) -> None:
    link = state.links[number]
    link.at = math.inf
    if link.position == FOREIGN or state.jobs[link.job].epoch != link.epoch:
        return
    job = state.jobs[link.job]
    state.arrived[link.job, link.position] = 1
    streamed = tables.parts[_part(tables, state, link.job)].extents
    while job.published < streamed and state.arrived[link.job, job.published]:
        job.published += 1


@inlined
def _end_layer(
    tables: Tables, state: State, attack: Any, seen: Any, worst_s: Table, finished: Table
) -> None:
    run = state.run[0]
    run.phase = GATE
    slot = run.holder
    job = state.jobs[slot]
    task = tables.tasks[job.task]
    part = tables.parts[_part(tables, state, slot)]
    job.consumed = max(job.consumed, tables.layers[part.first_layer + job.layer].frees)
    job.layer += 1
    job.stood = 0
    if job.layer < part.layers:
        return
    job.part += 1
    _open(state, slot)
    run.holder = NOBODY
    if job.part < task.parts:
        if state.rings[task.domain] == slot:
            state.rings[task.domain] = NOBODY
        job.begun = 0
        job.waiting = 1
        return
    job.alive = 0
    if state.rings[task.domain] == slot:
        state.rings[task.domain] = NOBODY
    if seen.jobs < finished.shape[0]:
        finished[seen.jobs, 0], finished[seen.jobs, 1] = job.task, run.now
    seen.jobs += 1
    worst_s[job.task] = max(worst_s[job.task], run.now - job.arrival_s)
    if job.deadline_s < math.inf:
        seen.latest_s = max(seen.latest_s, run.now - job.deadline_s)
        seen.misses += run.now - job.deadline_s > TOLERANCE_S


@inlined
def _start_layer(tables: Tables, state: State, attack: Any, seen: Any) -> None:
    run = state.run[0]
    job = state.jobs[run.holder]
    if _waits(tables, state, run.holder):
        return
    part = tables.parts[_part(tables, state, run.holder)]
    layer = tables.layers[part.first_layer + job.layer]
    run.phase = LAYER
    spent = layer.compute_s * _share(state, LAYERS, attack.layer_least, attack.hold)
    seen.busy_s += spent
    longest = job.layer == part.layers - 1 or layer.compute_s >= part.longest_s
    if attack.adaptive and longest:
        _provoked(state, job.task)
    run.order = _order(state)
    run.at = run.now + spent


@inlined
def _settle(tables: Tables, state: State, attack: Any, seen: Any) -> None:
    """Dispatch, yield and begin a layer, until the device is busy or waits."""
    run = state.run[0]
    while True:
        if run.holder == NOBODY:
            run.holder = _first(state)
            if run.holder == NOBODY:
                return
            state.jobs[run.holder].waiting = 0
            if tables.device[0].dispatch_s > 0:
                run.phase = DISPATCH
                run.order = _order(state)
                run.at = run.now + tables.device[0].dispatch_s
            else:
                _begin(tables, state, attack, seen)
        if run.phase != GATE:
            return
        slot = run.holder
        if not _yields(tables, state, slot):
            _start_layer(tables, state, attack, seen)
            return
        seen.preemptions += 1
        state.jobs[slot].waiting = state.jobs[slot].stood = 1
        run.holder = NOBODY
        if tables.device[0].scheduling == LAYER_PREEMPTIVE:
            _lose_ring(tables, state, slot, seen)


@inlined
def _copies_for(tables: Tables, state: State) -> int:
    """Which stream goes on: the holder's, or with a resident holder that of the ring's owner."""
    run = state.run[0]
    if run.holder != NOBODY and tables.tasks[state.jobs[run.holder].task].streams:
        return NOBODY if run.phase == DISPATCH else int(run.holder)
    best = NOBODY
    if tables.device[0].scheduling != RING_KEEPING:
        return best
    for slot in state.rings:
        if slot == NOBODY:
            continue
        if best == NOBODY:
            best = slot
            continue
        mine, least = state.jobs[slot].deadline_s, state.jobs[best].deadline_s
        if mine < least or (mine == least and state.jobs[slot].key < state.jobs[best].key):
            best = slot
    return int(best)


@inlined
def _start_copies(tables: Tables, state: State, attack: Any) -> None:
    owner = _copies_for(tables, state)
    if owner == NOBODY:
        return
    job = state.jobs[owner]
    if state.run[0].now < job.opens_s:
        return
    part = _part(tables, state, owner)
    for number in range(state.links.shape[0]):
        link = state.links[number]
        at = tables.queues[part, number, 0] + state.nexts[owner, number]
        if link.at < math.inf or at == tables.queues[part, number, 1]:
            continue
        position = tables.positions[at]
        if position - job.consumed >= tables.tasks[job.task].ring:
            continue
        state.nexts[owner, number] += 1
        spent = tables.copy_s[tables.parts[part].first_extent + position]
        spent *= _share(state, COPIES, attack.copy_least, attack.hold)
        link.order = _order(state)
        link.at = state.run[0].now + spent
        link.job, link.position, link.epoch = owner, position, job.epoch


@inlined
def _next_event(state: State) -> int:
    """The earliest outstanding event: a link, DEVICE, or NOTHING."""
    run = state.run[0]
    which, when, order = NOTHING, math.inf, 0
    if run.at < math.inf:
        which, when, order = DEVICE, run.at, run.order
    for number in range(state.links.shape[0]):
        link = state.links[number]
        if link.at < when or (link.at == when < math.inf and link.order < order):
            which, when, order = number, link.at, link.order
    return which


@inlined
def _time_of(state: State, which: int) -> float:
    if which == NOTHING:
        return math.inf
    return float(state.run[0].at if which == DEVICE else state.links[which].at)


@compiled
def play_one(
    tables: Tables, state: State, attack: Any, seen: Any, worst_s: Table, finished: Table
) -> None:
    """One run. `worst_s` gets each task's longest response, `finished` as many jobs as fit."""
    run = state.run[0]
    seen.latest_s = -math.inf
    while not run.failed:
        run.now = min(state.due.min(), _time_of(state, _next_event(state)))
        if run.now == math.inf:
            if run.holder != NOBODY:
                run.failed = DEADLOCK
            break
        seen.end_s = run.now
        while True:
            which = _next_event(state)
            if _time_of(state, which) > run.now:
                break
            if which == NOTHING:
                break
            if which != DEVICE:
                _arrive(tables, state, which)
                continue
            run.at = math.inf
            if run.phase == DISPATCH:
                _begin(tables, state, attack, seen)
            else:
                _end_layer(tables, state, attack, seen, worst_s, finished)
        _take(tables, state, attack)
        _settle(tables, state, attack, seen)
        _start_copies(tables, state, attack)
    seen.failed = run.failed


@inlined
def _fresh(tables: Tables, attack: Any, first_s: Table, draws: Table) -> State:
    count = tables.foreign_s.shape[0]
    links = np.zeros(count, LINK)
    links["at"][:] = math.inf
    due = first_s.copy()
    for number in range(due.shape[0]):
        if due[number] >= attack.until_s:
            due[number] = math.inf
    runs = np.zeros(1, RUN)
    runs[0].at, runs[0].holder, runs[0].late_second = math.inf, NOBODY, attack.delayed
    return State(
        runs,
        np.zeros(JOBS, JOB),
        links,
        np.full(tables.device[0].domains, NOBODY, np.int64),
        np.zeros((JOBS, tables.device[0].widest + 1), np.uint8),
        np.zeros((JOBS, count), np.int64),
        due,
        first_s.copy(),
        draws,
        np.ones(4),
    )


@compiled
def play_many(
    tables: Tables,
    attacks: Table,
    firsts_s: Table,
    draws: Table,
    seen: Table,
    worst_s: Table,
    finished: Table,
) -> None:
    """A run for each row of `attacks`; `finished` records the first run only."""
    nothing = finished[:0]
    for number in range(attacks.shape[0]):
        state = _fresh(tables, attacks[number], firsts_s[number], draws[number])
        record = finished if number == 0 else nothing
        play_one(tables, state, attacks[number], seen[number], worst_s[number], record)
