"""Whether a plan is right, whatever the times turn out to be.

A plan fixes an order and no times: a step starts once the step before it in its queue and the
steps that it waits for are over. `verify` accepts a plan only if each execution that this allows
gives the program what its graph gives. It knows nothing of planners, and trusts no field of a plan.

Invariant. A plan that it accepts
1. fits: places are aligned and in the arena; arena and live-in values are within the budget;
2. ends: each wait is for a step that exists, and no steps wait for each other in a circle;
3. is the graph's program: each operator runs, on instances of its operands in their order; one
   that is not repeatable runs once, after those before it; the backward follows the forward;
4. reads what was written: the step that writes an instance is over before a reader starts; a value
   is copied from the host after it was copied there, once;
5. hands bytes over: all steps that access the former owner of a byte (an instance or a workspace)
   are over before the step starts that writes the next; so an instance is written once. No step
   writes live-in values, and what the program gets, the last instance of each live-out value, has
   no next owner.

That is enough. "Over before" is the order of the queues and the waits, and what follows from them.
Take any execution. By 4 and 5 two steps that access one byte, one of them writing, are ordered, so
the byte holds what the last of the former in that order wrote, in each execution the same. By 3
and 4 these are the values that the operator reads in the graph, hence, by induction over the order
(which exists by 2), it writes those that the graph does. By 5 the program's are there at the end.

The order is asked by vector clocks (Fidge 1988; Mattern 1989), one count for each queue: how many
of its steps are over before a step starts. The bytes of the arena are walked once, in one order of
the steps that has no step before one that it waits for: if each owner of a byte is ordered after
the one before, it is so after all before. The time is linear in the plan but for the search in a
sorted list of owners.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Plan, Queue, Step

Clock = tuple[int, int, int]
"""Of each queue the number of steps that are over."""


class PlanRejectedError(Exception):
    """A plan that is not right under every timing: at which step (None: anywhere), and why."""

    def __init__(self, queue: Queue | None, index: int | None, reason: str) -> None:
        super().__init__(reason if queue is None else f"{_name(queue, index)}: {reason}")
        self.queue, self.index, self.reason = queue, index, reason


def verify(graph: Graph, plan: Plan) -> None:
    """Accept a plan for this graph; raises PlanRejectedError for one that may go wrong."""
    _fits(graph, plan)
    ran: list[int] = []
    for queue, index, step in _steps(plan):
        _exists(plan, queue, index, step)
        if queue is Queue.COMPUTE:
            ran.append(_operator(graph, plan, index, step))
        else:
            _copies(plan, queue, index, step)
    _is_program(graph, ran)
    order, clocks = _ordered(plan)
    used = _reads_written(graph, plan, clocks)
    _copied_back(graph, plan, clocks)
    _handed_over(graph, plan, order, clocks, used)


def _name(queue: Queue, index: int | None) -> str:
    return f"{queue.name.lower()} step {index}"


def _steps(plan: Plan) -> Iterator[tuple[Queue, int, Step]]:
    for queue in Queue:
        for index, step in enumerate(plan.queues[queue]):
            yield queue, index, step


def _value_name(graph: Graph, plan: Plan, instance: int) -> str:
    return graph.values[plan.instances[instance].value].name


def _fits(graph: Graph, plan: Plan) -> None:
    if plan.graph != graph.digest:
        raise PlanRejectedError(None, None, "it was made for another graph")
    need = plan.arena_bytes + graph.live_in_bytes
    if need > plan.budget_bytes:
        reason = f"arena and live-in values take {need} bytes of {plan.budget_bytes}"
        raise PlanRejectedError(None, None, reason)
    for index, instance in enumerate(plan.instances):
        if not 0 <= instance.value < len(graph.values):
            raise PlanRejectedError(None, None, f"instance {index}: no value {instance.value}")
        value = graph.values[instance.value]
        if value.role.is_live_in != (instance.offset is None):
            reason = f"instance {index}: {value.name} is {value.role.value}, at {instance.offset}"
            raise PlanRejectedError(None, None, reason)
        if instance.offset is not None and _misplaced(plan, instance.offset, value.size_bytes):
            reason = f"instance {index}: {value.name} does not lie at {instance.offset}"
            raise PlanRejectedError(None, None, reason)


def _misplaced(plan: Plan, offset: int, size_bytes: int) -> bool:
    """Whether bytes may not lie there: not aligned, or not in the arena."""
    return offset % ALIGNMENT != 0 or not 0 <= offset <= plan.arena_bytes - size_bytes


def _exists(plan: Plan, queue: Queue, index: int, step: Step) -> None:
    """All that a step names, whatever kind of step it is."""
    for operands in (step.reads, step.writes):
        for instance in operands:
            if not 0 <= instance < len(plan.instances):
                raise PlanRejectedError(queue, index, f"there is no instance {instance}")
    if len({queue, *(other for other, _ in step.waits)}) != 1 + len(step.waits):
        raise PlanRejectedError(queue, index, "it waits for its own queue, or for one twice")
    for other, last in step.waits:
        if not 0 <= last < len(plan.queues[other]):
            raise PlanRejectedError(queue, index, f"there is no {_name(other, last)} to wait for")


def _operator(graph: Graph, plan: Plan, index: int, step: Step) -> int:
    """Which operator it runs, once that has all it needs."""
    if step.operator is None or not 0 <= step.operator < len(graph.operators):
        raise PlanRejectedError(Queue.COMPUTE, index, f"there is no operator {step.operator}")
    operator = graph.operators[step.operator]
    if tuple(plan.instances[instance].value for instance in step.reads) != operator.reads:
        raise PlanRejectedError(Queue.COMPUTE, index, f"{operator.name} reads other values")
    if tuple(plan.instances[instance].value for instance in step.writes) != operator.writes:
        raise PlanRejectedError(Queue.COMPUTE, index, f"{operator.name} writes other values")
    if (step.workspace is None) != (operator.workspace_bytes == 0):
        reason = f"{operator.name} needs {operator.workspace_bytes} bytes of workspace"
        raise PlanRejectedError(Queue.COMPUTE, index, reason)
    if step.workspace is not None and _misplaced(plan, step.workspace, operator.workspace_bytes):
        reason = f"its workspace does not lie at {step.workspace}"
        raise PlanRejectedError(Queue.COMPUTE, index, reason)
    return step.operator


def _copies(plan: Plan, queue: Queue, index: int, step: Step) -> None:
    counts = (1, 0) if queue is Queue.D2H else (0, 1)
    if (len(step.reads), len(step.writes)) != counts:
        raise PlanRejectedError(queue, index, "it is no copy of one instance")
    if plan.instances[(step.reads + step.writes)[0]].offset is None:
        raise PlanRejectedError(queue, index, "it copies a live-in value")
    if step.operator is not None or step.workspace is not None:
        raise PlanRejectedError(queue, index, "a copy runs no operator")


def _is_program(graph: Graph, ran: list[int]) -> None:
    """Each operator at least once; those that are not repeatable as in the graph."""
    seen: set[int] = set()
    last_once = -1
    for index, operator in enumerate(ran):
        name = graph.operators[operator].name
        if operator >= graph.backward and len(seen) < graph.backward:
            raise PlanRejectedError(Queue.COMPUTE, index, f"{name} runs before the forward is over")
        seen.add(operator)
        if not graph.operators[operator].repeatable:
            if operator <= last_once:
                reason = f"{name} is not repeatable: it runs once, after those before it"
                raise PlanRejectedError(Queue.COMPUTE, index, reason)
            last_once = operator
    for operator, about in enumerate(graph.operators):
        if operator not in seen:
            raise PlanRejectedError(None, None, f"{about.name} never runs")


def _ordered(plan: Plan) -> tuple[list[tuple[Queue, int]], tuple[list[Clock], ...]]:
    """All steps, none before one that it waits for; and the clocks at their starts."""
    clocks: tuple[list[Clock], ...] = ([], [], [])
    order: list[tuple[Queue, int]] = []
    queue = Queue.COMPUTE
    idle = 0  # how many queues in a row stand still
    while idle < len(Queue):
        steps, own = plan.queues[queue], clocks[queue]
        idle += 1
        while len(own) < len(steps) and all(
            last < len(clocks[other]) for other, last in steps[len(own)].waits
        ):
            order.append((queue, len(own)))
            own.append(_clock(queue, steps[len(own)].waits, clocks))
            idle = 0
        queue = Queue((queue + 1) % len(Queue))
    for queue in Queue:
        if len(clocks[queue]) < len(plan.queues[queue]):
            raise PlanRejectedError(queue, len(clocks[queue]), "it waits in a circle")
    return order, clocks


def _clock(
    queue: Queue, waits: tuple[tuple[Queue, int], ...], clocks: tuple[list[Clock], ...]
) -> Clock:
    """The steps that are over before the next step of a queue starts."""
    index = len(clocks[queue])
    over = list(clocks[queue][-1]) if index else [0, 0, 0]
    over[queue] = index
    for other, last in waits:
        over = list(map(max, over, clocks[other][last]))
        over[other] = max(over[other], last + 1)
    return (over[0], over[1], over[2])


def _reads_written(graph: Graph, plan: Plan, clocks: tuple[list[Clock], ...]) -> list[list[int]]:
    """Readers follow writers; gives of each instance the clock at which nothing has it any more."""
    writers: dict[int, tuple[Queue, int]] = {}
    used = [[0, 0, 0] for _ in plan.instances]
    for queue, index, step in _steps(plan):
        for instance in step.writes:
            writers[instance] = (queue, index)
            used[instance][queue] = index + 1
    for queue, index, step in _steps(plan):
        for instance in step.reads:
            used[instance][queue] = index + 1
            if plan.instances[instance].offset is None:
                continue
            writer, last = writers.get(instance, (queue, index))
            if clocks[queue][index][writer] <= last:
                name = _value_name(graph, plan, instance)
                raise PlanRejectedError(queue, index, f"{name} may not be written yet")
    final = {instance.value: index for index, instance in enumerate(plan.instances)}
    for value, instance in final.items():
        if not graph.values[value].role.is_live_out:
            continue
        if instance not in writers:
            name = graph.values[value].name
            raise PlanRejectedError(None, None, f"the last instance of {name} is never written")
        used[instance] = [len(steps) for steps in plan.queues]  # by the program, after all
    return used


def _copied_back(graph: Graph, plan: Plan, clocks: tuple[list[Clock], ...]) -> None:
    there: dict[int, int] = {}
    for index, step in enumerate(plan.queues[Queue.D2H]):
        value = plan.instances[step.reads[0]].value
        if value in there:
            reason = f"{graph.values[value].name} goes to the host again"
            raise PlanRejectedError(Queue.D2H, index, reason)
        there[value] = index
    need = sum(graph.values[value].size_bytes for value in there)
    if need > plan.host_bytes:
        reason = f"its copies take {need} bytes of {plan.host_bytes} on the host"
        raise PlanRejectedError(None, None, reason)
    for index, step in enumerate(plan.queues[Queue.H2D]):
        value = plan.instances[step.writes[0]].value
        if value not in there or clocks[Queue.H2D][index][Queue.D2H] <= there[value]:
            reason = f"{graph.values[value].name} may not be on the host yet"
            raise PlanRejectedError(Queue.H2D, index, reason)


class _Arena:
    """Which bytes belong to whom: intervals in order, without gaps."""

    def __init__(self, size_bytes: int, owner: int) -> None:
        self.starts, self.owners = [0, size_bytes], [owner, owner]  # the last has no bytes

    def take(self, start: int, end: int, owner: int) -> list[int]:
        """Give bytes to another owner; returns those that they belonged to."""
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, end)
        former = self.owners[first:last]
        pieces = [(start, owner)]
        if self.starts[first] < start:
            pieces.insert(0, (self.starts[first], former[0]))
        if end < self.starts[last]:
            pieces.append((end, former[-1]))
        self.starts[first:last] = [begin for begin, _ in pieces]
        self.owners[first:last] = [whose for _, whose in pieces]
        return former


def _handed_over(
    graph: Graph,
    plan: Plan,
    order: list[tuple[Queue, int]],
    clocks: tuple[list[Clock], ...],
    used: list[list[int]],
) -> None:
    """Walk the steps; each owner of bytes must be done with when the next is written."""
    nobody = len(used)
    until = [*used, [0, 0, 0]]
    arena = _Arena(plan.arena_bytes, nobody)
    for queue, index in order:
        step = plan.queues[queue][index]
        places = []
        for instance in step.writes:
            value, offset = plan.instances[instance].value, plan.instances[instance].offset
            places.append((instance, offset, graph.values[value].size_bytes))
        if step.operator is not None:
            size_bytes = graph.operators[step.operator].workspace_bytes
            places.append((len(until), step.workspace, size_bytes))
            until.append([index + 1, 0, 0])
        for owner, offset, size_bytes in places:
            if offset is None or size_bytes == 0:  # live-in, no workspace, or nothing to own
                continue
            for former in arena.take(offset, offset + size_bytes, owner):
                if any(map(int.__lt__, clocks[queue][index], until[former])):
                    name = "a workspace" if former > nobody else _value_name(graph, plan, former)
                    raise PlanRejectedError(queue, index, f"it may overwrite {name}")
