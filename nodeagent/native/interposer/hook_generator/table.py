"""hooks.toml as values, and the proof that it forgets nothing that cuda.h declares.

Invariant of a checked table: each plain name of cuda.h is in exactly one family, or covered by an
`untouched` pattern; a pattern with a star covers no name that moves, makes or shares memory.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hook_generator.header import Header

# A function's declaration in a C header, comments taken out: its name and its parameters.
DECLARATION = re.compile(r"\b(\w+)\s*\(([^()]*)\)\s*;")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

TREATMENTS = ("serve", "gate", "count", "refuse")
MOVES_MEMORY = re.compile(
    r"Alloc|Free|[cC]opy|cpy|Launch|Map|Export|Import|[mM]emset|Prefetch|Swap"
)
# "Map" also begins these words, which map nothing.
HARMLESS = re.compile(r"Mipmap(?!pedArrayCreate|pedArrayDestroy)|AllocationGranularity")


class TableError(Exception):
    """hooks.toml is wrong, or cuda.h has something that it does not mention."""


@dataclass(frozen=True)
class Call:
    """The treatment by one hook beyond that of its family; see the head of hooks.toml."""

    kind: str = ""
    key: str = ""
    bytes: str = ""
    held: str = ""
    charge: str = "never"
    captured: str = ""
    frees: str = ""
    replace: str = ""
    before: str = ""
    after: str = ""
    stream: str = ""
    over: str = ""
    instead: str = ""
    handler: str = ""


@dataclass(frozen=True)
class Family:
    """Functions of one purpose and one treatment."""

    title: str
    treatment: str
    does: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Untouched:
    """Functions that pass without a hook, and why."""

    why: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Alias:
    """A name that cuGetProcAddress answers with another name's symbol."""

    name: str
    since: int
    symbol: str


@dataclass(frozen=True)
class Foreign:
    """A hooked function of a library that is not the CUDA driver."""

    name: str
    parameters: tuple[str, ...]
    after: str


@dataclass(frozen=True)
class Library:
    """A library other than the CUDA driver of which functions are hooked."""

    name: str
    soname: str
    header: str
    title: str
    does: str
    returns: str
    good: str
    missing: str
    watch: str
    untouched: tuple[str, ...]
    functions: tuple[Foreign, ...]


@dataclass(frozen=True)
class Table:
    """The whole of hooks.toml."""

    families: tuple[Family, ...]
    untouched: tuple[Untouched, ...]
    aliases: tuple[Alias, ...]
    calls: dict[str, Call]
    uses: tuple[str, ...]
    narrow: frozenset[str]
    libraries: tuple[Library, ...] = ()
    treatment_of: dict[str, str] = field(default_factory=dict)


