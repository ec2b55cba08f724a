"""An observed run: nothing is moved, everything is measured, and written as JSON lines.

Per job one line `{"output": {"input", "output", "compute_s"}}` with digests in hex; once, at the
end, `{"profile": …}`: the layers of all arenas (bytes, compute time in seconds), the workspace peak
in bytes, the digest of the weights, and each job's time. Layers and their order are those that a
managed run lays out, because both come from the same lesson.

On `cpu` the compute times of an arena's layers are the medians over the counted jobs, scaled so
that their sum is the worst job's time, and once more so that it is the mean of all jobs. The worst
of each layer alone would add up disturbances of all jobs as if one job could suffer them all: on a
busy machine, several times the worst job ever seen. On `cuda` they are those of the lesson, scaled
in the same ways.

Inside a `tierline.periodic` loop jobs count once it has warmed up; without one, from each site's
third job on.

On Kubernetes TIERLINE_PLANNED names the file that is there once the task was planned by what was
measured. A program with a loop of its own writes its profile when as many jobs counted as were
asked for, and runs no job after that (`parking`). With TIERLINE_SOCKET each job takes the lease
(`turns`); a job's time begins when it has it.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from blake3 import blake3

from tierline_api.layout import MAX_ARENAS
from tierline_torch import parking
from tierline_torch.calls import Invoke, plain
from tierline_torch.errors import TierlineError
from tierline_torch.gates import Stopwatch
from tierline_torch.jobs import Lesson, Reportable, Site, Window, spread
from tierline_torch.learned import as_record
from tierline_torch.survey import Survey

if TYPE_CHECKING:
    from tierline_torch.contents import Contents, Entry
    from tierline_torch.process import Process
    from tierline_torch.turns import Turns

DEFAULT_RELEASES = 12
_WARM_JOBS = 2
_HOUR_NS = 3_600_000_000_000


@dataclass
class _Measured:
    """What is known of one arena; its contents' tensors are not kept."""

    entries: tuple[Entry, ...]
    gates: dict[int, int]
    lesson_s: tuple[float, ...]
    jobs_s: list[tuple[float, ...]] = field(default_factory=list)
    """Per counted job, the time of each entry."""

    def times_of(self, watch: Stopwatch) -> tuple[float, ...]:
        """The time of each entry in the job that was just stopped."""
        learned_s = sum(self.lesson_s)
        if self.gates or not learned_s:
            return spread(*watch.layer_times_s(), self.entries)
        return tuple(one * watch.total_s / learned_s for one in self.lesson_s)

    def compute_s(self) -> list[tuple[float, float | None]]:
        """The worst and the mean time of each entry, as the profile gives them."""
        if not self.jobs_s:
            return [(one, None) for one in self.lesson_s]
        typical = [median(times) for times in zip(*self.jobs_s, strict=True)]
        jobs_s = [sum(times) for times in self.jobs_s]
        total = sum(typical) or 1.0
        worst, usual = max(jobs_s) / total, fmean(jobs_s) / total
        return [(one * worst, one * usual) for one in typical]


