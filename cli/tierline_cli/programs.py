"""The programs of tasks: the command of a task's pod template, run as a local process."""

import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tierline_api.memtask import MemTask
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ProgramSpec:
    """What to start for one task."""

    task: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    working_dir: str | None


def program_of(task: MemTask) -> ProgramSpec:
    """The program's command, arguments, plain environment and working directory.

    Raises:
        CommandError: the task has no program, or a variable whose value only a cluster has.
    """
    name = task.metadata.name
    container = task.spec.template.program if task.spec.template is not None else None
    if container is None:
        raise CommandError(
            f"MemTask/{name}: spec.template is missing; a task run on this machine needs a"
            " container with a command there",
            EXIT_BAD_INPUT,
        )
    for variable in container.env:
        if variable.value is None:
            raise CommandError(
                f"MemTask/{name}: env {variable.name} has no plain value; "
                "on this machine there is no cluster to take it from",
                EXIT_BAD_INPUT,
            )
    return ProgramSpec(
        task=name,
        argv=(*container.command, *container.args),
        environment=tuple((v.name, v.value) for v in container.env if v.value is not None),
        working_dir=container.working_dir,
    )


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
            raise CommandError(
                f"MemTask/{spec.task}: cannot start {spec.argv[0]!r}: {error.strerror}",
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
        for signal_number in (15, 9):
            if self._process.poll() is not None:
                return
            os.killpg(self._process.pid, signal_number)
            if self.wait(_END_TIMEOUT_S) is not None:
                return

    def last_words(self) -> str:
        """The last line it wrote."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def describe_end(program: Program) -> str:
    """One sentence about a program that ended when it should not have."""
    status = program.poll()
    how = (
        f"was killed by signal {-status}"
        if status is not None and status < 0
        else f"ended with status {status}"
    )
    return f"MemTask/{program.spec.task}: its program {how}: {program.last_words()}"
