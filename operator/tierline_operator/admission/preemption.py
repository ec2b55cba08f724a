"""Costs and sections of jobs that may be preempted where a layer ends.

Theorem (limited preemption with fixed points: Baruah, ECRTS 2005; Bertogna, Baruah, IEEE TII 6(4),
2010; blocking by the longest segment is machine-checked in Prosa, `limited_preemptive.v`; the
charges are P6 and P7 of the realtime theory notes). A set holds under EDF that preempts at layer
boundaries and while a job waits for data, if the demand test of demand.py accepts with

    C_i' = C_i + gamma_i     gamma_i = max{ penalty_j + resume : j preemptible, D_j > D_i }
    q_j  = the longest time until j yields if it is preemptible, else C_j'.

That time is its longest layer; where a job that waits for data cannot be preempted (a GPU's
stream), it is the longest from one gate to the next, waits included (planning/waits.py).

A job preempts at most one other, when it first gets the device, and only one with a longer relative
deadline; so what a preemption costs is charged once, to the job that causes it. `penalty_j` is what
the preempted job does again (planning/restart.py), `resume` what handing the device back takes.

Ring-keeping rule (P7): a *fully resident* job that preempts leaves the ring alone and the copies go
on, so it costs the preempted job nothing but the way back: gamma_i = resume. A *partially* resident
one is not free (trap T3e): it takes the ring, however little it streams. Proof idea: time in a
window is the compute of its jobs plus the stalls of the one with the earliest deadline; compute of
a resident job only lets the interrupted pipeline advance; a ring is dropped only when a streamed
job with a shorter deadline takes over.

Memory (trap T13): what a preempted job computed so far stays parked, so the activations of *every*
preemptible task count, all at once, beside residents, ring and the largest workspace.

Soft tasks by their mean (derived here). Job j has its rank for a budget b_j, made of its mean, and
goes on without one: from its next gate on it runs when no job with a rank waits, and gives way to
any at every gate. So whatever its jobs really take, the others' deadlines hold if the test accepts
with C_j = b_j + q_j, and with q_j as blocking at every t: in a window each job of j has the device
with its rank, or on the way to the gate behind its budget, for no longer than C_j; without a rank
it is there only if its layer began before the window. What it does again after a preemption is
charged to the one that preempts it as long as it has its rank, and delays nobody but itself
afterwards. A job that keeps the device to its end cannot be held to a budget: it
counts with its worst, unless nobody's deadline on the device is hard.

Assumptions: those of demand.py; C_i contains what may be under way on the links (P3) when a
streamed job is dispatched, that of a stream which it displaces included, penalty_j the same of its
own links once more, and nothing else is copied while a job streams; a layer once begun
runs to its end; nothing runs in the stalls of the job with the earliest deadline (trap T15). Not
used: that a long layer comes late in its job (trap T11): with shorter layers before it, it comes
early. The test is sufficient and sustainable, not exact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Scheduling(StrEnum):
    """When a job gives the device away before it ends, and what the others lose by it."""

    NON_PREEMPTIVE = "non-preemptive"
    """Never. The demand test is exact."""
    LAYER_PREEMPTIVE = "layer-preemptive"
    """At layer boundaries, to an earlier deadline; whoever takes over takes the ring."""
    RING_KEEPING = "ring-keeping"
    """The same, but a fully resident job that takes over leaves the ring alone."""


@dataclass(frozen=True)
class PlannedJob:
    """One task as the charges see it, nanoseconds."""

    deadline_ns: int | None
    """None: it has none (BestEffort), so nobody owes it anything."""
    cost_ns: int
    """Demand of a job that is not preempted."""
    section_ns: int
    """A whole job at its worst: how long others wait if it cannot be preempted."""
    layer_ns: int
    """The longest time until it yields, dispatch included."""
    penalty_ns: int
    """What one preemption makes it do again."""
    streams: bool
    by_mean: bool = False
    """Whether `cost_ns` is not its worst, but what a Soft task is held to."""


def charge(
    jobs: Sequence[PlannedJob],
    preemptible: Collection[int],
    scheduling: Scheduling,
    resume_ns: int,
) -> tuple[list[int], list[int]]:
    """Costs C' and sections q of all jobs, for the demand test. `preemptible` holds indices."""
    costs: list[int] = []
    sections: list[int] = []
    victims = [
        (deadline, jobs[index].penalty_ns + resume_ns)
        for index in preemptible
        if (deadline := jobs[index].deadline_ns) is not None
    ]
    for index, job in enumerate(jobs):
        extra = 0
        own = job.deadline_ns
        if victims and own is not None:
            extra = max((lost for deadline, lost in victims if deadline > own), default=0)
            if extra and scheduling is Scheduling.RING_KEEPING and not job.streams:
                extra = resume_ns
        costs.append(job.cost_ns + extra)
        if index in preemptible:
            sections.append(min(job.layer_ns, job.section_ns))
        else:
            sections.append(job.section_ns + extra)
    return costs, sections
