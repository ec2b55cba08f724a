"""One small step with one plan for it that uses all that plans have, and each way to break it.

    forward   mul: w, x -> a        drop: a -> b, m (once, workspace)      loss: b -> y
    backward  noise: m -> n (once)  grad: a, n -> g (workspace)

The plan copies a to the host while `drop` reads it, and back into the bytes that b had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tierline_steps.graph import Graph, Operator, Role, Value
from tierline_steps.plan import Instance, Plan, Queue, Step

COMPUTE, D2H, H2D = Queue.COMPUTE, Queue.D2H, Queue.H2D
W, X, A, B, M, Y, N, G = range(8)
MUL, DROP, LOSS, NOISE, GRAD = range(5)

GRAPH = Graph(
    "small",
    (
        Value("w", 1024, Role.WEIGHT),
        Value("x", 512, Role.INPUT),
        Value("a", 1024, Role.ACTIVATION),
        Value("b", 1024, Role.ACTIVATION),
        Value("m", 512, Role.ACTIVATION),
        Value("y", 1, Role.RESULT),
        Value("n", 512, Role.ACTIVATION),
        Value("g", 1024, Role.GRADIENT),
    ),
    (
        Operator("mul", (W, X), (A,), 10),
        Operator("drop", (A,), (B, M), 20, workspace_bytes=512, repeatable=False),
        Operator("loss", (B,), (Y,), 30),
        Operator("noise", (M,), (N,), 40, repeatable=False),
        Operator("grad", (A, N), (G,), 50, workspace_bytes=512),
    ),
    backward=3,
)
P = 512
BACK = 8  # the second instance of a; the others have the numbers of their values
PLAN = Plan(
    GRAPH.digest,
    budget_bytes=8 * P + 3 * P,
    arena_bytes=8 * P,
    host_bytes=2 * P,
    instances=(
        Instance(W, None),
        Instance(X, None),
        Instance(A, 0),
        Instance(B, 2 * P),
        Instance(M, 4 * P),
        Instance(Y, 5 * P),
        Instance(N, 0),
        Instance(G, 6 * P),
        Instance(A, 2 * P),
    ),
    queues=(
        (
            Step((W, X), (A,), (), MUL),
            Step((A,), (B, M), (), DROP, workspace=5 * P),
            Step((B,), (Y,), (), LOSS),
            Step((M,), (N,), ((D2H, 0),), NOISE),
            Step((BACK, N), (G,), ((H2D, 0),), GRAD, workspace=P),
        ),
        (Step((A,), (), ((COMPUTE, 0),)),),
        (Step((), (BACK,), ((COMPUTE, 2), (D2H, 0))),),
    ),
)


@dataclass(frozen=True)
class Fault:
    """A plan that is wrong, and where it must be rejected with which reason."""

    plan: Plan
    at: tuple[Queue | None, int | None]
    reason: str
    graph: Graph = GRAPH


def step(queue: Queue, index: int, plan: Plan = PLAN, **fields: Any) -> Plan:
    """The plan with another step there."""
    steps = list(plan.queues[queue])
    steps[index] = replace(steps[index], **fields)
    return queued(plan, {queue: tuple(steps)})


def queued(plan: Plan, other: Mapping[Queue, tuple[Step, ...]]) -> Plan:
    """The plan with other queues."""
    compute, d2h, h2d = (other.get(queue, plan.queues[queue]) for queue in Queue)
    return replace(plan, queues=(compute, d2h, h2d))


def instance(index: int, plan: Plan = PLAN, **fields: Any) -> Plan:
    """The plan with another instance there."""
    instances = list(plan.instances)
    instances[index] = replace(instances[index], **fields)
    return replace(plan, instances=tuple(instances))


_MUL, _DROP, _LOSS, _NOISE, _GRAD = PLAN.queues[COMPUTE]
_NOWHERE = (None, None)
_NOISE_FIRST = queued(
    step(H2D, 0, waits=((COMPUTE, 3), (D2H, 0))), {COMPUTE: (_MUL, _DROP, _NOISE, _LOSS, _GRAD)}
)
_TWO_ONCE = replace(
    GRAPH,
    operators=tuple(
        replace(one, repeatable=one.repeatable and one.name != "loss") for one in GRAPH.operators
    ),
    backward=len(GRAPH.operators),
)
"""Nothing between forward and backward; loss and noise draw from one generator."""
_AND_COUNT = replace(GRAPH, operators=(*GRAPH.operators, Operator("count", (G,), (), 60)))
"""One more operator, which makes nothing."""
_ROOM = replace(PLAN, arena_bytes=10 * P, budget_bytes=13 * P)
_AGAIN = 9
"""The next instance."""


def with_instance(value: int, offset: int, plan: Plan = PLAN) -> Plan:
    """The plan with one more instance, the last."""
    return replace(plan, instances=(*plan.instances, Instance(value, offset)))


_REST = replace(
    _ROOM,
    instances=tuple(
        Instance(one.value, None if place is None else place * P)
        for one, place in zip(PLAN.instances, (None, None, 0, 6, 4, 2, 3, 5, 7), strict=True)
    ),
    queues=(
        (
            *(_MUL, _DROP, _LOSS, replace(_NOISE, waits=())),
            replace(_GRAD, reads=(A, N), waits=(), workspace=9 * P),
        ),
        PLAN.queues[D2H],
        (Step((), (BACK,), ((COMPUTE, 1), (D2H, 0))),),
    ),
)
"""g takes the workspace of drop and half of b, a copy the other half."""

FAULTS = {
    # It fits.
    "made for another graph": Fault(
        replace(PLAN, graph="0" * 64), _NOWHERE, "it was made for another graph"
    ),
    "budget a byte too small": Fault(
        replace(PLAN, budget_bytes=11 * P - 1), _NOWHERE, "take 5632 bytes of 5631"
    ),
    "instance of no value": Fault(instance(N, value=8), _NOWHERE, "instance 6: no value 8"),
    "instance of a value below 0": Fault(instance(N, value=-2), _NOWHERE, "no value -2"),
    "live-in value in the arena": Fault(instance(W, offset=0), _NOWHERE, "w is weight, at 0"),
    "activation without a place": Fault(
        instance(N, offset=None), _NOWHERE, "n is activation, at None"
    ),
    "instance not aligned": Fault(instance(N, offset=4), _NOWHERE, "n does not lie at 4"),
    "instance before the arena": Fault(instance(N, offset=-P), _NOWHERE, "n does not lie at -512"),
    "instance across the end": Fault(instance(G, offset=7 * P), _NOWHERE, "g does not lie at 3584"),
    "arena a byte too small": Fault(
        replace(PLAN, arena_bytes=8 * P - 1), _NOWHERE, "g does not lie at 3072"
    ),
    # What steps name exists.
    "no such instance read": Fault(
        step(COMPUTE, 2, reads=(9,)), (COMPUTE, 2), "there is no instance 9"
    ),
    "instance below 0 read": Fault(
        step(COMPUTE, 4, reads=(-1, N)), (COMPUTE, 4), "there is no instance -1"
    ),
    "no such instance written": Fault(
        step(H2D, 0, writes=(9,)), (H2D, 0), "there is no instance 9"
    ),
    "wait for its own queue": Fault(
        step(COMPUTE, 3, waits=((D2H, 0), (COMPUTE, 0))), (COMPUTE, 3), "waits for its own queue"
    ),
    "wait for one queue twice": Fault(
        step(COMPUTE, 3, waits=((D2H, 0), (D2H, 0))), (COMPUTE, 3), "or for one twice"
    ),
    "wait for a step after the last": Fault(
        step(COMPUTE, 4, waits=((H2D, 1),)), (COMPUTE, 4), "no h2d step 1 to wait for"
    ),
    "wait for a step before the first": Fault(
        step(COMPUTE, 4, waits=((H2D, 0), (D2H, -1))), (COMPUTE, 4), "no d2h step -1 to wait for"
    ),
    # It is the graph's program.
    "no operator": Fault(step(COMPUTE, 2, operator=None), (COMPUTE, 2), "no operator None"),
    "no such operator": Fault(step(COMPUTE, 2, operator=5), (COMPUTE, 2), "no operator 5"),
    "operator below 0": Fault(step(COMPUTE, 4, operator=-1), (COMPUTE, 4), "no operator -1"),
    "another value read": Fault(step(COMPUTE, 2, reads=(A,)), (COMPUTE, 2), "loss reads other"),
    "operands in another order": Fault(
        step(COMPUTE, 4, reads=(N, BACK)), (COMPUTE, 4), "grad reads other"
    ),
    "another value written": Fault(step(COMPUTE, 3, writes=(M,)), (COMPUTE, 3), "writes other"),
    "results in another order": Fault(
        step(COMPUTE, 1, writes=(M, B)), (COMPUTE, 1), "drop writes other"
    ),
    "no workspace": Fault(step(COMPUTE, 4, workspace=None), (COMPUTE, 4), "needs 512 bytes"),
    "needless workspace": Fault(step(COMPUTE, 2, workspace=0), (COMPUTE, 2), "needs 0 bytes"),
    "workspace not aligned": Fault(
        step(COMPUTE, 4, _ROOM, workspace=8 * P + 4), (COMPUTE, 4), "does not lie at 4100"
    ),
    "workspace across the end": Fault(
        step(COMPUTE, 4, _ROOM, workspace=10 * P), (COMPUTE, 4), "does not lie at 5120"
    ),
    "copy of nothing": Fault(step(D2H, 0, reads=()), (D2H, 0), "no copy of one instance"),
    "copy of two": Fault(step(D2H, 0, reads=(A, A)), (D2H, 0), "no copy of one instance"),
    "copy in both directions": Fault(
        step(D2H, 0, writes=(BACK,)), (D2H, 0), "no copy of one instance"
    ),
    "copy from the host that reads": Fault(
        step(H2D, 0, reads=(A,)), (H2D, 0), "no copy of one instance"
    ),
    "copy of a live-in value": Fault(
        queued(replace(PLAN, host_bytes=4 * P), {D2H: (*PLAN.queues[D2H], Step((W,), (), ()))}),
        (D2H, 1),
        "copies a live-in value",
    ),
    "copy that runs an operator": Fault(
        step(D2H, 0, operator=LOSS), (D2H, 0), "a copy runs no operator"
    ),
    "copy with a workspace": Fault(step(H2D, 0, workspace=0), (H2D, 0), "a copy runs no operator"),
    "backward before the forward": Fault(
        _NOISE_FIRST, (COMPUTE, 2), "noise runs before the forward is over"
    ),
    "random operator runs again": Fault(
        queued(
            with_instance(N, 8 * P, _ROOM),
            {COMPUTE: (_MUL, _DROP, _LOSS, _NOISE, replace(_NOISE, writes=(_AGAIN,)), _GRAD)},
        ),
        (COMPUTE, 4),
        "noise is not repeatable",
    ),
    "random operators in another order": Fault(
        replace(_NOISE_FIRST, graph=_TWO_ONCE.digest),
        (COMPUTE, 3),
        "loss is not repeatable",
        _TWO_ONCE,
    ),
    "operator never runs": Fault(
        replace(PLAN, graph=_AND_COUNT.digest), _NOWHERE, "count never runs", _AND_COUNT
    ),
    # It ends.
    "circle": Fault(step(COMPUTE, 0, waits=((H2D, 0),)), (COMPUTE, 0), "it waits in a circle"),
    # It reads what was written.
    "copied before it is written": Fault(
        step(D2H, 0, waits=()), (D2H, 0), "a may not be written yet"
    ),
    "read before it is back": Fault(
        step(COMPUTE, 4, waits=()), (COMPUTE, 4), "a may not be written yet"
    ),
    "read before its operator runs": Fault(
        queued(PLAN, {COMPUTE: (_DROP, _MUL, _LOSS, _NOISE, _GRAD)}),
        (COMPUTE, 0),
        "a may not be written yet",
    ),
    "instance that no step writes read": Fault(
        step(COMPUTE, 2, with_instance(B, 8 * P, _ROOM), reads=(_AGAIN,)),
        (COMPUTE, 2),
        "b may not be written yet",
    ),
    "instance written twice": Fault(
        queued(
            step(H2D, 0, step(D2H, 0, waits=((COMPUTE, 1),)), waits=((COMPUTE, 3), (D2H, 0))),
            {COMPUTE: (_MUL, _MUL, _DROP, _LOSS, _NOISE, _GRAD)},
        ),
        (COMPUTE, 1),
        "it may overwrite a",
    ),
    "the program's instance is never written": Fault(
        with_instance(G, 8 * P, _ROOM), _NOWHERE, "the last instance of g is never written"
    ),
    "copied to the host twice": Fault(
        queued(
            step(H2D, 0, step(COMPUTE, 3, waits=((D2H, 1),)), waits=((COMPUTE, 2), (D2H, 1))),
            {D2H: (*PLAN.queues[D2H], *PLAN.queues[D2H])},
        ),
        (D2H, 1),
        "a goes to the host again",
    ),
    "host a byte too small": Fault(
        replace(PLAN, host_bytes=2 * P - 1), _NOWHERE, "take 1024 bytes of 1023 on the host"
    ),
    "never copied to the host": Fault(
        step(D2H, 0, reads=(B,), waits=((COMPUTE, 1),)), (H2D, 0), "a may not be on the host yet"
    ),
    "copied back too early": Fault(
        step(H2D, 0, instance(BACK, _ROOM, offset=8 * P), waits=()),
        (H2D, 0),
        "a may not be on the host yet",
    ),
    # Bytes are handed over.
    "copy overwrites what an operator reads": Fault(
        step(H2D, 0, waits=((COMPUTE, 1), (D2H, 0))), (H2D, 0), "it may overwrite b"
    ),
    "operator overwrites what a copy reads": Fault(
        step(COMPUTE, 3, waits=()), (COMPUTE, 3), "it may overwrite a"
    ),
    "copy overwrites what no step reads": Fault(
        queued(
            with_instance(A, 8 * P, instance(BACK, _ROOM, offset=8 * P)),
            {COMPUTE: (_MUL, _DROP, _LOSS, replace(_MUL, writes=(_AGAIN,)), _NOISE, _GRAD)},
        ),
        (H2D, 0),
        "it may overwrite a",
    ),
    "copy overwrites a workspace": Fault(
        step(
            *(H2D, 0),
            step(COMPUTE, 1, instance(BACK, _ROOM, offset=8 * P), workspace=9 * P),
            waits=((D2H, 0),),
        ),
        (H2D, 0),
        "it may overwrite a workspace",
    ),
    "workspace over an operand": Fault(
        step(COMPUTE, 4, workspace=0), (COMPUTE, 4), "it may overwrite n"
    ),
    "workspace over a result": Fault(
        step(COMPUTE, 4, workspace=7 * P), (COMPUTE, 4), "it may overwrite g"
    ),
    "results over each other": Fault(instance(M, offset=3 * P), (COMPUTE, 1), "it may overwrite b"),
    "result over an operand": Fault(instance(G, offset=0), (COMPUTE, 4), "it may overwrite n"),
    "what the program gets overwritten": Fault(
        step(COMPUTE, 4, workspace=5 * P), (COMPUTE, 4), "it may overwrite y"
    ),
    "part of a value overwritten": Fault(instance(M, offset=P), (COMPUTE, 1), "it may overwrite a"),
    "what others left of a value overwritten": Fault(_REST, (H2D, 0), "it may overwrite b"),
}
