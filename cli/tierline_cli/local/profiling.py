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

from tierline_api.objects.memprofile import MemProfile, ProfiledDevice
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.observed import ObservedProfile
from tierline_api.schema.metadata import ObjectMeta
from tierline_cli.errors import CommandError
from tierline_cli.local.load_reading import LoadReader
from tierline_cli.local.place import Place
from tierline_cli.local.programs import Program, describe_end, program_of
from tierline_cli.local.steadiness import Load
from tierline_cli.local.waiting import MOST_ENDS, UNSEEN, Patience, Watch
from tierline_cli.reporting.verdicts import PlainRun

_PATIENCE = Patience()
_POLL_S = 0.1


@dataclass
class Observation(ObservedProfile):
    """Results of an observed run: the profile, and each input's outputs."""

    compute_s: list[float] = field(default_factory=list)
    outputs: dict[str, set[str]] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    """Of the machine meanwhile, window by window."""
    ended_early: str = ""
    """That its processes did so each time, if they did."""

    @property
    def plain_run(self) -> PlainRun:
        """Its outputs without Tierline."""
        answers = {given: frozenset(outputs) for given, outputs in self.outputs.items()}
        return PlainRun(answers, frozenset(self.weights_digests))


class UnobservedError(CommandError):
    """A program showed no profile; with why, and the outputs that it showed all the same."""

    def __init__(self, message: str, why: str, seen: PlainRun) -> None:
        """`why` goes on a sentence about the program."""
        super().__init__(message)
        self.why = why
        self.seen = seen


def observe(
    task: MemTask,
    place: Place,
    work_dir: Path,
    jobs: int,
    on_job: Callable[[int], None],
    on_word: Callable[[str], None] = lambda _: None,
    patience: Patience = _PATIENCE,
) -> Observation:
    """Run the program of a task unmanaged for `jobs` jobs; `on_job` hears how many are done.

    `on_word` hears what a person should know while nothing happens. A program that is started
    again and again is taken by the most that a process of it showed.

    Raises:
        UnobservedError: it showed no model that could be profiled; it ended too early each time
            it was started; or it had no job for longer than `patience` has.
        CommandError: it cannot be started, or failed.
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
    watch = Watch(jobs)
    reader = LoadReader(program.pid)
    try:
        idle_s = _watch(program, lines_path, watch, reader, on_job, on_word, patience)
    finally:
        program.stop()
    watch.look(_text(lines_path))  # at its end it may show more
    text = watch.whole()
    observation = _read(text, spec.task)
    failed = idle_s is None and not watch.complete and not watch.in_vain and program.poll() != 0
    if failed or not observation.layers:
        raise _unobserved(watch, program, idle_s, observation.plain_run, failed=failed)
    if text != watch.text:
        lines_path.write_text(text)  # a managed run learns from it
    observation.loads = reader.loads
    observation.ended_early = _early(watch) if watch.in_vain else ""
    return observation


def _early(watch: Watch) -> str:
    return f"its program ended after {watch.most} outputs and was started again"


def _unobserved(
    watch: Watch, program: Program, idle_s: float | None, seen: PlainRun, *, failed: bool
) -> UnobservedError:
    task = program.spec.task
    if failed:
        end = describe_end(program)
        return UnobservedError(end, f"it could not be run again without Tierline: {end}", seen)
    if watch.in_vain:
        why = _early(watch)
        words = f"{MOST_ENDS} times; its last words: {_said(program)}"
        return UnobservedError(f"MemTask/{task}: no profile: {why}, {words}", why, seen)
    why = _unprofiled(watch, program)
    if idle_s is not None:
        why = f"no job for {idle_s:.0f} s: {why}"
    return UnobservedError(f"MemTask/{task}: no profile: {why}", why, seen)


def _watch(
    program: Program,
    lines_path: Path,
    watch: Watch,
    reader: LoadReader,
    on_job: Callable[[int], None],
    on_word: Callable[[str], None],
    patience: Patience,
) -> float | None:
    """Look at a program until it has shown enough or never will.

    Returns the seconds without a job if there were too many.
    """
    began_s = since_s = time.monotonic()
    told = reasoned = False
    while program.wait(_POLL_S) is None:
        reader.look()
        if watch.look(_text(lines_path)):
            since_s = time.monotonic()
        on_job(watch.done)
        # a program with a loop of its own goes on for ever: what it was asked for is enough
        if watch.complete or watch.in_vain:
            return None
        now_s = time.monotonic()
        if not told and not watch.text and now_s > began_s + patience.word_s:
            told = True
            on_word(patience.word(program.spec.task))
        if not reasoned and not watch.most and now_s > since_s + patience.reason_s:
            reasoned = _tell_reason(program, on_word)
        waits_s = patience.next_s if watch.most else patience.first_s
        if now_s > since_s + waits_s:
            return waits_s
    return None


def _tell_reason(program: Program, on_word: Callable[[str], None]) -> bool:
    """Pass on why a program has no jobs, if that was said in it."""
    reason = program.reason()
    if reason:
        on_word(f"MemTask/{program.spec.task}: no job so far: {reason}")
    return bool(reason)


def learned_environment(work_dir: Path, task: str) -> dict[str, str]:
    """Lets a managed program lay its weights out as the observed one did, if there was one."""
    path = _observed(work_dir, task)
    return {"TIERLINE_LEARNED": str(path)} if path.exists() else {}


def _observed(work_dir: Path, task: str) -> Path:
    return work_dir / f"{task}.observed.jsonl"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _read(text: str, task: str) -> Observation:
    """The observation that a program wrote; without layers if it wrote no profile."""
    try:
        observation = Observation.written(text) or Observation([], 0, "")
    except ValueError as error:
        raise CommandError(
            f"MemTask/{task}: its program wrote a profile that cannot be used: {error}"
        ) from error
    for line in text.splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:  # a process that was killed may leave half a line
            continue
        if output := record.get("output"):
            observation.outputs.setdefault(output["input"], set()).add(output["output"])
            observation.compute_s.append(output["compute_s"])
    return observation


def _unprofiled(watch: Watch, program: Program) -> str:
    """Why there is no profile: what was said in the program, or else how far it came."""
    if reason := program.reason():
        return f"its program showed no model to profile: {reason}"
    if watch.most and program.ended_by_itself:
        return "its program ended before its model had run often enough; run it longer"
    if watch.most:
        return "its model ran too seldom"
    return (
        "its program called no PyTorch model, that is a torch.nn.Module with weights on its "
        f"device; {UNSEEN}; its last words: {_said(program)}"
    )


def _said(program: Program) -> str:
    return f"{program.last_words()}; {program.keep_log()}"


def as_profile(task: MemTask, observation: Observation, product: str) -> MemProfile:
    """The observation as the API's object, named after its task."""
    return observation.memprofile(
        ObjectMeta(name=task.name, namespace=task.domain),
        ProfiledDevice(kind=task.spec.device.kind, product=product),
    )


def typical(values: list[float]) -> float:
    """The median, in the unit of the values; 0 of nothing."""
    return statistics.median(values) if values else 0.0
