"""Versions of the library and the pods' folders, on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tierline_agent.errors import ConfigError
from tierline_agent.kubernetes.folders import Descriptions, Library, PodFolders


def bundle(folder: Path, text: str) -> Library:
    made = folder / "opt" / "1"
    (made / "python").mkdir(parents=True, exist_ok=True)
    (made / "python" / "plugin.py").write_text("# the plugin")
    (made / "libtierline.so").write_text(text)
    return Library(folder / "opt", folder / "lib")


def test_versions_lie_side_by_side_until_nobody_uses_them(tmp_path: Path) -> None:
    first = bundle(tmp_path, "one").install("1")
    assert bundle(tmp_path, "one").install("1") == first
    library = bundle(tmp_path, "two")
    second = library.install("1")

    assert (first.folder / "libtierline.so").read_text() == "one"
    assert (second.folder / "libtierline.so").read_text() == "two"
    library.remove_others(frozenset({second.name}))
    assert library.version(first.name) is None
    assert library.version(second.name) == second


def test_an_image_without_the_bundle_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no libtierline\.so .* kubernetes\.bundle_dir"):
        Library(tmp_path, tmp_path / "lib").install("1")


def test_a_running_library_outlives_its_version(tmp_path: Path) -> None:
    library = bundle(tmp_path, "one")
    folder = PodFolders(tmp_path / "pods").make("u", library.install("1"), measured=False)
    with (folder / "libtierline.so").open() as running:
        library.remove_others(frozenset())
        PodFolders(tmp_path / "pods").make("u", bundle(tmp_path, "two").install("1"), measured=True)

        assert running.read() == "one"
    assert (folder / "libtierline.so").read_text() == "two"
    assert (folder / "measured").stat().st_mode & 0o7777 == 0o1777


def test_what_a_pod_made_irremovable_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = PodFolders(tmp_path / "pods")
    pods.make("u", bundle(tmp_path, "one").install("1"), measured=True)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)  # as for an agent without the right
        pods.remove("u")
    assert pods.uids() == set()
    pods.remove("u")

    assert [path.name for path in (tmp_path / "pods").iterdir()] == [".left-u"]
    pods.remove_left()
    assert list((tmp_path / "pods").iterdir()) == []


def test_a_folder_that_takes_no_descriptions_is_said(tmp_path: Path) -> None:
    Descriptions(tmp_path).check()
    assert list(tmp_path.iterdir()) == []

    with pytest.raises(ConfigError, match=r"cdi \(No such file .*: kubernetes\.cdi_dir"):
        Descriptions(tmp_path / "cdi").check()
    (tmp_path / "cdi").touch()
    with pytest.raises(ConfigError, match=r"cdi \(Not a directory\): kubernetes\.cdi_dir"):
        Descriptions(tmp_path / "cdi").check()
