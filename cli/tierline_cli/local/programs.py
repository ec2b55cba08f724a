"""The programs of tasks: the command of a task's pod template, run as a local process.

What Kubernetes makes of a container's words is made of them here, too: `$(NAME)` in arguments and
variables is the value of a variable of the container, `$$` is a dollar sign, and what names nothing
stays as it is.
"""

import errno
import os
import re
import secrets
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.pod import CONTAINERS
from tierline_api.objects.template import Container
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.local import words
from tierline_torch import failures

_END_TIMEOUT_S = 5.0
_KEPT = "tierline-log-"
"""How the names of logs begin that outlive a command."""
_TOLD = "tierline: "
"""How sentences begin that the plugin and the library write into a program's log."""


@dataclass(frozen=True)
class ProgramSpec:
    """The program of one task, to be started."""

    task: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    working_dir: str | None
    field: str
    """Of the manifest: the command."""


def program_of(task: MemTask) -> ProgramSpec:
    """The program's command, arguments, plain environment and working directory.

    Raises:
        CommandError: the task has no program, or several, or variables that only a cluster has.
    """
    name = task.metadata.name
    programs = task.spec.template.programs if task.spec.template is not None else ()
    if not programs:
        raise CommandError(
            f"MemTask/{name}: spec.template is missing; a task run on this machine needs a"
            " container with a command there",
            EXIT_BAD_INPUT,
        )
    if len(programs) > 1:
        raise CommandError(
            f"MemTask/{name}: the containers {' and '.join(one.name for one in programs)} have a"
            f" command each; name the one that runs the model in the annotation {CONTAINERS} of"
            " spec.template",
            EXIT_BAD_INPUT,
        )
    (container,) = programs
    if container.env_from:
        raise CommandError(
            f"MemTask/{name}: container {container.name} takes variables from the cluster"
            " (envFrom), and there is none on this machine; write them as env",
            EXIT_BAD_INPUT,
        )
    for variable in container.env:
        if variable.value is None:
            raise CommandError(
                f"MemTask/{name}: env {variable.name} has no plain value; "
                "on this machine there is no cluster to take it from",
                EXIT_BAD_INPUT,
            )
    environment: dict[str, str] = {}
    for variable in container.env:  # each may name those above it
        environment[variable.name] = _expanded(variable.value or "", environment)
    return ProgramSpec(
        task=name,
        argv=tuple(_expanded(word, environment) for word in (*container.command, *container.args)),
        environment=tuple(environment.items()),
        working_dir=container.working_dir,
        field=f"spec.template.spec.containers[{_place_of(task, container)}].command",
    )


def _place_of(task: MemTask, container: Container) -> int:
    containers = task.spec.template.spec.containers if task.spec.template else ()
    return next(at for at, one in enumerate(containers) if one is container)


_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    def value(reference: re.Match[str]) -> str:
        return "$" if reference[1] is None else environment.get(reference[1], reference[0])

    return _REFERENCE.sub(value, text)


class Program:
    """A running program of a task, in a process group of its own, its output in a file."""

    def __init__(self, spec: ProgramSpec, log_path: Path, extra: dict[str, str]) -> None:
        """Start it.

        Raises:
            CommandError: the command cannot be started.
        """
        if spec.working_dir is not None and not Path(spec.working_dir).is_dir():
            raise CommandError(
                f"MemTask/{spec.task}: workingDir {spec.working_dir} is no folder on this machine; "
                "make it, or name another one",
                EXIT_BAD_INPUT,
            )
        self.spec = spec
        self.log_path = log_path
        self.ended_by_itself = False
        """Whether it had ended when it was stopped."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            # `python` in a manifest is the interpreter that Tierline lives in
            "PATH": os.pathsep.join(
                [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
            ),
            "PYTHONUNBUFFERED": "1",
            **dict(spec.environment),
            **extra,
        }
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    spec.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=spec.working_dir,
                    start_new_session=True,
                )
        except OSError as error:
            why = _not_started(spec, error, environment["PATH"])
            raise CommandError(
                f"MemTask/{spec.task}: {spec.field}: cannot start {spec.argv[0]!r}: {why}",
                EXIT_BAD_INPUT,
            ) from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; None when it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End it and everything it started: politely, then by force."""
        self.ended_by_itself |= self._process.poll() is not None
        for signal_number in (15, 9):
            if self._process.poll() is not None:
                return
            os.killpg(self._process.pid, signal_number)
            if self.wait(_END_TIMEOUT_S) is not None:
                return

    def last_words(self) -> str:
        """The last that it said, and of an error where it came from."""
        return words.last_words(self._lines()) if self.poll() else words.last_line(self._lines())

    def keep_log(self) -> str:
        """Have all that it said outlive the command; returns the words that name the file."""
        name = f"{_KEPT}{self.spec.task}-{secrets.token_hex(4)}.txt"
        kept = Path(tempfile.gettempdir(), name)
        try:
            kept.hardlink_to(self.log_path)
        except OSError:  # no hard links there
            try:
                shutil.copyfile(self.log_path, kept)
            except OSError as error:
                return f"what it said could not be kept: {error.strerror}"
        return f"all that it said is in {kept}"

    def reason(self) -> str:
        """The last that Tierline said in it; empty if that said nothing."""
        said = [line for line in self._lines() if line.startswith(_TOLD)]
        return said[-1].removeprefix(_TOLD) if said else ""

    def failures(self) -> tuple[int, str]:
        """How many of its jobs failed in Tierline's code at least, and why."""
        return failures.read(self._lines())

    def _lines(self) -> list[str]:
        return self.log_path.read_text(errors="replace").strip().splitlines()


def describe_end(program: Program) -> str:
    """One sentence about a program that ended when it should not have."""
    status = program.poll()
    how = (
        f"was killed by signal {-status}"
        if status is not None and status < 0
        else f"ended with status {status}"
    )
    said = program.last_words()
    return f"MemTask/{program.spec.task}: its program {how}: {said}; {program.keep_log()}"


def _not_started(spec: ProgramSpec, error: OSError, path: str) -> str:
    """Why, and what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    command = spec.argv[0]
    found = shutil.which(command, mode=os.F_OK, path=path)
    if "/" in command:
        found = os.path.join(spec.working_dir or "", command)  # noqa: PTH118  # as a shell reads it
    try:
        with Path(found or "").open("rb") as file:
            first = file.readline(4096)
    except OSError:
        first = b""
    match error.errno:
        case errno.ENOENT if first.startswith(b"#!"):
            interpreter = os.fsdecode(first[2:].split()[0] if first[2:].split() else b"")
            return f"its first line names the interpreter {interpreter!r}, which is not there"
        case errno.ENOENT:
            where = "" if "/" in command else f" in PATH, which is {path}"
            return f"there is no such file{where}; write the path of a program"
        case errno.EACCES:
            return f"it may not be executed; chmod +x {found or command}, or name its interpreter"
        case errno.ENOEXEC:
            return (
                "it is no program; begin it with a line such as #!/bin/sh, or name its interpreter"
            )
    return reason
