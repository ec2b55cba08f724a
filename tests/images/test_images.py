"""The images as `make images` builds them: what is in them, what is not, and that they run."""

from __future__ import annotations

import filecmp
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.images.archive import Archive
from tests.native_builds import ROOT, run, tool

pytestmark = pytest.mark.e2e
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION: Final = PROJECT["version"]
IMAGES: Final = ("operator", "agent")
USERS: Final = {"operator": "65532:65532", "agent": ""}
LIMIT_BYTES: Final = {"operator": 330 << 20, "agent": 330 << 20}
PACKAGES: Final = {
    "operator": {
        "tierline_api": "crds",
        "tierline_kube": "crds",
        "tierline_operator": "operator",
    },
    "agent": {
        "tierline_api": "crds",
        "tierline_kube": "crds",
        "tierline_client": "nodeagent",
        "tierline_agent": "nodeagent",
    },
}
"""Packages of this repository in each image, and where they are."""
PLUGIN: Final = {
    "tierline_api": "crds",
    "tierline": "nodeagent",
    "tierline_client": "nodeagent",
    "tierline_steps": "nodeagent",
    "tierline_torch": "nodeagent",
}
TRACES: Final = re.compile(
    r"/(gcc|cc1|cc|ld|cmake|make|zig|pip3?|uv)$"
    r"|/(pip|ziglang|ensurepip|setuptools)/|^opt/installer|^src/"
    r"|pip\.conf|\.crt$|\.whl$|\.deb$|^root/\.cache|^tmp/|^var/lib/apt/lists/"
)
"""What a build leaves in an image unless somebody takes care."""
NEWEST_GLIBC: Final = (2, 17)
_DISTRIBUTIONS: Final = """
import importlib.metadata, pathlib, re, sys
folders = {str(one.parent) for one in pathlib.Path(sys.argv[1]).rglob("*.dist-info")}
for one in importlib.metadata.distributions(path=sorted(folders)):
    print(re.sub("[-_.]+", "-", one.name).lower(), one.version)
"""


@dataclass(frozen=True)
class Unpacked:
    """An image, and its files in a folder."""

    name: str
    archive: Archive
    root: Path

    def files(self) -> Iterator[str]:
        """Yield the path of everything in it that is no folder."""
        for path in self.root.rglob("*"):
            if path.is_symlink() or not path.is_dir():
                yield str(path.relative_to(self.root))

    @property
    def shared(self) -> Path:
        """What it gives to pods."""
        return self.root / "opt" / "tierline" / VERSION

    def packages(self) -> Path:
        """Where its Python finds packages."""
        (found,) = self.root.glob("opt/*/lib/python3.11/site-packages")
        return found

    def run(self, *command: str) -> str:
        """Run a program in it to a good end, as its user; returns what it said."""
        user = self.archive.config.get("User") or "0:0"
        done = subprocess.run(
            ["chroot", f"--userspec={user}", str(self.root), *command],
            env=self.archive.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Unpacked]]:
    found = {}
    for name in IMAGES:
        archive = Archive(ROOT / "build" / "images" / f"tierline-{name}.tar")
        root = tmp_path_factory.mktemp(name)
        root.chmod(0o755)
        archive.unpack(root)
        found[name] = Unpacked(name, archive, root)
    yield found
    for image in found.values():
        shutil.rmtree(image.root)


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest, unpacked: Mapping[str, Unpacked]) -> Unpacked:
    return unpacked[request.param]


@pytest.fixture
def agent(unpacked: Mapping[str, Unpacked]) -> Unpacked:
    return unpacked["agent"]


def same(copied: Path, package: str, where: str) -> None:
    """Fail unless the modules in `copied` are the repository's."""
    source = ROOT / where / package
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py*")}
    modules = {module for module in modules if "__pycache__" not in module}
    _, different, missing = filecmp.cmpfiles(source, copied / package, sorted(modules), False)
    assert (different, missing) == ([], [])


def test_it_says_what_it_is(image: Unpacked) -> None:
    assert image.archive.reference == f"localhost/tierline-{image.name}:{VERSION}"
    labels = image.archive.config["Labels"]
    said = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert said["title"] == f"tierline-{image.name}"
    assert said["version"] == VERSION
    assert said["licenses"] == PROJECT["license"]
    assert said["revision"]
    assert said["description"]


