"""The page of the Python that programs may import: what the packages' `__all__` name.

It is read from the sources, without importing them: so the page does not depend on a PyTorch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

PAGE = "python.md"
_FOLDER = Path(__file__).parents[2] / "nodeagent"
_PACKAGES = ("tierline", "tierline_client")
_HEAD = """# In Python

`tierline` is for programs with models; `tierline_client` for such as have arenas of their own: the
functions of [`tierline.h`](../../nodeagent/native/include/tierline/tierline.h), typed.
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(text for name in _PACKAGES for text in _package(name))


def _package(name: str) -> Iterator[str]:
    module = ast.parse((_FOLDER / name / "__init__.py").read_text())
    yield f"\n## {name}\n\n{ast.get_docstring(module)}\n"
    sources = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for public in _names(module):
        yield from _object(*sources[public], public)


def _names(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("a public package says in __all__ what is public")


def _object(module: str, name: str, public: str) -> Iterator[str]:
    path = _FOLDER.joinpath(*module.split(".")).with_suffix(".py")
    body = ast.parse(path.read_text()).body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match node:
            case ast.ClassDef() if node.name == name:
                yield from _class(node, public)
                return
            case ast.FunctionDef() if node.name == name:
                yield f"\n### {public}\n\n{_function(node)}"
                return
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                yield f"\n### {public}\n\n{_code(ast.unparse(node))}\n{_text_of(after)}\n"
                return
            case _:
                pass
    raise ValueError(f"{module} does not define {name}")


def _class(node: ast.ClassDef, public: str) -> Iterator[str]:
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    yield f"\n### {public}\n\n{_code(f'class {public}{bases}')}\n{_doc(node)}\n"
    if rows := list(_fields(node)):
        yield "\n| | |\n|---|---|\n" + "\n".join(rows) + "\n"
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and ast.get_docstring(one):
            if one.name == "__init__":
                yield f"\n#### {public}()\n\n{_function(one)}"
            elif not one.name.startswith("_"):
                yield f"\n#### {public}.{one.name}\n\n{_function(one)}"


def _function(node: ast.FunctionDef) -> str:
    returns = ast.unparse(node.returns) if node.returns else "None"
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    given = f": {returns}" if is_property else f"({ast.unparse(node.args)}) -> {returns}"
    return f"{_code(node.name + given)}\n{_doc(node)}\n"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """A row for each public field or member, with the text below it."""
    for one, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                shown = f"`{name}: {ast.unparse(kind)}`"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                shown = f"`{name} = {ast.unparse(value)}`"
            case _:
                continue
        if not name.startswith("_"):
            yield f"| {shown} | {_text_of(after)} |"


def _text_of(after: ast.stmt) -> str:
    """The text that stands below a field, if the next statement is one."""
    match after:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return ""


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring, its sections as lists."""
    lines: list[str] = []
    section = False
    for line in inspect.cleandoc(ast.get_docstring(node) or "").splitlines():
        if line in {"Raises:", "Args:"}:
            lines += [line, ""]
            section = True
        elif section and line.startswith("    "):
            inner = line.removeprefix("    ")
            lines.append(f"* {inner}" if not inner.startswith(" ") else inner)
        else:
            section = False
            lines.append(line)
    return "\n".join(lines)
