"""`python -m tierline_agent.kubernetes.kubelet.generate --check FOLDER`: the protocols' stubs.

Needs grpcio-tools, whose version is pinned: another one writes other stubs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from tierline_api.generated import write_or_check

_HERE = Path(__file__).parent
_PROTOCOLS = ("dra", "health", "registration")


def stubs() -> Iterator[tuple[str, str]]:
    """Yield each generated file's name and text."""
    with tempfile.TemporaryDirectory() as folder:
        sources = [str(_HERE / f"{name}.proto") for name in _PROTOCOLS]
        included = Path(grpc_tools.__file__).parent / "_proto"
        options = [f"-I{_HERE}", f"-I{included}", f"--python_out={folder}", f"--pyi_out={folder}"]
        if protoc.main(["protoc", *options, *sources]) != 0:
            raise SystemExit(1)
        for path in sorted(Path(folder).iterdir()):
            yield path.name, path.read_text(encoding="utf-8")


if __name__ == "__main__":
    module = "tierline_agent.kubernetes.kubelet.generate"
    sys.exit(write_or_check(module, stubs(), None))
