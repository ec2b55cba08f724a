"""What the guest boots: busybox, Debian's Python and kernel modules, and the wheels Tierline needs.

The base is built once a machine into the user's cache, under a name that is a digest of all that
goes into it; Tierline itself and a test's program go into a second archive at every boot (the
kernel unpacks both). Everything is Debian's: the kernel because the machine's own cannot make a
devdax, the Python because it depends on little else. A missing tool is an error with the packages
that bring it; nothing is skipped.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tierline_cluster import cache

REPOSITORY = Path(__file__).parents[2]
PACKAGES = "qemu-system-x86 linux-image-cloud-amd64 busybox cpio kmod python3"

_MODULES = ["virtio_pci", "virtio_blk", "nfit", "nd_pmem", "dax_pmem", "device_dax"]
_WHEELS = ["blake3", "prometheus-client", "psutil", "pydantic", "pyyaml", "uvloop", "xxhash"]
_NOT_NEEDED = (
    "__pycache__",
    "lib2to3",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "config-3*",
)


class ToolMissingError(Exception):
    """The machine lacks something that the guest is made of."""


def tool(name: str) -> str:
    """Path of a program, also where only administrators have it on their PATH."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise ToolMissingError(
            f"cannot find {name} for the PMEM guest; install it: sudo apt-get install {PACKAGES}"
        )
    return found


def kernel() -> tuple[Path, str]:
    """The newest Debian cloud kernel that is installed with its modules, and its version."""
    versions = sorted(
        (path.name for path in Path("/lib/modules").glob("*-cloud-amd64")),
        key=lambda name: [int(number) for number in re.findall(r"\d+", name)],
    )
    for version in reversed(versions):
        image = Path(f"/boot/vmlinuz-{version}")
        if image.exists():
            return image, version
    raise ToolMissingError(
        "cannot find a Debian cloud kernel in /boot for the PMEM guest; "
        f"install it: sudo apt-get install {PACKAGES}"
    )


def debian_python() -> Path:
    """Debian's own interpreter, not a virtual environment's."""
    return Path(tool("/usr/bin/python3")).resolve()


def base() -> Path:
    """The base archive, built if it is not cached."""
    python = debian_python()
    _, kernel_version = kernel()
    wheels = [f"{name}=={importlib.metadata.version(name)}" for name in _WHEELS]
    inputs = [
        Path(__file__).read_text(),
        Path(__file__).with_name("init").read_text(),
        kernel_version,
        _run(str(python), "-VV"),
        *wheels,
    ]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]

    def make(archive: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch) / "root"
            _busybox(root)
            _kernel_modules(root, kernel_version)
            _python(root, python, wheels)
            pack(root, archive)

    return cache.once(cache.folder("devdax") / f"base-{key}.cpio", make)


def pack(root: Path, archive: Path) -> None:
    """Write a folder as an archive that the kernel can unpack."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    with archive.open("wb") as out:
        subprocess.run(
            [tool("cpio"), "-o", "-H", "newc", "--quiet", "-R", "0:0"],
            cwd=root,
            input="\n".join(names).encode(),
            stdout=out,
            check=True,
        )


def _busybox(root: Path) -> None:
    for folder in ("bin", "dev", "proc", "sys", "tmp", "usr/bin", "usr/lib", "modules", "job"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    (root / "usr/lib64").mkdir()
    busybox = tool("busybox")
    _copy_program(root, Path(busybox), "bin/busybox")
    for applet in _run(busybox, "--list").split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    init = root / "init"
    shutil.copy(Path(__file__).with_name("init"), init)
    init.chmod(0o755)


def _kernel_modules(root: Path, version: str) -> None:
    """The modules and what they depend on, with the order of loading."""
    order: list[str] = []
    for module in _MODULES:
        plan = _run(tool("modprobe"), "-S", version, "-D", module)
        for line in plan.splitlines():
            words = line.split()
            if words[0] == "insmod" and Path(words[1]).name not in order:
                shutil.copy(words[1], root / "modules")
                order.append(Path(words[1]).name)
    (root / "modules/order").write_text("".join(f"{name}\n" for name in order))


def _python(root: Path, python: Path, wheels: list[str]) -> None:
    _copy_program(root, python, "usr/bin/python3")
    shutil.copytree(
        Path("/usr/lib") / python.name,
        root / "usr/lib" / python.name,
        symlinks=True,
        ignore_dangling_symlinks=True,
        ignore=shutil.ignore_patterns(*_NOT_NEEDED),
    )
    site = root / "site"
    uv = Path(sys.executable).with_name("uv")
    install = [str(uv) if uv.exists() else tool("uv"), "pip", "install", "--quiet"]
    install += ["--target", str(site), "--python", str(python), "--only-binary", ":all:"]
    subprocess.run([*install, *wheels], check=True)
    compile_all(python, root / "usr/lib" / python.name, site)
    for extension in [*root.glob("usr/lib/python3*/**/*.so"), *site.rglob("*.so")]:
        copy_libraries(root, extension)


def compile_all(python: Path, *folders: Path) -> None:
    """Compile Python sources here; the interpreted machine needs ten times as long for it."""
    unchecked = ["--invalidation-mode", "unchecked-hash"]
    subprocess.run([python, "-m", "compileall", "-qq", *unchecked, *folders], check=True)


def _copy_program(root: Path, program: Path, place: str) -> None:
    shutil.copy(program, root / place)
    copy_libraries(root, program)


def copy_libraries(root: Path, program: Path) -> None:
    """The shared libraries that a program or library is linked with, and the loader."""
    listing = subprocess.run(
        [tool("ldd"), program], capture_output=True, text=True, check=False
    ).stdout  # a static program has none, which ldd calls a failure
    for library in map(Path, re.findall(r"/\S+\.so\S*", listing)):
        folder = "usr/lib64" if library.name.startswith("ld-linux") else "usr/lib/x86_64-linux-gnu"
        (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / folder / library.name)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
