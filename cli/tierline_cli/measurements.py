"""What is known of the tasks of a run: profiles, reference outputs, compute times alone.

A profile comes from the manifests or is measured here by observing the program. The reference
outputs come from observing only. What they leave open after a run, programs are run again for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tierline_api.manifests import Manifests
from tierline_api.memprofile import MemProfile
from tierline_api.memtask import MemTask
from tierline_cli import profiling
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.place import Place
from tierline_cli.results import JobLog
from tierline_cli.verdicts import ENOUGH_RUNS, Reference

_MORE_RUNS = ENOUGH_RUNS  # the first ones may have had other inputs
_MOST_JOBS = 2000
"""Of one more run without Tierline; what a long run did after so many is not compared."""
OnJob = Callable[[str, int], None]
"""Hears a task's name and how many of its jobs were observed."""


@dataclass
class Measurements:
    """By task name: its profile, its outputs without Tierline, its usual time alone in seconds."""

    manifests: Manifests
    place: Place
    work_dir: Path
    profiles: dict[str, MemProfile] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    compute_only_s: dict[str, float] = field(default_factory=dict)

    @property
    def weights_bytes(self) -> int:
        """Weights of all tasks together."""
        return sum(profile.spec.weight_bytes for profile in self.profiles.values())

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

    def take(self, jobs: int, on_job: OnJob) -> None:
        """Take each task's profile from the files, or observe `jobs` jobs of its program.

        Raises:
            CommandError: see `unprofiled`, and where a program failed.
        """
        unprofiled = self.unprofiled()
        product = self.place.product() if unprofiled else ""  # before any program is started
        for task in self.manifests.tasks:
            given = self.manifests.profile_of(task)
            if task in unprofiled or given is None:
                seen = self._observe(task, jobs, on_job)
                self.profiles[task.name] = profiling.as_profile(task, seen, product)
                self.compute_only_s[task.name] = profiling.typical(seen.compute_s)
                self.references[task.name] = Reference([seen.plain_run])
            else:
                self.profiles[task.name] = given
                self.compute_only_s[task.name] = given.spec.compute_s
                self.references[task.name] = Reference()

    def take_again(self, jobs: int, on_job: OnJob) -> None:
        """Observe every program once more, in a new process, for what it gives."""
        for task in self.manifests.tasks:
            seen = self._observe(task, jobs, on_job)
            self.references[task.name].runs.append(seen.plain_run)

    def complete_references(self, log: JobLog, on_job: OnJob) -> None:
        """Observe again, in new processes, where an output could not be judged yet."""
        for task in self.manifests.tasks:
            jobs, reference = log.of(task.name), self.references[task.name]
            for _ in range(_MORE_RUNS):
                if not reference.undecided(jobs):
                    break
                try:
                    seen = self._observe(task, min(len(jobs) + 1, _MOST_JOBS), on_job)
                except CommandError as error:
                    reference.failure = f"it could not be run again without Tierline: {error}"
                    break
                reference.runs.append(seen.plain_run)

    def _observe(self, task: MemTask, jobs: int, on_job: OnJob) -> profiling.Observation:
        return profiling.observe(
            task, self.place, self.work_dir, jobs, lambda done: on_job(task.name, done)
        )
