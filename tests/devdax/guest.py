"""Boots a guest with a file of ours as /dev/dax0.0, runs a program in it, and reads what it says.

QEMU interprets every instruction (TCG): no virtualisation, no root, and the same on every machine.
The program's output comes over a serial port that is a socket of ours, line by line. Killing QEMU
is a loss of power, except that no CPU cache is lost with it: what the guest stored is in the file.

The guest has one CPU: with two, its kernel at times waited for ever at boot for the other one's
answer to an interrupt, on a host whose threads QEMU's two had to wait for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.devdax import initramfs

LIMIT_S = 300.0
"""Longest silence of a guest, boot included; 3 s is usual, more when the machine is busy."""

_FASTER = "mitigations=off cryptomgr.notests audit=0"
"""Of the kernel's options: a quarter less to interpret at every boot."""


@dataclass
class Report:
    """What a guest said: JSON objects by the line, other lines, and the program's exit status.

    `status` is None if the guest was killed or died before it ended.
    """

    objects: list[dict[str, object]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    status: int | None = None
    console: str = ""

    def __str__(self) -> str:
        said = [json.dumps(found) for found in self.objects]
        return "\n".join([f"exit status {self.status}", *said, *self.text, self.console])

    def values(self, name: str) -> list[object]:
        """All values said under a name, in order."""
        return [found[name] for found in self.objects if name in found]


def boot(
    backing: Path,
    files: Mapping[str, Path],
    arguments: Mapping[str, object],
    *,
    kill_at: tuple[str, object] | None = None,
    disk: Path | None = None,
    caches_persist: bool = False,
) -> Report:
    """Run /job/main.py in a guest until it ends, or until it says `kill_at` (name, value).

    `files` says what lies where in the guest besides the base (files or folders); `arguments`
    arrive as /job/arguments.json; `disk` becomes /dev/vda; `caches_persist` makes the machine say
    that its CPU caches survive a loss of power (eADR).
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        initrd = _initrd(folder, files, arguments)
        domain = "cpu" if caches_persist else "mem-ctrl"
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, (folder / "errors").open("wb") as errors:
                command = _command(backing, initrd, folder / "console", theirs.fileno())
                command += ["-machine", f"nvdimm-persistence={domain}"]
                if disk is not None:
                    command += ["-drive", f"file={disk},format=raw,if=virtio"]
                guest = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=[theirs.fileno()],
                )
            try:
                report = _listen(ours, kill_at, guest.kill)
            finally:
                guest.kill()
                guest.wait()
        for said in ("console", "errors"):
            with contextlib.suppress(FileNotFoundError):
                report.console += (folder / said).read_text(errors="replace")
        return report


def _listen(
    connection: socket.socket, kill_at: tuple[str, object] | None, kill: Callable[[], None]
) -> Report:
    """Hear the guest to its end: it goes on until it is dead, which may be after several lines."""
    connection.settimeout(LIMIT_S)
    report = Report()
    with connection.makefile("r", errors="replace") as lines:
        for raw in _until_silent(lines, report):
            line = raw.strip()
            if line.startswith("{"):
                if not raw.endswith("\n"):  # it died in the middle of a word
                    break
                said = json.loads(line)
                report.objects.append(said)
                if kill_at is not None and said.get(kill_at[0]) == kill_at[1]:
                    kill()
            elif line.startswith("@exit "):
                report.status = int(line.split()[1])
            elif line:
                report.text.append(line)
    return report


def _until_silent(lines: TextIO, report: Report) -> Iterator[str]:
    try:
        yield from lines
    except TimeoutError:
        report.text.append(f"(killed by the test: silent for {LIMIT_S:.0f} s)")


def _command(backing: Path, initrd: Path, console: Path, report: int) -> list[str]:
    image, _ = initramfs.kernel()
    size_bytes = backing.stat().st_size
    return [
        initramfs.tool("qemu-system-x86_64"),
        *("-machine", "q35,nvdimm=on", "-accel", "tcg", "-cpu", "max"),
        *("-smp", "1", "-m", "1G,slots=4,maxmem=64G"),
        *("-object", f"memory-backend-file,id=nv,share=on,mem-path={backing},size={size_bytes}"),
        *("-device", "nvdimm,memdev=nv,id=nv0"),
        *("-kernel", str(image), "-initrd", str(initrd)),
        *("-append", "console=ttyS0 panic=-1 quiet " + _FASTER, "-no-reboot"),
        *("-nographic", "-nodefaults", "-serial", f"file:{console}"),
        *("-chardev", f"socket,id=report,fd={report}", "-serial", "chardev:report"),
    ]


def _initrd(folder: Path, files: Mapping[str, Path], arguments: Mapping[str, object]) -> Path:
    root = folder / "root"
    (root / "job").mkdir(parents=True)
    (root / "job/arguments.json").write_text(json.dumps(arguments))
    ignored = shutil.ignore_patterns("__pycache__")
    for place, source in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, root / place, ignore=ignored)
        else:
            shutil.copy(source, root / place)
    initramfs.compile_all(initramfs.debian_python(), root)
    job = folder / "job.cpio"
    initramfs.pack(root, job)
    initrd = folder / "initrd"
    with initrd.open("wb") as out:
        for part in (initramfs.base(), job):
            with part.open("rb") as archive:
                shutil.copyfileobj(archive, out)
    return initrd
