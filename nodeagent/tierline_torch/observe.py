"""An observed run: nothing is moved, everything is measured, and written as JSON lines.

Per job one line `{"output": {"input", "output", "compute_s"}}` with digests in hex; when a site is
settled one `{"order": …}` (`learned`); once, at the end, `{"profile": …}`: the layers of all arenas
(bytes, compute time in seconds), the workspace peak in bytes, the digest of the weights, and each
job's time. Layers and their order are those that a managed run lays out, because both come from the
same lesson. Weights that stay outside of arenas are pinned layers of one more arena, which no
managed run fills: so they are in the plan.

The compute times of an arena's layers are the medians over the jobs in which layers were timed,
scaled so that their sum is the worst job's time, and once more so that it is the mean of all jobs.
The worst of each layer alone would add up disturbances of all jobs as if one job could suffer them
all: on a busy machine, several times the worst job ever seen. Where no job counted (a script with
one job), the worst of those that did not stands in.

Inside a `tierline.periodic` loop jobs count once it has warmed up; without one, from each settled
site's third job on. A program with a loop of its own has its profile written when as many jobs
counted as were asked for, and again at its end if it showed more by then: the last line holds.

On Kubernetes TIERLINE_PLANNED names the file that is there once the task was planned by what was
measured: then the program runs no job after its profile (`parking`). With TIERLINE_SOCKET each job
takes the lease (`turns`); a job's time begins when it has it.
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
from tierline_torch.contents import Entry
from tierline_torch.errors import TierlineError
from tierline_torch.jobs import Lesson, Reportable, Site, Window, spread
from tierline_torch.learned import as_record
from tierline_torch.survey import Stopwatch, Survey

if TYPE_CHECKING:
    from tierline_torch.process import Process
    from tierline_torch.turns import Turns

DEFAULT_RELEASES = 12
_WARM_JOBS = 2
_HOUR_NS = 3_600_000_000_000


@dataclass
class _Measured:
    """What is known of one arena; its contents' tensors are not kept."""

    entries: tuple[Entry, ...]
    recorded_s: float
    """The worst job before it was settled."""
    jobs_s: list[float] = field(default_factory=list)
    """Of each counted job."""
    uncounted_s: list[float] = field(default_factory=list)
    layers_s: list[tuple[float, ...]] = field(default_factory=list)
    """Per job in which they were timed, the time of each entry."""

    def compute_s(self) -> list[tuple[float, float | None]]:
        """The worst and the mean time of each entry, as the profile gives them."""
        typical = [median(times) for times in zip(*self.layers_s, strict=True)]
        if not sum(typical):
            typical = [0.0 if entry.pinned else entry.size_bytes for entry in self.entries]
        if not sum(typical):
            typical = [1.0 for _ in self.entries]
        worst_s = max(self.jobs_s or self.uncounted_s or [self.recorded_s])
        worst = worst_s / sum(typical)
        mean = fmean(self.jobs_s) / sum(typical) if self.jobs_s else None
        return [(one * worst, None if mean is None else one * mean) for one in typical]


