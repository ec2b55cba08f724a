"""What the operator's benchmark needs on a machine without a network (`operator_elsewhere.sh`).

    PYTHONPATH=cluster python -m tests.bench.carried FOLDER [PYTHON-VERSION]

writes into FOLDER the API server with etcd, compressed, the operator's rights as Helm makes them of
the chart, and wheels for that machine's Python (default 3.12): what the operator's image has, and
what the benchmark needs in addition. NumPy is that machine's own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import yaml
from tests.chart.helm import rights

from tierline_cluster.build import built
from tierline_cluster.versions import KUBERNETES_BUILD, REPOSITORY

PROGRAMS: Final = "kubernetes.tar.xz"
RIGHTS: Final = "rights.yaml"
_IN_ADDITION: Final = ("iniconfig", "packaging", "pluggy", "psutil", "pygments", "pytest")
"""The benchmark's own: it is built of what tests use."""
_GLIBC: Final = (5, 12, 17, 24, 27, 28, 31, 34)


def pack(folder: Path, python: str) -> None:
    """Write everything again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / RIGHTS).write_text(yaml.safe_dump_all(rights("operator")))
    programs = built(KUBERNETES_BUILD)
    command = f"tar -C '{programs}' -c kube etcd kube-apiserver | xz --threads=1 --x86 --lzma2 "
    packed = f"{command} > '{folder / PROGRAMS}'"
    subprocess.run(["bash", "-o", "pipefail", "-c", packed], check=True)
    pinned = (REPOSITORY / "images" / "operator" / "requirements.txt").read_text()
    names = [line.split()[0] for line in pinned.splitlines() if "==" in line]
    wheels = [name for name in names if not name.startswith("numpy==")]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    download += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation=cp"]
    download += [f"--python-version={python}", *(f"--platform={name}" for name in platforms)]
    subprocess.run([*download, f"--dest={folder}", *wheels, *_IN_ADDITION], check=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    pack(Path(sys.argv[1]), *(sys.argv[2:] or ["3.12"]))
