"""What a machine without a network is given: the programs of a cluster, Helm, and both images.

    python -m tests.gpu_e2e.carried pack FOLDER

writes two archives, each in pieces of at most PIECE. FOLDER/programs.tar.xz.00, … has Kubernetes
and etcd, containerd, runc with the library that it needs, the CNI plugins, and Helm, and is made
again when one of these has changed; FOLDER/images.tar.xz.00, … has the chart, and the images of
operator and agent as `make images` built them, their layers without compression, so that what they
share is stored once. Unpacked into one folder they are a `Carried`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from tests.e2e.busybox import libraries

from tierline_cluster.build import ProgramFolders, built
from tierline_cluster.versions import CONTAINERD_BUILD, HELM_BUILD, KUBERNETES_BUILD, REPOSITORY

PIECE: Final = "52M"
"""For what carries no large files."""
_ARCHIVES: Final = {
    "programs": ("kubernetes", "containerd", "networks", "libraries", "helm"),
    "images": ("chart", "images.tar"),
}
_SQUEEZE: Final = "xz --threads=1 --x86 --lzma2=preset=6,dict=256MiB"
"""A dictionary that reaches from one image to the other: what they share lies far apart."""
_SAME: Final = "--sort=name --mtime=@0 --owner=0 --group=0"
"""The same archive of the same files."""
_NETWORKS: Final = ("bridge", "host-local", "loopback")
_GZIP: Final = b"\x1f\x8b"
_BLOBS: Final = "blobs/sha256"
_PLUGIN: Final = re.compile(r"opt/tierline/[^/]+/python/")
"""Where the agent's image has what pods get."""


@dataclass(frozen=True)
class Carried:
    """The folder that the archives were unpacked into."""

    folder: Path

    @property
    def programs(self) -> ProgramFolders:
        """The programs of a node."""
        parts = (self.folder / name for name in ("kubernetes", "containerd", "networks"))
        return ProgramFolders(*parts)

    @property
    def helm(self) -> Path:
        """Helm."""
        return self.folder / "helm" / "helm"

    @property
    def chart(self) -> Path:
        """The chart, as it was when the images were built."""
        return self.folder / "chart"

    @property
    def images(self) -> Path:
        """One OCI archive with both images."""
        return self.folder / "images.tar"

    def plugin(self, into: Path) -> Path:
        """Unpack what the agent's image gives to pods; returns the folder of its Python packages.

        Raises SystemExit if no image has it.
        """
        with tarfile.open(self.images) as archive:
            for member in archive:
                blob = archive.extractfile(member)
                if blob is None or member.size < 1 << 16:
                    continue
                with tarfile.open(fileobj=blob) as layer:
                    found = [one for one in layer if _PLUGIN.match(one.name)]
                    if found:
                        layer.extractall(into, found, filter="data")
                        (python,) = into.glob("opt/tierline/*/python")
                        return python
        raise SystemExit(f"no image in {self.images} has a plugin for pods")


def lay_out(folder: Path) -> Carried:
    """Put into `folder` what the archives hold."""
    carried = Carried(folder)
    folders = (built(KUBERNETES_BUILD), built(CONTAINERD_BUILD))
    for source, target in zip(folders, ("kubernetes", "containerd"), strict=True):
        shutil.copytree(source, folder / target, symlinks=True)
    for target, sources in {
        "networks": [Path("/usr/lib/cni", name) for name in _NETWORKS],
        "containerd": [_found("runc")],
        "libraries": [one for one in libraries(_found("runc")) if "seccomp" in one.name],
        "helm": [built(HELM_BUILD) / "helm"],
    }.items():
        (folder / target).mkdir(exist_ok=True)
        for source in sources:
            shutil.copy(source, folder / target)
    shutil.copytree(REPOSITORY / "charts" / "tierline", carried.chart)
    _join_images(carried.images)
    return carried


def pack(folder: Path) -> None:
    """Write the archives that are not there as they are to be."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        lay_out(Path(made))
        with ThreadPoolExecutor() as both:
            packing = [
                both.submit(pack_one, folder, name, f"tar -C '{made}' {_SAME} -c {' '.join(parts)}")
                for name, parts in _ARCHIVES.items()
            ]
        for one in packing:
            one.result()
    for piece in sorted(folder.glob("*.tar.xz.*")):
        print(f"{piece}: {piece.stat().st_size / 2**20:.1f} MiB")


def pack_one(folder: Path, name: str, tar: str) -> None:
    """Write one of them, what `tar` prints, unless the one that is there holds that."""
    digest, known = folder / f"{name}.sha256", f"{_shell(f'{tar} | sha256sum')}, {_SQUEEZE}\n"
    if digest.exists() and digest.read_text() == known:
        return
    with tempfile.TemporaryDirectory(dir=folder) as made:
        pieces = f"split --bytes={PIECE} --numeric-suffixes - '{made}/{name}.tar.xz.'"
        _shell(f"{tar} | {_SQUEEZE} | {pieces}")
        # The one that was there can be carried away until then.
        digest.unlink(missing_ok=True)
        for old in folder.glob(f"{name}.tar.xz.*"):
            old.unlink()
        for piece in Path(made).iterdir():
            piece.rename(folder / piece.name)
    digest.write_text(known)


def _shell(command: str) -> str:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _found(program: str) -> Path:
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"there is no {program} on this machine; run: make gpu-e2e-archive")
    return Path(path).resolve()


def _join_images(archive: Path) -> None:
    """Write both images into one OCI archive, each layer once and without compression."""
    blobs: dict[str, bytes] = {}
    manifests = []
    for name in ("operator", "agent"):
        source = REPOSITORY / "build" / "images" / f"tierline-{name}.tar"
        if not source.exists():
            raise SystemExit(f"there is no {source}; run: make images")
        with tarfile.open(source) as image:
            index = _read(image, "index.json")
            for entry in index["manifests"]:
                manifest = _read(image, _blob(entry["digest"]))
                config = _bytes(image, _blob(manifest["config"]["digest"]))
                manifest["config"] |= _put(blobs, config)
                manifest["layers"] = [
                    {
                        "mediaType": "application/vnd.oci.image.layer.v1.tar",
                        **_put(blobs, _plain(_bytes(image, _blob(layer["digest"])))),
                    }
                    for layer in manifest["layers"]
                ]
                manifests.append(entry | _put(blobs, json.dumps(manifest).encode()))
    with tarfile.open(archive, "w") as joined:
        for path, content in _files(blobs, manifests):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            joined.addfile(entry, BytesIO(content))


def _files(blobs: dict[str, bytes], manifests: list[Any]) -> Iterator[tuple[str, bytes]]:
    yield "oci-layout", b'{"imageLayoutVersion": "1.0.0"}'
    yield "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
    for digest, content in blobs.items():
        yield _blob(digest), content


def _put(blobs: dict[str, bytes], content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    blobs[digest] = content
    return {"digest": digest, "size": len(content)}


def _plain(layer: bytes) -> bytes:
    return gzip.decompress(layer) if layer.startswith(_GZIP) else layer


def _blob(digest: str) -> str:
    return f"{_BLOBS}/{digest.removeprefix('sha256:')}"


def _read(image: tarfile.TarFile, path: str) -> dict[str, Any]:
    return json.loads(_bytes(image, path))


def _bytes(image: tarfile.TarFile, path: str) -> bytes:
    file = image.extractfile(path)
    assert file is not None, path
    return file.read()


if __name__ == "__main__":
    _, verb, where = sys.argv
    assert verb in {"pack", "lay-out"}, __doc__
    if verb == "pack":
        pack(Path(where))
    else:
        lay_out(Path(where))
