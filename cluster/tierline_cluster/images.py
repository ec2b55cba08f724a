"""Makes container images from files, without a registry and without a builder."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Image:
    """A small image of one layer."""

    reference: str
    """Its full name, such as example.local/busybox:1."""
    files: Mapping[str, Path]
    """The source of each file in the image; its mode is kept."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links and what they point at."""
    entrypoint: Sequence[str] = ()
    environment: Sequence[str] = ("PATH=/bin",)
    user: str = ""
    """The user it runs as, such as 65532:65532; root if empty."""

    def write(self, archive: Path) -> Path:
        """Write the image as an OCI archive, which `ctr images import` takes; returns `archive`.

        Equal files give equal bytes.
        """
        blobs: dict[str, bytes] = {}

        def put(content: bytes, media_type: str) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            blobs[digest] = content
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

        layer = put(self._layer(), _LAYER)
        process = {"Entrypoint": list(self.entrypoint), "Env": list(self.environment)}
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {**process, "User": self.user},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": put(_json(config), _CONFIG),
            "layers": [layer],
        }
        entry = put(_json(manifest), _MANIFEST)
        entry["annotations"] = {"io.containerd.image.name": self.reference}
        index = {"schemaVersion": 2, "manifests": [entry]}
        with tarfile.open(archive, "w") as tar:
            _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(tar, "index.json", _json(index))
            for digest, content in blobs.items():
                _add(tar, f"blobs/sha256/{digest}", content)
        return archive

    def _layer(self) -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w") as tar:
            for folder in self._folders():
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            for name, source in sorted(self.files.items()):
                mode = source.stat().st_mode & 0o777
                _add(tar, name.lstrip("/"), source.read_bytes(), mode)
            for name, target in sorted(self.links.items()):
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
        return written.getvalue()

    def _folders(self) -> list[str]:
        names = [*self.files, *self.links]
        parents = {p for name in names for p in PurePosixPath(name.lstrip("/")).parents}
        return sorted({str(p) for p in parents if p.name} | {"tmp", "etc"})


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