class Observer:
    """The backend of an observed process. See `jobs.Backend`."""

    period_ns = 0
    deadline_ns = _HOUR_NS
    wants_witness = True

    def __init__(self, process: Process, path: str, survey: Survey) -> None:
        """Raises TierlineError if the file or the number of releases cannot be used."""
        self.releases: int | None = _releases()
        self.survey = survey
        self._process = process
        self._path = Path(path)
        self._arenas: list[_Measured] = []
        self._digest = blake3()
        self._workspace_bytes = 0
        self._jobs_s: list[float] = []
        self._watch = Stopwatch({})
        self._counting = False
        self._number = 0
        self._writing = threading.Lock()
        self._finished = False
        self._planned = os.environ.get("TIERLINE_PLANNED", "")
        try:
            self._path.write_text("")
        except OSError as error:
            raise TierlineError(
                f"could not write TIERLINE_OBSERVE={path}: {error.strerror}; "
                "give a file that can be written"
            ) from error
        self._turns: Turns | None = None
        socket_path = os.environ.get("TIERLINE_SOCKET")
        if socket_path:
            from tierline_torch.turns import Turns  # noqa: PLC0415  # loads the library

            self._turns = Turns(socket_path)
        atexit.register(self.finish)

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Start the clock; with turns, when the job has the device."""
        if self._planned:
            parking.end_if_decided(self._planned)
            if self._finished:
                parking.make_room(self._planned)
        self._take_turn(window)
        in_loop = self._process.window is not None
        self._counting = stream and not warmup and (in_loop or site.jobs >= _WARM_JOBS)
        self._watch = Stopwatch(site.gates if stream else {})
        self._number += 1
        self._watch.start()
        return self._watch if site.gates and stream else plain

    def _take_turn(self, window: Window) -> None:
        if self._turns is None:
            return
        try:
            self._turns.take(window)
        finally:
            if self._planned:  # decided meanwhile: the agent may have refused it for that
                parking.end_if_decided(self._planned)

    def end(self, site: Site) -> Reportable:
        """Stop the clock when the job's work is done, and keep the times if the job counts."""
        self.survey.finish()
        self._watch.stop()
        if self._turns is not None:
            self._turns.give_back()
        if self._counting:
            self._jobs_s.append(self._watch.total_s)
            if site.arena is not None:
                arena = self._arenas[site.arena]
                arena.jobs_s.append(arena.times_of(self._watch))
            if self._planned and self._process.window is None and self._enough:
                self.finish()  # a loop of the program's own may never end
        return Reportable(self._number, self._watch.total_s)

    @property
    def _enough(self) -> bool:
        """Whether as many jobs counted as were asked for, and some of every arena."""
        asked = self.releases or DEFAULT_RELEASES
        return len(self._jobs_s) >= asked and all(arena.jobs_s for arena in self._arenas)

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        """Write a job's digests."""
        self._write(
            {
                "output": {
                    "input": inputs.hex(),
                    "output": outputs.hex(),
                    "compute_s": job.duration_s,
                }
            }
        )

    def settle(self, site: Site, lesson: Lesson) -> None:
        """Measure the site's jobs from now on."""
        self._workspace_bytes = max(self._workspace_bytes, lesson.workspace_bytes)
        if len(self._arenas) == MAX_ARENAS:
            self._process.say(
                f"{site.name} is not profiled: a task has at most {MAX_ARENAS} job roots; "
                "put modules that run together into one `with tierline.job():` block"
            )
            return
        contents: Contents = lesson.contents
        site.arena = len(self._arenas)
        site.gates = dict(contents.gates)
        contents.digest_into(self._digest)
        if contents.launches:
            self._write(as_record(contents))
        self._arenas.append(_Measured(contents.entries, site.gates, lesson.compute_s))

    def ready(self) -> tuple[int, int]:
        """Releases may begin at once."""
        return 0, 0

    def finish(self) -> None:
        """Write the profile, once."""
        if self._finished or not self._arenas:
            return
        self._finished = True
        layers = [
            {
                "name": entry.name,
                "bytes": entry.size_bytes,
                "compute_s": worst_s,
                "mean_compute_s": mean_s,
                "pinned": entry.pinned,
                "arena": number,
            }
            for number, arena in enumerate(self._arenas)
            for entry, (worst_s, mean_s) in zip(arena.entries, arena.compute_s(), strict=True)
        ]
        self._write(
            {
                "profile": {
                    "layers": layers,
                    "workspace_bytes": self._workspace_bytes,
                    "weights_digest": self._digest.hexdigest(),
                    "compute_s": self._jobs_s,
                }
            }
        )

    def _write(self, record: dict[str, object]) -> None:
        with self._writing, self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _releases() -> int:
    given = os.environ.get("TIERLINE_OBSERVE_JOBS", str(DEFAULT_RELEASES))
    try:
        releases = int(given)
    except ValueError:
        releases = 0
    if releases < 1:
        raise TierlineError(
            f"could not read TIERLINE_OBSERVE_JOBS={given}: give a whole number above 0"
        )
    return releases
