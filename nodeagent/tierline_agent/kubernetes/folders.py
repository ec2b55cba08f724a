"""Versions of the library, the pods' folders and their descriptions, on disk.

A version is a folder `VERSION-DIGEST` that is written once, made durable, renamed into its place
and never written again; so no process ever sees a library change. A pod's folder holds a hard link
to the library (a version may go while a process still runs it), an empty folder over which the
plugin is mounted, and the socket, which the agent makes. A description appears and goes whole.

Every method can be repeated, and a crash inside it leaves what the next call completes or removes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from tierline_agent.errors import ConfigError
from tierline_agent.kubernetes.description import (
    MEASURED,
    PLANNED,
    PROFILE,
    PYTHON,
    UNMEASURED,
    Described,
    Version,
    file_name,
    remembered,
)
from tierline_api.objects.optin import DRIVER

_log = logging.getLogger(__name__)
_LIBRARY: Final = "libtierline.so"
_DRAFT: Final = ".draft-"
_LEFT: Final = ".left-"
_DIGEST_CHARACTERS: Final = 16
_MOST_MEASURED_BYTES: Final = 16 << 20
"""On disk. Four times what is read of a profile (`measuring`), so that no honest pod comes near."""
_MOST_MEASURED_FILES: Final = 64
"""A program writes one; files without content take room as well, and time to count."""


class Library:
    """The versions of library and plugin on this node."""

    def __init__(self, bundles: Path, folder: Path) -> None:
        self._bundles = bundles
        self._folder = folder

    def install(self, version: str) -> Version:
        """Make this version available from the bundle that the agent came with.

        Raises:
            ConfigError: there is no such bundle.
            OSError: it cannot be copied.
        """
        bundle = self._bundles / version
        if not (bundle / _LIBRARY).is_file() or not (bundle / PYTHON).is_dir():
            raise ConfigError(
                f"cannot serve pods: {bundle} holds no {_LIBRARY} next to a folder {PYTHON}; "
                "the agent's image brings it, or set kubernetes.bundle_dir"
            )
        name = f"{version}-{_digest(bundle)[:_DIGEST_CHARACTERS]}"
        installed = self._folder / name
        if not installed.is_dir():
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            draft = self._folder / f"{_DRAFT}{name}"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(bundle, draft, ignore=shutil.ignore_patterns("__pycache__"))
            _make_durable(draft)
            draft.rename(installed)
        return Version(name, installed)

    def version(self, name: str) -> Version | None:
        """A version that was installed before, if it is still there."""
        return Version(name, self._folder / name) if (self._folder / name).is_dir() else None

    def remove_others(self, used: frozenset[str]) -> None:
        """Remove drafts of a crash and the versions that are not `used`."""
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            if entry.name not in used:
                shutil.rmtree(entry, ignore_errors=True)


class PodFolders:
    """The folders of the pods of this node, by the uid of their claims."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str) -> Path:
        """The folder of a pod."""
        return self._folder / uid

    def make(self, uid: str, version: Version, *, measured: bool) -> Path:
        """Make a pod's folder with this version of the library; `measured` for one that writes."""
        folder = self.path(uid)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        (folder / PYTHON).mkdir(mode=0o755, exist_ok=True)
        if measured:
            (folder / MEASURED).mkdir(exist_ok=True)
            (folder / MEASURED).chmod(0o1777)  # a pod runs as any user
        library, source = folder / _LIBRARY, version.folder / _LIBRARY
        if not (library.exists() and library.samefile(source)):
            draft = folder / f"{_DRAFT}{_LIBRARY}"
            draft.unlink(missing_ok=True)
            draft.hardlink_to(source)
            draft.replace(library)
        return folder

    def give_up(self, uid: str) -> None:
        """Tell the program of a pod that is measured to end, because it took too long."""
        (self.path(uid) / UNMEASURED).touch()

    def tell_planned(self, uid: str) -> None:
        """Tell the program of a pod that is or was measured to start again, by its plan."""
        if (self.path(uid) / MEASURED).is_dir():
            (self.path(uid) / PLANNED).touch()

    def has_measured(self, uid: str) -> bool:
        """Whether this very pod was measured, and left what it wrote."""
        return (self.path(uid) / MEASURED / PROFILE).is_file()

    def is_overfull(self, uid: str) -> bool:
        """Whether a pod wrote more than any program that is measured does.

        A folder counts as too much: what is in it may be unreadable for the agent.
        """
        size_bytes = files = 0
        try:
            with os.scandir(self.path(uid) / MEASURED) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    files += 1
                    size_bytes += found.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False) or files > _MOST_MEASURED_FILES:
                        return True
        except FileNotFoundError:  # it is not measured, or removes what it wrote
            return False
        return size_bytes > _MOST_MEASURED_BYTES

    def empty(self, uid: str) -> None:
        """Remove what a pod wrote, as far as the agent has the right."""
        for path in (self.path(uid) / MEASURED).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove_left(self) -> None:
        """Try again to remove what was put aside."""
        for path in self._folder.glob(f"{_LEFT}*"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self, uid: str) -> None:
        """Remove a pod's folder.

        A pod that was measured may have left what the agent has no right to remove: that is put
        aside, so that the pod's end does not wait for it.
        """
        try:
            shutil.rmtree(self.path(uid))
        except FileNotFoundError:
            return
        except OSError as error:
            aside = self._folder / f"{_LEFT}{uid}"
            _log.warning("cannot remove %s: %s; it is put aside as %s", uid, error, aside)
            self.path(uid).rename(aside)

    def uids(self) -> set[str]:
        """The claims that have a folder."""
        if not self._folder.is_dir():
            return set()
        return {e.name for e in self._folder.iterdir() if not e.name.startswith(_LEFT)}


