"""The measurements of a run's tasks: profiles, reference outputs, compute times alone.

A profile comes from the manifests or is measured here by observing the program. The reference
outputs come from observing only. What they leave open after a run, programs are run again for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tierline_api.manifests.files import Manifests
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.local import profiling
from tierline_cli.local.place import Place
from tierline_cli.local.steadiness import Load
from tierline_cli.reporting.results import JobLog
from tierline_cli.reporting.verdicts import ENOUGH_RUNS, Reference

_MORE_RUNS = ENOUGH_RUNS  # the first ones may have had other inputs
_MOST_JOBS = 2000
"""Of one more run without Tierline; what a long run did after so many is not compared."""
OnJob = Callable[[str, int], None]
"""Hears a task's name and how many of its jobs were observed."""
OnWord = Callable[[str], None]
"""Hears what a person should know while nothing happens."""


def unheard(_: str) -> None:
    """Nobody is there to be told."""


@dataclass
class Measurements:
    """By task name: its profile, its outputs without Tierline, its usual time alone in seconds."""

    manifests: Manifests
    place: Place
    work_dir: Path
    profiles: dict[str, MemProfile] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    compute_only_s: dict[str, float] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    """Of the machine while programs were observed for their profiles."""

    @property
    def weights_bytes(self) -> int:
        """Weights of all tasks together."""
        return sum(profile.spec.weight_bytes for profile in self.profiles.values())

    @property
    def here(self) -> dict[str, MemProfile]:
        """The profiles that were measured in this run."""
        return {task.name: self.profiles[task.name] for task in self.unprofiled()}

    def unprofiled(self) -> list[MemTask]:
        """The tasks that have to be measured.

        Raises:
            CommandError: a task names a profile that the files do not hold.
        """
        missing = []
        for task in self.manifests.tasks:
            if self.manifests.profile_of(task) is not None:
                continue
            if task.spec.profile is not None:
                raise CommandError(
                    f"MemTask/{task.name}: spec.profile names MemProfile/{task.spec.profile}, and "
                    "none of the files holds it; add it, or leave the field out to measure it here",
                    EXIT_BAD_INPUT,
                )
            missing.append(task)
        return missing

    def take(self, jobs: int, on_job: OnJob, on_word: OnWord = unheard) -> None:
        """Take each task's profile from the files, or observe `jobs` jobs of its program.

        Raises:
            CommandError: see `unprofiled`, and where a program failed.
        """
        unprofiled = self.unprofiled()
        product = self.place.product() if unprofiled else ""  # before any program is started
        for task in self.manifests.tasks:
            given = self.manifests.profile_of(task)
            if task in unprofiled or given is None:
                seen = self._observe(task, jobs, on_job, on_word)
                self.profiles[task.name] = profiling.as_profile(task, seen, product)
                self.compute_only_s[task.name] = profiling.typical(seen.compute_s)
                self.references[task.name] = Reference([seen.plain_run])
                self.loads += seen.loads
            else:
                self.profiles[task.name] = given
                self.compute_only_s[task.name] = given.spec.compute_s
                self.references[task.name] = Reference()

    def take_again(self, jobs: int, on_job: OnJob, on_word: OnWord = unheard) -> None:
        """Observe every program once more, in a new process, for what it gives."""
        for task in self.manifests.tasks:
            seen = self._observe(task, jobs, on_job, on_word)
            self.references[task.name].runs.append(seen.plain_run)

    def complete_references(self, log: JobLog, on_job: OnJob, on_word: OnWord = unheard) -> None:
        """Observe again, in new processes, where an output could not be judged yet."""
        for task in self.manifests.tasks:
            jobs, reference = log.of(task.name), self.references[task.name]
            for _ in range(_MORE_RUNS):
                if reference.failure or not reference.undecided(jobs):
                    break
                most = min(len(jobs) + 1, _MOST_JOBS)
                try:
                    seen = self._observe(task, most, on_job, on_word)
                    reference.runs.append(seen.plain_run)
                    reference.failure = seen.ended_early
                except profiling.UnobservedError as error:
                    reference.failure = error.why
                    reference.runs.append(error.seen)
                except CommandError as error:
                    reference.failure = f"it could not be run again without Tierline: {error}"

    def leave_references(self) -> None:
        """Somebody ended the comparison: what could not be judged so far is left."""
        for reference in self.references.values():
            reference.failure = reference.failure or "the comparison was ended"

    def _observe(
        self, task: MemTask, jobs: int, on_job: OnJob, on_word: OnWord
    ) -> profiling.Observation:
        return profiling.observe(
            task, self.place, self.work_dir, jobs, lambda done: on_job(task.name, done), on_word
        )