def test_what_is_in_it_is_listed(image: Unpacked) -> None:
    """By the image's own tools, and by none of what writes the list."""
    listed = json.loads(_next_to(image, "spdx").read_text("utf-8"))
    named = {
        (one["name"], one["versionInfo"], one["externalRefs"][0]["referenceLocator"].split("/")[0])
        for one in listed["packages"]
        if "externalRefs" in one
    }
    debian = image.run("dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    python = image.run("python", "-c", _DISTRIBUTIONS, str(Path("/opt")))
    assert named == {
        *((*line.split(), "pkg:deb") for line in debian.splitlines()),
        *((*line.split(), "pkg:pypi") for line in python.splitlines()),
    }


def test_what_it_was_made_from_is_said_of_this_very_image(image: Unpacked) -> None:
    said = json.loads(_next_to(image, "provenance").read_text("utf-8"))
    (subject,) = said["subject"]
    assert subject["digest"]["sha256"] == image.archive.digest.removeprefix("sha256:")
    built = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    revision = image.archive.config["Labels"]["org.opencontainers.image.revision"]
    assert {"uri": "git", "digest": {"gitCommit": revision}} in built
    recipe = ROOT / "images" / image.name / "Dockerfile"
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()
    assert {"uri": str(recipe.relative_to(ROOT)), "digest": {"sha256": digest}} in built


def _next_to(image: Unpacked, kind: str) -> Path:
    return ROOT / "build" / "images" / f"tierline-{image.name}.{kind}.json"


def test_it_runs_as_its_user(image: Unpacked) -> None:
    assert image.archive.config.get("User", "") == USERS[image.name]


def test_its_program_answers(image: Unpacked) -> None:
    said = image.run(*image.archive.config["Entrypoint"], "--help")
    assert "usage" in said.lower()
    assert f"tierline_{image.name}" in said or "Tierline operator" in said


def test_everything_in_it_can_be_imported(image: Unpacked) -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        "for package in sys.argv[1:]:\n"
        "    where = importlib.import_module(package).__path__\n"
        "    for module in pkgutil.walk_packages(where, package + '.'):\n"
        "        if not module.name.endswith(('.__main__', '.generate', '.crdgen')):\n"
        "            importlib.import_module(module.name)\n"
        "print('all')"
    )
    assert image.run("python", "-c", program, *PACKAGES[image.name]) == "all\n"


def test_it_holds_this_repository_s_modules(image: Unpacked) -> None:
    for package, where in PACKAGES[image.name].items():
        same(image.packages(), package, where)
    own = {path.name for path in image.packages().glob("tierline*")}
    assert own == {*PACKAGES[image.name], f"tierline-{VERSION}.dist-info"}


def test_building_left_no_trace(image: Unpacked) -> None:
    assert [path for path in image.files() if TRACES.search(f"/{path}"[1:])] == []


def test_it_is_small(image: Unpacked) -> None:
    size = sum((image.root / path).lstat().st_size for path in image.files())
    assert size <= LIMIT_BYTES[image.name]


def test_no_file_belongs_to_a_user_or_can_be_written_by_one(image: Unpacked) -> None:
    owned = [
        path
        for path in (image.root / path for path in image.files() if path.startswith("opt/"))
        if not path.is_symlink() and (path.stat().st_uid != 0 or path.stat().st_mode & 0o022)
    ]
    assert owned == []


def test_pods_get_the_whole_plugin(agent: Unpacked) -> None:
    assert [path.name for path in agent.root.glob("opt/tierline/*")] == [VERSION]
    assert {path.name for path in agent.shared.iterdir()} == {"libtierline.so", "python"}
    plugin = agent.shared / "python"
    notes = f"tierline-{VERSION}.dist-info"
    assert {path.name for path in plugin.iterdir()} == {*PLUGIN, notes}
    for package, where in PLUGIN.items():
        same(plugin, package, where)
    (point,) = PROJECT["entry-points"]["torch.backends"].values()
    assert f"[torch.backends]\ntierline = {point}\n" in (
        plugin / notes / "entry_points.txt"
    ).read_text("utf-8")


def test_the_library_runs_with_an_old_glibc(agent: Unpacked) -> None:
    library = str(agent.shared / "libtierline.so")
    wanted = run(tool("objdump"), "--dynamic-syms", library).stdout
    versions = {
        (int(major), int(minor))
        for line in wanted.splitlines()
        if "*UND*" in line
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", line)
    }
    assert versions
    assert max(versions) <= NEWEST_GLIBC
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", run(tool("readelf"), "-d", library).stdout))
    # musl takes all three for itself; in a glibc of this day the others are empty.
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert run("/bin/echo", "unharmed", env={"LD_PRELOAD": library}).stdout == "unharmed\n"


def test_the_library_leaves_a_musl_program_alone(agent: Unpacked, tmp_path: Path) -> None:
    (tmp_path / "said.c").write_text('#include <stdio.h>\nint main(void) { puts("unharmed"); }\n')
    program = str(tmp_path / "said")
    run(tool("musl-gcc"), str(tmp_path / "said.c"), "-o", program)
    library = str(agent.shared / "libtierline.so")
    assert run(program, env={"LD_PRELOAD": library}).stdout == "unharmed\n"
