"""docs/reference/hooks.md: what the interposer does with every function, for people."""

from __future__ import annotations

from hook_generator.c_hooks import hooked, is_narrow
from hook_generator.header import Header
from hook_generator.table import Table, covers

MEANING = {
    "serve": "answered by Tierline, or by the driver within the task's budget",
    "gate": "asks the gate first and is shown to the observer",
    "count": "goes to the driver; what it holds cannot be swapped and is counted",
    "refuse": "goes to the driver, but is not supported under a budget",
}


def markdown(table: Table, header: Header) -> str:
    """The page."""
    symbols = hooked(table, header)
    names = header.plain_names()
    untouched = len(names) - len(table.treatment_of)
    cuda = f"{header.version // 1000}.{header.version % 1000 // 10}"
    lines = [
        "# What the interposer does with the CUDA driver's functions",
        "",
        "Made from `nodeagent/native/interposer/hooks.toml` by `generate_hooks.py`, checked",
        f"against the `cuda.h` of CUDA {cuda}: of its {len(names)} functions",
        f"{len(table.treatment_of)} are hooked (as {len(symbols)} symbols), {untouched} are not.",
        "",
        "| treatment | meaning |",
        "|---|---|",
        *(f"| {name} | {meaning} |" for name, meaning in MEANING.items()),
        "",
        "| family | treatment | what happens | functions |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {f.title} | {f.treatment} | {f.does} | {', '.join(f'`{n}`' for n in f.names)} |"
        for f in table.families
    ]
    narrow = [symbol.name for symbol in symbols if is_narrow(table, symbol)]
    lines += [
        "",
        "Refused under a budget, because their addresses or sizes have 32 bits: "
        + ", ".join(f"`{name}`" for name in narrow)
        + ".",
        "",
        "## Not hooked",
        "",
        "| why | functions |",
        "|---|---|",
    ]
    for entry in table.untouched:
        covered = sorted(
            name
            for name in names - table.treatment_of.keys()
            if any(covers(pattern, name) for pattern in entry.names)
        )
        lines.append(f"| {entry.why} | {', '.join(f'`{name}`' for name in covered)} |")
    lines += [
        "",
        "## Other libraries",
        "",
        "| library | what happens | functions |",
        "|---|---|---|",
    ]
    lines += [
        f"| {entry.title} (`{entry.soname}`) | {entry.does} | "
        f"{', '.join(f'`{function.name}`' for function in entry.functions)} |"
        for entry in table.libraries
    ]
    return "\n".join(lines) + "\n"
