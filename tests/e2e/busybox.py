"""A small image: Debian's busybox, the libraries that it needs, and a shell's usual programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tierline_cluster.images import Image

BUSYBOX: Final = "tierline.local/busybox:1"
_PROGRAMS: Final = (
    "sh",
    "cat",
    "echo",
    "env",
    "grep",
    "id",
    "ls",
    "mount",
    "sleep",
    "true",
    "wget",
)


def busybox_image() -> Image:
    """Return the image; it runs as an ordinary user."""
    found = shutil.which("busybox", path="/bin:/usr/bin:/usr/local/bin")
    assert found is not None, "there is no busybox; run: make e2e"
    busybox = Path(found).resolve()
    return Image(
        BUSYBOX,
        {"/bin/busybox": busybox, **{str(path): path for path in libraries(busybox)}},
        links={f"/bin/{name}": "busybox" for name in _PROGRAMS},
        entrypoint=["/bin/sh"],
        user="65532:65532",
    )


def libraries(program: Path) -> list[Path]:
    """Return the dynamic loader and the libraries that `program` needs, where it looks for them."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]
