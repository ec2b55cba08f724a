"""Makes the interposer's hooks and their documentation from hooks.toml, checked against cuda.h.

`--write` writes the generated files, `--check` fails if one of them differs from what would be
written. Either fails when cuda.h declares a function that hooks.toml neither hooks nor lists as
deliberately untouched. It decides nothing about hooks: every rule stands in hooks.toml.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from hook_generator.c_hooks import c_header, c_source
from hook_generator.header import Header, HeaderError
from hook_generator.markdown import markdown
from hook_generator.table import TableError, check_libraries, check_table, read_table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent


def cuda_include() -> Path:
    """The folder of cuda.h in the installed nvidia-cuda-runtime package."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for header in sorted(Path(folder).glob("cu*/include/cudaTypedefs.h")):
            return header.parent
    raise HeaderError(
        "there is no cudaTypedefs.h in this environment: install nvidia-cuda-runtime or name the "
        "folder with --include"
    )


def main() -> int:
    """Writes or checks the generated files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail if a generated file differs")
    mode.add_argument("--write", action="store_true", help="write the generated files")
    parser.add_argument("--include", type=Path, help="folder that holds cuda.h")
    parser.add_argument("--table", type=Path, default=HERE / "hooks.toml")
    arguments = parser.parse_args()
    try:
        include = arguments.include or cuda_include()
        header = Header(include)
        table = read_table(arguments.table)
        check_table(table, header)
        check_libraries(table, include)
        outputs = {
            HERE / "src/driver/hooks.h": c_header(table, header),
            HERE / "src/entry/hooks.c": c_source(table, header),
            ROOT / "docs/reference/hooks.md": markdown(table, header),
        }
    except (TableError, HeaderError) as error:
        print(error, file=sys.stderr)
        return 1
    stale = []
    for path, text in outputs.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if arguments.write:
            path.write_text(text, encoding="utf-8")
        else:
            stale.append(str(path.relative_to(ROOT)))
    for name in stale:
        print(f"{name} differs from hooks.toml: run {Path(__file__).name} --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
