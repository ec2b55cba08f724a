"""Profiles measured here: a task's program run by itself, observed and not managed.

The observed run leaves the weights where they are, so its outputs are also the reference that every
streamed job is compared with.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierline_api.memprofile import MemProfile, ProfiledDevice
from tierline_api.memtask import MemTask
from tierline_api.metadata import ObjectMeta
from tierline_api.observed import PROFILE_LINE, ObservedProfile
from tierline_cli.errors import CommandError
from tierline_cli.place import Place
from tierline_cli.programs import Program, describe_end, program_of
from tierline_cli.verdicts import PlainRun

_TIMEOUT_S = 600.0
_POLL_S = 0.1


@dataclass
class Observation(ObservedProfile):
    """What an observed run told: the profile, and each input's outputs."""

    compute_s: list[float] = field(default_factory=list)
    outputs: dict[str, set[str]] = field(default_factory=dict)

    @property
    def plain_run(self) -> PlainRun:
        """What it gave without Tierline."""
        answers = {given: frozenset(outputs) for given, outputs in self.outputs.items()}
        return PlainRun(answers, self.weights_digest)


def observe(
    task: MemTask, place: Place, work_dir: Path, jobs: int, on_job: Callable[[int], None]
) -> Observation:
    """Run the program of a task unmanaged for `jobs` jobs; `on_job` hears how many are done.

    Raises:
        CommandError: it failed, or showed no model that could be profiled.
    """
    spec = program_of(task)
    lines_path = _observed(work_dir, spec.task)
    lines_path.unlink(missing_ok=True)
    program = Program(
        spec,
        work_dir / "logs" / f"{spec.task}.observe.log",
        {
            "TIERLINE_OBSERVE": str(lines_path),
            "TIERLINE_OBSERVE_JOBS": str(jobs),
            **place.environment(task),
        },
    )
    deadline = time.monotonic() + _TIMEOUT_S
    complete = False
    try:
        while program.wait(_POLL_S) is None and not complete:
            on_job(_count_outputs(lines_path))
            # a program with a loop of its own goes on for ever: what it was asked for is enough
            complete = _is_complete(lines_path, jobs)
            if time.monotonic() > deadline:
                raise CommandError(
                    f"MemTask/{spec.task}: no profile after {_TIMEOUT_S:.0f} s: "
                    f"{_unprofiled(_text(lines_path), program)}"
                )
    finally:
        program.stop()
    if not complete and program.poll() != 0:
        raise CommandError(describe_end(program))
    return _read(lines_path, program)


def learned_environment(work_dir: Path, task: str) -> dict[str, str]:
    """Lets a managed program lay its weights out as the observed one did, if there was one."""
    path = _observed(work_dir, task)
    return {"TIERLINE_LEARNED": str(path)} if path.exists() else {}


def _observed(work_dir: Path, task: str) -> Path:
    return work_dir / f"{task}.observed.jsonl"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _count_outputs(path: Path) -> int:
    return sum(line.startswith('{"output"') for line in _text(path).splitlines())


def _is_complete(path: Path, jobs: int) -> bool:
    profiled = any(line.startswith(PROFILE_LINE) for line in _text(path).splitlines())
    return profiled and _count_outputs(path) >= jobs


def _read(path: Path, program: Program) -> Observation:
    task = program.spec.task
    text = _text(path)
    try:
        observation = Observation.written(text)
    except ValueError as error:
        raise CommandError(
            f"MemTask/{task}: its program wrote a profile that cannot be used: {error}"
        ) from error
    if observation is None or not observation.layers:
        raise CommandError(f"MemTask/{task}: {_unprofiled(text, program)}")
    for line in text.splitlines():
        record: dict[str, Any] = json.loads(line)
        if output := record.get("output"):
            observation.outputs.setdefault(output["input"], set()).add(output["output"])
            observation.compute_s.append(output["compute_s"])
    return observation


def _unprofiled(text: str, program: Program) -> str:
    """Why there is no profile: what was said in the program, or else how far it came."""
    if reason := program.reason():
        return f"its program showed no model to profile: {reason}"
    if '"output"' in text:
        return "its program ended before its model had run often enough; run it longer"
    return (
        "its program called no PyTorch model, that is a torch.nn.Module with weights on its "
        f"device; its last words: {program.last_words()}"
    )


def as_profile(task: MemTask, observation: Observation, product: str) -> MemProfile:
    """The observation as the API's object, named after its task."""
    return observation.memprofile(
        ObjectMeta(name=task.name, namespace=task.domain),
        ProfiledDevice(kind=task.spec.device.kind, product=product),
    )


def typical(values: list[float]) -> float:
    """The median, in the unit of the values; 0 of nothing."""
    return statistics.median(values) if values else 0.0
