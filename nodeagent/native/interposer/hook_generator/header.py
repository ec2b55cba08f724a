"""Declarations of the CUDA headers: each symbol, its parameters, and since when it exists.

Reads `cuda.h` through the C preprocessor and `cudaTypedefs.h` as text. Knows nothing of hooks.
Types become those of the binary interface (an address is a uint64_t, an enum an int, a handle a
void *), so that what is generated compiles without NVIDIA's headers.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROTOTYPE = re.compile(r"CUresult (cu\w+) ?\(([^;]*)\) ?;")
TYPEDEF = re.compile(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\s*\(")
SYMBOL = re.compile(r"^(cu\w+?)(?:_v(\d+))?(_ptsz|_ptds)?$")
PARAMETER = re.compile(r"^(.*?)(\w+)$")
VERSION = re.compile(r"#define CUDA_VERSION (\d+)")

SCALARS = {
    "CUdeviceptr": "uint64_t",
    "CUdeviceptr_v1": "uint32_t",
    "CUmemGenericAllocationHandle": "uint64_t",
    "CUdevice": "int",
    "cuuint64_t": "uint64_t",
    "cuuint32_t": "uint32_t",
    "CUhostFn": "void *",
    "CUipcMemHandle": "struct abi_ipc_handle",
    "CUmemLocation": "struct abi_location",
}
C_SCALARS = {
    "size_t",
    "int",
    "unsigned int",
    "unsigned char",
    "unsigned short",
    "unsigned long long",
}
C_SCALARS |= {"float", "char", "void"}


class HeaderError(Exception):
    """The headers say something that the generator does not understand."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a driver function, as the binary interface has it."""

    type: str
    name: str

    @property
    def declaration(self) -> str:
        """The parameter as C writes it."""
        return f"{self.type}{'' if self.type.endswith('*') else ' '}{self.name}"


@dataclass(frozen=True)
class Symbol:
    """One exported symbol of the driver."""

    name: str
    parameters: tuple[Parameter, ...]
    narrow: bool
    plain: str
    age: int
    per_thread: bool
    since: int


class Header:
    """The driver's symbols, from the include folder of the nvidia-cuda-runtime package."""

    def __init__(self, include: Path, compiler: str = "cc") -> None:
        self.text = (include / "cuda.h").read_text(encoding="utf-8")
        self.typedefs = (include / "cudaTypedefs.h").read_text(encoding="utf-8")
        preprocessed = subprocess.run(
            [compiler, "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", "-x", "c", "-"],
            input="#include <cuda.h>\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        self.flat = re.sub(r"\s+", " ", preprocessed)

    @property
    def version(self) -> int:
        """CUDA_VERSION, such as 13020."""
        match = VERSION.search(self.text)
        if match is None:
            raise HeaderError("cuda.h defines no CUDA_VERSION")
        return int(match[1])

    @cached_property
    def enums(self) -> set[str]:
        """Names of enum types."""
        return set(re.findall(r"typedef enum \w+ \{[^}]*\} (\w+);", self.flat))

    @cached_property
    def handles(self) -> set[str]:
        """Names of types that are pointers to what only the driver knows."""
        direct = set(re.findall(r"typedef struct \w+ ?\* ?(CU\w+);", self.flat))
        return direct | set(re.findall(rf"typedef (?:{'|'.join(direct)}) (CU\w+);", self.flat))

    def abi_type(self, text: str) -> str:
        """The type that stands for one of cuda.h's in the binary interface."""
        text = text.strip()
        if text.endswith("*"):
            const = "const " if text.startswith("const ") else ""
            target = text.removesuffix("*").strip().removeprefix("const ")
            try:
                inner = self.abi_type(target)
            except HeaderError:
                inner = "void"  # a structure: abi.h describes those that are looked into
            inner = "void" if inner.startswith("struct") else inner
            return f"{const}{inner}{'' if inner.endswith('*') else ' '}*"
        if text in C_SCALARS:
            return text
        if text in SCALARS:
            return SCALARS[text]
        if text in self.enums:
            return "int"
        if text in self.handles:
            return "void *"
        raise HeaderError(f"cuda.h uses the type {text!r}, which the generator does not know")

    def parameters_of(self, text: str) -> tuple[Parameter, ...]:
        """Take a parameter list apart."""
        if text.strip() in {"", "void"}:
            return ()
        found = []
        for part in text.split(","):
            match = PARAMETER.match(part.strip())
            if match is None:
                raise HeaderError(f"cannot take the parameter {part!r} apart")
            found.append(Parameter(self.abi_type(match[1]), match[2]))
        return tuple(found)

    def versions(self) -> dict[tuple[str, bool], list[int]]:
        """CUDA versions at which a name got a new symbol, oldest first."""
        found: dict[tuple[str, bool], set[int]] = {}
        for match in TYPEDEF.finditer(self.typedefs):
            found.setdefault((match[1], match[3] is not None), set()).add(int(match[2]))
        return {key: sorted(value) for key, value in found.items()}

    def declared(self) -> dict[str, str]:
        """Each symbol with the text of its parameter list."""
        return {match[1]: match[2] for match in PROTOTYPE.finditer(self.flat)}

    def redirected(self) -> dict[str, str]:
        """Names that a macro of cuda.h turns into a symbol of another name."""
        pairs = re.findall(r"#\s*define (cu\w+)\s+(?:__CUDA_API_\w+\()?(cu\w+)\)?", self.text)
        found = {}
        for name, symbol in pairs:
            asked, answered = SYMBOL.match(name), SYMBOL.match(symbol)
            if asked and answered and asked[1] != answered[1]:
                found[name] = symbol
        return found

    def symbols(self, names: set[str]) -> list[Symbol]:
        """The symbols of the given plain names or exact symbols, sorted by name."""
        versions = self.versions()
        families: dict[tuple[str, bool], list[tuple[int, str]]] = {}
        declared = self.declared()
        for name in declared:
            match = SYMBOL.match(name)
            if match is None:
                raise HeaderError(f"cannot take the symbol {name!r} apart")
            families.setdefault((match[1], match[3] is not None), []).append(
                (int(match[2] or 1), name)
            )
        result = []
        for (plain, per_thread), members in families.items():
            known = versions.get((plain, per_thread), [])
            # Newest symbol <-> newest version; the oldest symbols may have lost their typedef.
            for back, (age, name) in enumerate(sorted(members, reverse=True)):
                if plain not in names and name not in names:
                    continue
                # Both default streams' symbols take the same, but name it differently at times.
                bare = name.removesuffix("_ptsz").removesuffix("_ptds")
                parameters = self.parameters_of(declared.get(bare, declared[name]))
                since = known[-1 - back] if back < len(known) else (known[0] if known else 0)
                result.append(
                    Symbol(
                        name=name,
                        parameters=parameters,
                        narrow="CUdeviceptr_v1" in declared[name]
                        or (
                            re.search(r"CUDA_\w+_v1\b", declared[name]) is not None
                            and "NODE" not in declared[name]
                        ),
                        plain=plain,
                        age=age,
                        per_thread=per_thread,
                        since=since,
                    )
                )
        return sorted(result, key=lambda symbol: symbol.name)

    def plain_names(self) -> set[str]:
        """Every name without its version and its default stream."""
        return {match[1] for name in self.declared() if (match := SYMBOL.match(name)) is not None}
