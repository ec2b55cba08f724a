"""Random graphs of every shape that `Graph.check` admits, odd ones more often than in life."""

from __future__ import annotations

from random import Random

from tierline_steps.graph import Graph, Operator, Role, Value

SIZES = (0, 1, 4, 300, 512, 513, 1024, 2048, 4096, 10_000)


def random_graph(rng: Random, most: int = 12) -> Graph:
    """Up to so many operators; some read nothing, write nothing, need workspace, or run once."""
    values = [
        Value(f"in{number}", rng.choice(SIZES), rng.choice((Role.WEIGHT, Role.INPUT)))
        for number in range(rng.randint(0, 4))
    ]
    once, scratch, stays = (rng.choice((0.0, 0.1, 0.4)) for _ in range(3))
    operators = []
    reach = rng.choice((2, 4, 100))  # a chain, or branches
    for number in range(rng.randint(1, most)):
        readable = [*range(len(values))]
        recent = readable[-reach:] if rng.random() < 0.8 else readable
        reads = rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2, 2, 3))))
        made = rng.choice((0, 1, 1, 1, 1, 2, 3))
        writes = range(len(values), len(values) + made)
        for value in writes:
            role = Role.ACTIVATION
            if rng.random() < stays:
                role = rng.choice((Role.GRADIENT, Role.RESULT))
            values.append(Value(f"v{value}", rng.choice(SIZES), role))
        operators.append(
            Operator(
                f"op{number}",
                tuple(sorted(reads)),
                tuple(writes),
                rng.choice((0, 1, 10, 100, 1000)),
                rng.choice(SIZES) if rng.random() < scratch else 0,
                rng.random() >= once,
            )
        )
    backward = rng.randint(0, len(operators)) if rng.random() < 0.5 else len(operators)
    return _checked(Graph(f"random{rng.random()}", tuple(values), tuple(operators), backward))


def small_graph(
    rng: Random, operators: int, sizes: tuple[int, ...] = (512, 1024, 2000, 4096)
) -> Graph:
    """So few operators that everything can be tried; each makes something that is worth keeping."""
    values = [Value("x", 512, Role.INPUT)]
    once = rng.choice((0.0, 0.0, 0.3))
    made = []
    for number in range(operators):
        known = range(len(values))
        reads = {*rng.sample(known[-3:], min(len(known), rng.choice((1, 1, 2)))), rng.choice(known)}
        writes = range(len(values), len(values) + rng.choice((1, 1, 1, 2)))
        for value in writes:
            stays = number == operators - 1 or rng.random() < 0.15
            role = Role.RESULT if stays else Role.ACTIVATION
            values.append(Value(f"v{value}", rng.choice(sizes), role))
        time_ns = 256 * rng.choice((1, 2, 4, 8))
        workspace_bytes = rng.choice((0, 0, 512))
        repeatable = rng.random() >= once
        operands = tuple(sorted(reads)), tuple(writes)
        made.append(Operator(f"op{number}", *operands, time_ns, workspace_bytes, repeatable))
    return _checked(Graph("small", tuple(values), tuple(made), operators))


def training_chain(
    layers: int, rng: Random | None = None, sizes: tuple[int, ...] = (512, 1024, 2000, 4096)
) -> Graph:
    """A forward, and a backward that reads what each layer made; equal layers without `rng`."""

    def size() -> int:
        return rng.choice(sizes) if rng else 1024

    def time_ns() -> int:
        return 256 * rng.choice((1, 2, 4, 8)) if rng else 256

    values = [Value("w", 512, Role.WEIGHT), Value("x", 512, Role.INPUT)]
    operators = []
    for layer in range(layers):
        values.append(Value(f"a{layer}", size(), Role.ACTIVATION))
        made = len(values) - 1
        operators.append(Operator(f"forward{layer}", (0, made - 1), (made,), time_ns()))
    above = layers + 1
    for layer in reversed(range(layers)):
        values.append(Value(f"g{layer}", size(), Role.ACTIVATION if layer else Role.GRADIENT))
        made = len(values) - 1
        reads = tuple(sorted({0, layer + 1, above}))
        operators.append(Operator(f"backward{layer}", reads, (made,), time_ns()))
        above = made
    return _checked(Graph("chain", tuple(values), tuple(operators), layers))


def repetitive_order(graph: Graph, rng: Random, share: float = 0.1) -> list[int]:
    """Its order, with some operators once more after their first run, none before its operands."""
    order: list[int] = []
    for operator in range(len(graph.operators)):
        order.append(operator)
        order += [
            earlier
            for earlier in range(operator)
            if graph.operators[earlier].repeatable and rng.random() < share
        ]
    return order


def _checked(graph: Graph) -> Graph:
    graph.check()
    return graph
