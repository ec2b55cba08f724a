"""Makes both codecs of the client protocol from protocol.toml.

`--write` writes the generated files, `--check` fails if one of them differs from what would be
written. It decides nothing about the protocol: every rule stands in protocol.toml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from protocol_generator.c_codec import c_header, c_source
from protocol_generator.c_text import c_describe
from protocol_generator.python_codec import py_source
from protocol_generator.spec import Spec, read_spec

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def outputs(spec: Spec) -> dict[Path, str]:
    """Every generated file and what it holds."""
    return {
        HERE / "include/tierline/protocol.h": c_header(spec),
        HERE / "src/wire/protocol.c": c_source(spec),
        ROOT / "nodeagent/tierline_agent/transport/protocol.py": py_source(spec),
        ROOT / "tests/native/describe.c": c_describe(spec),
    }


def main() -> int:
    """Writes or checks the generated files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail if a generated file differs")
    mode.add_argument("--write", action="store_true", help="write the generated files")
    arguments = parser.parse_args()
    stale = []
    for path, text in outputs(read_spec(HERE / "protocol.toml")).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if arguments.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            stale.append(str(path.relative_to(ROOT)))
    for name in stale:
        print(f"{name} differs from protocol.toml: run {Path(__file__).name} --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