class Observer:
    """The backend of an observed process. See `jobs.Backend`."""

    period_ns = 0
    deadline_ns = _HOUR_NS
    wants_witness = True
    profiles = True

    def __init__(self, process: Process, path: str, survey: Survey) -> None:
        """Raises TierlineError if the file or the number of releases cannot be used."""
        self.releases: int | None = _releases()
        self.survey = survey
        self._process = process
        self._path = Path(path)
        self._arenas: list[_Measured] = []
        self._outside: list[_Measured] = []
        """What stays outside of arenas, of each site that has such."""
        self._of_site: dict[int, tuple[_Measured, Stopwatch]] = {}
        """By the site's id."""
        self._digest = blake3()
        self._workspace_bytes = 0
        self._jobs_s: list[float] = []
        self._plain: Stopwatch = survey.stopwatch(None)
        self._watch = self._plain
        self._recorded_s: dict[str, float] = {}
        """By the name of a site, its slowest job before it was settled."""
        self._counting = False
        self._number = 0
        self._writing = threading.Lock()
        self._finished = False
        self._settled = 0
        """How many sites are."""
        self._told_sites = self._told_jobs = 0
        """What the profile that is written rests on."""
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

    @property
    def waits(self) -> bool:
        """Whether a thread of this process waits for its turn on the device now."""
        return self._turns is not None and self._turns.waits

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Start the clock; with turns, when the job has the device."""
        if self._planned:
            parking.end_if_decided(self._planned)
            if self._finished:
                parking.make_room(self._planned)
        self._take_turn(window)
        measured = self._of_site.get(id(site)) if stream else None
        self._watch = self._plain if measured is None else measured[1]
        in_loop = self._process.window is not None
        counts = stream and not warmup and (in_loop or site.jobs >= _WARM_JOBS)
        self._counting = counts and not self._watch.learns
        self._number += 1
        self._watch.start()
        return plain if measured is None else self._watch

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
        if site.settled:
            if id(site) in self._of_site:
                self._keep_times(self._of_site[id(site)][0])
        else:
            known_s = self._recorded_s.get(site.name, 0.0)
            self._recorded_s[site.name] = max(known_s, self._watch.total_s)
        if self._counting and self._process.window is None and self._shows_enough:
            self._write_profile()  # a loop of the program's own may never end
        return Reportable(self._number, self._watch.total_s)

    def _keep_times(self, arena: _Measured) -> None:
        watch = self._watch
        (arena.jobs_s if self._counting else arena.uncounted_s).append(watch.total_s)
        times = watch.layer_times_s()
        if times is None:
            return
        if self._counting or watch.learns:
            arena.layers_s.append(spread(*times, arena.entries))
        if watch.learns:
            self._process.lessons += 1  # a loop that warms up goes on

    @property
    def _shows_enough(self) -> bool:
        """Whether as many jobs counted as were asked for, some of every arena, and that is new."""
        asked = self.releases or DEFAULT_RELEASES
        told = self._finished and self._told_sites == self._settled
        counted = len(self._jobs_s) >= asked and all(one.jobs_s for one in self._arenas)
        return counted and not told

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
        self._settled += 1
        for sentence in lesson.sentences(site.name):
            self._process.say(sentence)
        outside = [
            Entry(f"outside: {reason}", size_bytes, pinned=True)
            for reason, size_bytes in lesson.stays.items()
        ]
        recorded_s = self._recorded_s.get(site.name, 0.0)
        contents = lesson.contents
        if contents is None:
            outside = outside or [Entry(site.name, 0, pinned=True)]
            measured = _Measured(tuple(outside), recorded_s)
            self._of_site[id(site)] = measured, self._plain
            self._outside.append(measured)
            return
        if outside:
            self._outside.append(_Measured(tuple(outside), 0.0))
        if len(self._arenas) == MAX_ARENAS - 1:
            self._process.say(
                f"{site.name} is not profiled: a task has at most {MAX_ARENAS - 1} job roots; "
                "put modules that run together into one `with tierline.job():` block"
            )
            return
        site.arena = len(self._arenas)
        contents.digest_into(self._digest)
        self._write(as_record(contents, lesson.names, lesson.workspace_bytes))
        measured = _Measured(contents.entries, recorded_s)
        self._of_site[id(site)] = measured, self.survey.stopwatch(contents)
        self._arenas.append(measured)

    def ready(self) -> tuple[int, int]:
        """Releases may begin at once."""
        return 0, 0

    def finish(self) -> None:
        """Settle what was seen, and write the profile if it shows more than the one written."""
        self._process.settle_all(self)
        told = self._finished and self._told_jobs == len(self._jobs_s)
        if self._settled and not (told and self._told_sites == self._settled):
            self._write_profile()

    def _write_profile(self) -> None:
        self._finished = True
        self._told_sites, self._told_jobs = self._settled, len(self._jobs_s)
        layers = [
            {
                "name": entry.name,
                "bytes": entry.size_bytes,
                "compute_s": worst_s,
                "mean_compute_s": mean_s,
                "pinned": entry.pinned,
                "arena": number,
            }
            for number, part in self._parts()
            for entry, (worst_s, mean_s) in zip(part.entries, part.compute_s(), strict=True)
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

    def _parts(self) -> list[tuple[int, _Measured]]:
        """What was measured, by arena; what is outside of arenas as one more of them."""
        outside = [(len(self._arenas), one) for one in self._outside]
        return [*enumerate(self._arenas), *outside]

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
