"""Refuses files that import each other in a circle: `python -m tests.circles`; exit 1 on a fault.

Imports within functions count: they hide a circle and do not open it. Those for types alone
(`if TYPE_CHECKING:`) do not, as nothing runs them.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("cli", "crds", "nodeagent", "operator")


def read() -> dict[str, str]:
    """The text of every module of the product's packages, by its name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = settings["tool"]["importlinter"]["root_packages"]
    return {
        ".".join(path.relative_to(ROOT / part).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for part in PARTS
        for package in packages
        for path in (ROOT / part / package).rglob("*.py")
    }


def faults(modules: Mapping[str, str]) -> list[str]:
    """What is wrong with these modules' imports, a sentence each."""
    imports: dict[str, set[str]] = {}
    for name, text in modules.items():
        named = _imported(ast.parse(text))
        imports[name] = {one if one in modules else one.rpartition(".")[0] for one in named}
        imports[name] = {one for one in imports[name] if one in modules and one != name}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        return ["they import each other: " + " <- ".join(circle.args[1])]
    return []


def _imported(node: ast.AST) -> Iterator[str]:
    """What a module's code imports, wherever it does. The packages import by whole names."""
    match node:
        case ast.Import(names=names):
            yield from (name.name for name in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{name.name}" for name in names)
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
            inners: Iterable[ast.AST] = orelse
        case _:
            inners = ast.iter_child_nodes(node)
    for inner in inners:
        yield from _imported(inner)


if __name__ == "__main__":
    found = faults(read())
    for sentence in found:
        print(sentence, file=sys.stderr)
    sys.exit(bool(found))