def read_table(path: Path) -> Table:
    """Read hooks.toml; TableError on an unknown key, treatment or a name given twice."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = raw.keys() - {*("family", "untouched", "alias", "call", "uses", "narrow", "library")}
    if unknown:
        raise TableError(f"{path.name} has unknown keys: {', '.join(sorted(unknown))}")
    try:
        families = tuple(Family(**{**f, "names": tuple(f["names"])}) for f in raw["family"])
        untouched = tuple(Untouched(u["why"], tuple(u["names"])) for u in raw["untouched"])
        aliases = tuple(Alias(**alias) for alias in raw["alias"])
        calls = {name: Call(**call) for name, call in raw["call"].items()}
        libraries = tuple(library_of(entry) for entry in raw["library"])
    except TypeError as error:
        raise TableError(f"{path.name} has an entry with a wrong key: {error}") from error
    treatment_of: dict[str, str] = {}
    for family in families:
        if family.treatment not in TREATMENTS:
            raise TableError(f"{family.title}: unknown treatment {family.treatment!r}")
        for name in family.names:
            if name in treatment_of:
                raise TableError(f"{name} is in two families")
            treatment_of[name] = family.treatment
    return Table(
        families,
        untouched,
        aliases,
        calls,
        tuple(raw["uses"]),
        frozenset(raw["narrow"]),
        libraries,
        treatment_of,
    )


def library_of(raw: dict[str, Any]) -> Library:
    """One [[library]]; TypeError on a wrong key."""
    functions = tuple(
        Foreign(name=name, **{"after": "", **entry, "parameters": tuple(entry["parameters"])})
        for name, entry in sorted(raw["functions"].items())
    )
    return Library(**{**raw, "untouched": tuple(raw["untouched"]), "functions": functions})


def check_libraries(table: Table, include: Path) -> None:
    """Compare each library's functions with its header in the include folder.

    Raises TableError for a function that the header lacks or declares with another number of
    parameters, and for a declared name that `watch` matches and the table does not mention.
    """
    wrong = []
    for library in table.libraries:
        header = include / library.header
        if not header.is_file():
            raise TableError(
                f"there is no {header}: install the package that brings it, or name the folder "
                "with --include"
            )
        text = COMMENT.sub(" ", header.read_text(encoding="utf-8"))
        declared = {match[1]: match[2] for match in DECLARATION.finditer(text)}
        for function in library.functions:
            given = declared.get(function.name)
            if given is None:
                wrong.append(f"{library.header} has no {function.name}")
            elif given.count(",") + 1 != len(function.parameters):
                wrong.append(f"{library.header} gives {function.name} other parameters: {given}")
        mentioned = {function.name for function in library.functions} | set(library.untouched)
        wrong += [
            f"{library.header} has {name}, which hooks.toml does not mention: hook it, or list it "
            f"as untouched"
            for name in sorted(declared.keys() - mentioned)
            if re.search(library.watch, name) is not None
        ]
        wrong += [
            f"{library.header} has no {name}" for name in library.untouched if name not in declared
        ]
    if wrong:
        raise TableError("\n".join(wrong))


def moves_memory(name: str) -> bool:
    """Whether a name says that the function makes, moves, maps, shares or launches."""
    return MOVES_MEMORY.search(HARMLESS.sub("", name)) is not None


def covers(pattern: str, name: str) -> bool:
    """Whether an `untouched` entry is about a name."""
    if pattern == name:
        return True
    return "*" in pattern and not moves_memory(name) and fnmatchcase(name, pattern)


def reason_untouched(table: Table, name: str) -> str | None:
    """Why a name has no hook; None when no pattern covers it."""
    for entry in table.untouched:
        for pattern in entry.names:
            if pattern == name or (covers(pattern, name) and name not in table.treatment_of):
                return entry.why
    return None


def check_table(table: Table, header: Header) -> None:
    """Compare the table with cuda.h; TableError names everything that is missing or too much."""
    names = header.plain_names()
    declared = header.declared()
    wrong = [
        f"cuda.h has {name}, which hooks.toml does not mention: hook it, or say why not"
        for name in sorted(names)
        if name not in table.treatment_of and reason_untouched(table, name) is None
    ]
    wrong += [
        f"{name} is both in a family and untouched"
        for name in sorted(table.treatment_of)
        if reason_untouched(table, name) is not None
    ]
    wrong += [f"cuda.h has no {name}" for name in sorted(table.treatment_of.keys() - names)]
    wrong += [
        f"the untouched pattern {pattern} covers nothing"
        for entry in table.untouched
        for pattern in entry.names
        if not any(covers(pattern, name) for name in names)
    ]
    wrong += [
        f"[call.{name}] is about nothing that is hooked"
        for name in sorted(table.calls)
        if name not in table.treatment_of
        and (name not in declared or re.sub(r"_v\d+$", "", name) not in table.treatment_of)
    ]
    wrong += [f"cuda.h has no symbol {name}" for name in table.uses if name not in declared]
    aliases = {alias.name: alias.symbol for alias in table.aliases}
    wrong += [
        f"cuda.h turns {name} into {symbol}: hooks.toml needs an alias"
        for name, symbol in header.redirected().items()
        if aliases.get(name) != symbol
        and (name in table.treatment_of or symbol in table.treatment_of)
    ]
    if wrong:
        raise TableError("\n".join(wrong))
