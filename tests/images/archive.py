"""Reads an image from its OCI archive: its configuration, and its files as containers see them."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

_WHITEOUT: Final = ".wh."


class Archive:
    """The one image in the archive at `path`."""

    def __init__(self, path: Path) -> None:
        """Read its manifest and configuration."""
        self._path = path
        with tarfile.open(path) as tar:
            (manifest,) = _json(tar, "index.json")["manifests"]
            self.reference: str = manifest["annotations"]["org.opencontainers.image.ref.name"]
            self.digest: str = manifest["digest"]
            held = _json(tar, _blob(self.digest))
            self.config: dict[str, Any] = _json(tar, _blob(held["config"]["digest"]))["config"]
            self._layers: list[str] = [_blob(layer["digest"]) for layer in held["layers"]]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its programs start with."""
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    def unpack(self, folder: Path) -> None:
        """Unpack its files into `folder`, layer by layer. Needs root, for the files' owners."""
        with tarfile.open(self._path) as archive:
            for name in self._layers:
                blob = archive.extractfile(name)
                assert blob is not None, name
                with tarfile.open(fileobj=blob) as layer:
                    for entry in layer:
                        _take(layer, entry, folder)


def _take(layer: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Unpack a file of a layer, or remove the lower layers' file that it hides."""
    path = folder / entry.name
    assert path.name != f"{_WHITEOUT}{_WHITEOUT}.opq", f"{entry.name}: a whole folder is hidden"
    if not path.name.startswith(_WHITEOUT):
        layer.extract(entry, folder, filter="tar")
        return
    hidden = path.with_name(path.name.removeprefix(_WHITEOUT))
    if hidden.is_dir() and not hidden.is_symlink():
        shutil.rmtree(hidden)
    else:
        hidden.unlink()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    member = tar.extractfile(name)
    assert member is not None, name
    held: dict[str, Any] = json.load(member)
    return held