class Descriptions:
    """The descriptions of this node's claims."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        """Raise ConfigError unless descriptions can be written."""
        try:
            with tempfile.TemporaryFile(dir=self._folder):
                return
        except OSError as error:
            raise ConfigError(
                f"cannot describe pods' devices in {self._folder} ({error.strerror}): "
                "kubernetes.cdi_dir must be the folder in which the container runtime looks for "
                "CDI descriptions; mount it from the node, writable, or correct the setting"
            ) from error

    def write(self, uid: str, description: Mapping[str, Any]) -> None:
        """Put a claim's description in its place, whole; one that is equal stays untouched."""
        path = self._folder / file_name(uid)
        if _read(path) == description:
            return
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = self._folder / f".{DRIVER}-{uid}"  # its name ends in nothing that a runtime reads
        draft.write_text(json.dumps(description), encoding="utf-8")
        draft.replace(path)

    def remove(self, uid: str) -> None:
        """Remove a claim's description."""
        (self._folder / file_name(uid)).unlink(missing_ok=True)
        (self._folder / f".{DRIVER}-{uid}").unlink(missing_ok=True)

    def all(self) -> dict[str, Described]:
        """The facts in the descriptions, by claim; one that cannot be read has none."""
        found: dict[str, Described] = {}
        for path in self._folder.glob(file_name("*")) if self._folder.is_dir() else ():
            uid = path.name.removeprefix(file_name("*").partition("*")[0]).removesuffix(".json")
            held = remembered(_read(path) or {})
            found[uid] = held if held and held.uid == uid else Described(uid, "", "")
        return found

    def drafts(self) -> set[str]:
        """Claims of which a crash left a draft."""
        found = self._folder.glob(f".{DRIVER}-*") if self._folder.is_dir() else ()
        return {path.name.removeprefix(f".{DRIVER}-") for path in found}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return held if isinstance(held, dict) else None


def _digest(folder: Path) -> str:
    """A digest of everything in a folder: names and contents."""
    hasher = blake3()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            hasher.update(str(path.relative_to(folder)).encode() + b"\0")
            hasher.update(blake3(path.read_bytes()).digest())
    return hasher.hexdigest()


def _make_durable(folder: Path) -> None:
    """Wait until everything in a folder survives a loss of power."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
