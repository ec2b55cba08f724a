"""The verifier with one of its checks taken out: copies of the module, in memory."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tierline_steps import verify

_PATH = Path(verify.__file__)
Change = Callable[[], None]


def without_a_check() -> Iterator[ModuleType]:
    """Once without each `raise`."""
    return _each(_checks)


def without_part_of_a_check() -> Iterator[ModuleType]:
    """Once without each part, and each bound, of a condition that leads to a `raise`."""
    return _each(_parts)


def _each(changes_at: Callable[[ast.AST], Iterator[Change]]) -> Iterator[ModuleType]:
    number = 0
    while True:
        tree = ast.parse(_PATH.read_text())
        changes = [change for node in ast.walk(tree) for change in changes_at(node)]
        if number == len(changes):
            return
        before = ast.unparse(tree).splitlines()
        changes[number]()
        after = ast.unparse(tree).splitlines()
        line = next(b for b, a in zip(before, after, strict=True) if a != b)
        module = ModuleType(verify.__name__, doc=line.strip())
        exec(compile(tree, str(_PATH), "exec"), module.__dict__)  # noqa: S102 - our own source
        yield module
        number += 1


def _checks(node: ast.AST) -> Iterator[Change]:
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Raise):
            yield _set(body, index, ast.copy_location(ast.Pass(), statement))


def _parts(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Raise):
        return
    for condition in ast.walk(node.test):
        if isinstance(condition, ast.BoolOp):
            nothing = ast.Constant(isinstance(condition.op, ast.And))
            for index in range(len(condition.values)):
                yield _set(condition.values, index, ast.copy_location(nothing, condition))
        if isinstance(condition, ast.Compare) and len(condition.ops) == 2:
            yield (
                lambda here=condition: here.__init__(  # type: ignore[misc]
                    here.left, here.ops[:1], here.comparators[:1]
                )
            )
            yield (
                lambda here=condition: here.__init__(  # type: ignore[misc]
                    here.comparators[0], here.ops[1:], here.comparators[1:]
                )
            )


def _set(of: list[Any], index: int, other: ast.AST) -> Change:
    return lambda: of.__setitem__(index, other)
