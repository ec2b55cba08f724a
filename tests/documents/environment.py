"""Environment variables: those that the product reads or sets are those of one page.

A variable is read by a name that is written out at that place, or as a constant of the module: so
this check sees each of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.documents.pages import Repository

PAGE = PurePosixPath("docs/reference/environment.md")
PRODUCT = ("charts", "cli", "cluster", "crds", "examples", "images", "nodeagent", "operator")
OURS = re.compile(r"\"(TIERLINE_[A-Z][A-Z0-9_]*[A-Z0-9])\"")
GETENV = re.compile(r"\bgetenv\((?:\"(\w+)\")?")
ROW = re.compile(r"^\| `([A-Z][A-Z0-9_…]+)`", flags=re.MULTILINE)


def differences(repository: Repository) -> Iterator[str]:
    """Say each variable that only the code, or only the page, has, and each read that hides one."""
    documented = set(ROW.findall((repository.root / PAGE).read_text()))
    read, named = set(), set()
    for path in sorted(repository.files):
        if path.parts[0] not in PRODUCT or path.suffix not in {".py", ".c"}:
            continue
        text = (repository.root / path).read_text()
        named |= {name for name in documented if f'"{name}"' in text}
        read |= set(OURS.findall(text))
        for name, line in _in_python(ast.parse(text)) if path.suffix == ".py" else _in_c(text):
            if name:
                read.add(name)
            else:
                yield f"{path}:{line}: reads a variable whose name is not written out"
    for name in sorted(read - documented):
        yield f"{PAGE}: {name}, which the product names, is not there"
    for name in sorted(documented - read - named):
        if not name.endswith("…"):  # a prefix
            yield f"{PAGE}: {name}: nothing in the product names it"


def _in_python(module: ast.Module) -> Iterator[tuple[str | None, int]]:
    """Each read of one variable: its name, None where that is not written out, and the line."""
    constants = {
        target.id: node.value.value
        for node in module.body
        for target in _targets(node)
        if isinstance(target, ast.Name)
        and isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for node in ast.walk(module):
        match node:
            case ast.Subscript(value=of, slice=key, ctx=ast.Load() | ast.Del()):
                found = _is_environment(of)
            case ast.Call(func=ast.Attribute(value=of), args=[key, *_]):
                found = _is_environment(of)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[of]):
                found = _is_environment(of)
            case _:
                continue
        match key:
            case _ if not found:
                continue
            case ast.Constant(value=str(name)):
                yield name, node.lineno
            case ast.Name(id=name):
                yield constants.get(name), node.lineno
            case _:
                yield None, node.lineno


def _targets(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in {"os.environ", "environ", "os.environb"}


def _in_c(text: str) -> Iterator[tuple[str | None, int]]:
    """The same in C."""
    for found in GETENV.finditer(text):
        yield found[1], text.count("\n", 0, found.start()) + 1
