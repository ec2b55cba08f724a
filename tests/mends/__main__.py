"""Takes out mend after mend: `python -m tests.mends [NAME …]`, with `--table` for the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.mends.finding import Found, find
from tests.mends.mends import MENDS, Mend

_TABLE = Path(__file__).parents[2] / "docs" / "design" / "mends.md"
_HEAD = """# What the hostile suites find

`make mends` takes each mend below out of a copy of the agent's source and runs the suite that is
to find it: the state machine of sessions (`test_session_machine.py`), or unit tests of the part.
A row is what was seen the last time; `make test` looks that each patch still applies, and repeats
some that take seconds.

A mend of the library (a client that is refused for good ends at once) is in C, and not taken out
here; `test_restart.py` shows it.

| point | fault, with the mend taken out | found by | it says | seconds |
|---:|---|---|---|---:|
"""


def _row(mend: Mend, found: Found) -> str:
    suite = mend.found_by.split("/")[-1].split("::")[0].removesuffix(".py")
    why = found.why.replace("|", "\\|")
    return f"| {mend.point} | {mend.fault} | {suite} | `{why}` | {found.took_s:.0f} |\n"


def _find_all(mends: Iterable[Mend]) -> tuple[str, list[str]]:
    rows, missed = "", []
    for mend in mends:
        found = find(mend, mend.found_by)
        rows += _row(mend, found)
        verdict = found.why if found.failed else "NOT FOUND"
        print(f"{mend.name}: {verdict} ({found.took_s:.0f} s)", flush=True)
        if not found.failed:
            missed.append(mend.name)
    return rows, missed


def main() -> int:
    """Say of each whether it was found; 1 if one was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of them only")
    parser.add_argument("--table", action="store_true", help="write the table of all")
    arguments = parser.parse_args()
    chosen = [one for one in MENDS if not arguments.names or one.name in arguments.names]
    rows, missed = _find_all(chosen)
    if arguments.table and not missed and len(chosen) == len(MENDS):
        _TABLE.write_text(_HEAD + rows)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
