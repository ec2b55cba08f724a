"""An observed run: nothing is moved, everything is measured, and written as JSON lines.

First `{"began": …}`, the number of the process: one that is started again begins the file again.
Per job one line `{"output": {"input", "output", "compute_s"}}` with digests in hex; when a site is
settled one `{"order": …}` (`learned`); once, at the end, `{"profile": …}`: the layers of all arenas
(bytes, compute time in seconds), the workspace peak in bytes, the digest of the weights, and each
job's time, and of releases how many jobs each arena has in one, what passes between them, and how
long after a release the first one begins, at most. Layers and their order are those that a managed
run lays out, because both come from the
same lesson. Weights that stay outside of arenas are pinned layers of one more arena, which no
managed run fills: so they are in the plan.

The compute times of an arena's layers are the medians over the jobs in which layers were timed,
scaled so that their sum is the worst job's time, and once more so that it is the mean of all jobs.
The worst of each layer alone would add up disturbances of all jobs as if one job could suffer them
all: on a busy machine, several times the worst job ever seen. It is told besides: others wait for a
layer when a job yields. Where no job counted (a script with
one job), the worst of those that did not stands in.

A forked child is measured as any process is, and writes to the same file: of a server that warms up
and then forks workers the first of them that had jobs enough has the profile. None is written that
rests on fewer jobs than the one that is there.

Inside a `tierline.periodic` loop jobs count once it has warmed up; without one, from each settled
site's third job on. A program with a loop of its own has its profile written when as many jobs
counted as were asked for, and again at its end if it showed more by then: the last line holds.

On Kubernetes TIERLINE_PLANNED names the file that is there once the task was planned by what was
measured: then the program runs no job after its profile (`until_planned`). With TIERLINE_SOCKET
each job takes the lease (`observed_lease`); a job's time begins when it has it.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch

from tierline_api.layout import MAX_ARENAS
from tierline_client import GiveBack
from tierline_torch.arenas.contents import Entry
from tierline_torch.backends import until_planned
from tierline_torch.backends.owner import Owner
from tierline_torch.backends.record import Record
from tierline_torch.calls import Invoke, is_forked, plain
from tierline_torch.errors import TierlineError
from tierline_torch.learning.course import MOST_ENTRIES
from tierline_torch.learning.learned import as_record
from tierline_torch.learning.site import FIRST_GATE_NS, Lesson, Reportable, Site, Window, spread
from tierline_torch.learning.survey import Stopwatch, Survey
from tierline_torch.ours import ours

if TYPE_CHECKING:
    from tierline_torch.backends.observed_lease import ObservedLease

DEFAULT_RELEASES = 12
_WARM_JOBS = 2
_PATIENCE = 20
"""A loop in which nothing counts, as each job has a model of its own, is profiled after so many
times the jobs that were asked for, by what was seen."""
_NOTHING: GiveBack = bool
_HOUR_NS = 3_600_000_000_000


@dataclass
class _Measured:
    """The knowledge of one arena; its contents' tensors are not kept."""

    entries: tuple[Entry, ...]
    recorded_s: float
    """The worst job before it was settled."""
    jobs_s: list[float] = field(default_factory=list)
    """Of each counted job."""
    uncounted_s: list[float] = field(default_factory=list)
    layers_s: list[tuple[float, ...]] = field(default_factory=list)
    """Per job in which they were timed, the time of each entry."""
    roots: tuple[weakref.ref[torch.nn.Module], ...] = ()
    """The modules that it was learned from."""

    @property
    def shows_enough(self) -> bool:
        """Whether a job counted, or none ever will: its modules are gone."""
        return bool(self.jobs_s) or not any(root() is not None for root in self.roots)

    @property
    def first_extra_s(self) -> float:
        """How much longer than any that counted a job took before."""
        first_s = max(self.uncounted_s, default=0.0)
        return max(0.0, first_s - max(self.jobs_s, default=first_s))

    def longest_s(self) -> list[float | None]:
        """The longest time of each entry in any job; a layer may be slow in one that is not.

        At least its part of the worst job, in which layers need not have been timed.
        """
        if not self.layers_s:
            return [None for _ in self.entries]
        slowest = (max(times) for times in zip(*self.layers_s, strict=True))
        pairs = zip(slowest, self.compute_s(), strict=True)
        return [max(longest, worst) for longest, (worst, _) in pairs]

    def compute_s(self) -> list[tuple[float, float | None]]:
        """The worst and the mean time of each entry, as the profile gives them."""
        typical = [median(times) for times in zip(*self.layers_s, strict=True)]
        if not sum(typical):
            typical = [0.0 if entry.pinned else entry.size_bytes for entry in self.entries]
        if not sum(typical):
            typical = [1.0 for _ in self.entries]
        worst_s = max(self.jobs_s or self.uncounted_s or [self.recorded_s])
        worst = worst_s / sum(typical)
        mean = min(worst, fmean(self.jobs_s) / sum(typical)) if self.jobs_s else None
        return [(one * worst, None if mean is None else one * mean) for one in typical]


class _Release:
    """The jobs of one release after another: how many, what passes between, how late they begin."""

    def __init__(self) -> None:
        self.between_s = self.jitter_s = 0.0
        """Of the releases so far, the most of each."""
        self._most: dict[int, int] = {}
        self._calls: dict[int, int] = {}
        self._release_ns: int | None = None
        self._between_s = 0.0
        self._ended_s = 0.0

    def begins(self, window: Window, arena: int) -> None:
        """A job asks for the device."""
        now_s = time.monotonic()
        if window.release_ns != self._release_ns:
            self._release_ns, self._between_s = window.release_ns, 0.0
            self._calls = {}
            self.jitter_s = max(self.jitter_s, now_s - window.release_ns / 1e9)
        else:
            self._between_s += now_s - self._ended_s
            self.between_s = max(self.between_s, self._between_s)
        self._calls[arena] = self._calls.get(arena, 0) + 1
        self._most[arena] = max(self._most.get(arena, 0), self._calls[arena])

    def ends(self) -> None:
        """The job is over."""
        self._ended_s = time.monotonic()

    def calls(self, arenas: int) -> list[int]:
        """The most jobs of each arena in a release, and of what has none: at least one job."""
        without = max(self._most.get(-1, 0), 0 if arenas else 1)
        return [*(max(1, self._most.get(n, 0)) for n in range(arenas)), without]


class Observer:
    """The backend of an observed process. See `site.Backend`."""

    period_ns = 0
    deadline_ns = _HOUR_NS
    wants_witness = True
    profiles = True

    def __init__(self, process: Owner, path: str, survey: Survey) -> None:
        """Raises TierlineError if the file or the number of releases cannot be used."""
        self.releases: int | None = told_releases()
        self.survey = survey
        self._process = process
        self._path = Path(path)
        self._arenas: list[_Measured] = []
        self._outside: list[_Measured] = []
        """Weights that stay outside of arenas, of each site that has such."""
        self._of_site: dict[int, tuple[_Measured, Stopwatch]] = {}
        """By the site's id."""
        self._digests: list[str] = []
        """Of the weights of each arena."""
        self._workspace_bytes = 0
        self._workspace_known = True
        self._jobs_s: list[float] = []
        self._plain: Stopwatch = survey.stopwatch(None)
        self._watch = self._plain
        self._recorded_s: dict[str, float] = {}
        """By the name of a site, its slowest job before it was settled."""
        self._counting = self._timed = False
        self._release = _Release()
        self._paused_ns: int | None = None
        """When the job in progress, if it learns, could have given the device away last."""
        self._first_section_s = 0.0
        """Longest stretch of a first job between two such moments."""
        self._number = 0
        self._writing = threading.Lock()
        self._finished = False
        self._settled = 0
        """How many sites are."""
        self._told_sites = self._told_jobs = 0
        """The sites and jobs on which the written profile rests."""
        self._planned = os.environ.get("TIERLINE_PLANNED", "")
        try:
            # a forked child's is the parent's and the other children's, too
            self._record = Record(self._path, empty=not is_forked())
            if not is_forked():
                self._record.write(json.dumps({"began": os.getpid()}))
        except OSError as error:
            raise TierlineError(
                f"could not write TIERLINE_OBSERVE={path}: {error.strerror}; "
                "give a file that can be written"
            ) from error
        self._lease: ObservedLease | None = None
        socket_path = os.environ.get("TIERLINE_SOCKET")
        if socket_path:
            from tierline_torch.backends.observed_lease import ObservedLease  # noqa: PLC0415  # loads the library

            self._lease = ObservedLease(socket_path)
        atexit.register(self.finish)

    @property
    def waits(self) -> bool:
        """Whether a thread of this process waits for its turn on the device now."""
        return self._lease is not None and self._lease.waits

    @property
    def over(self) -> GiveBack:
        """Gives the device back, if others are there."""
        return _NOTHING if self._lease is None else self._lease.over

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Start the clock; with a lease, when the job has the device."""
        if self._planned:
            until_planned.end_if_decided(self._planned)
            if self._finished:
                until_planned.make_room(self._planned)
        measured = self._of_site.get(id(site)) if stream else None
        self._watch = self._plain if measured is None else measured[1]
        in_loop = self._process.window is not None
        counts = stream and not warmup and (in_loop or site.jobs >= _WARM_JOBS)
        self._timed = self._watch.learns
        self._counting = counts and not self._timed
        if counts and in_loop:
            self._release.begins(window, -1 if site.arena is None else site.arena)
        self._take_turn(window)
        self._number += 1
        self._watch.start()
        self._paused_ns = None if site.settled else time.perf_counter_ns()
        return plain if measured is None else self._watch

    def _take_turn(self, window: Window) -> None:
        if self._lease is None:
            return
        try:
            self._lease.take(window)
        finally:
            if self._planned:  # decided meanwhile: the agent may have refused it for that
                until_planned.end_if_decided(self._planned)

    def pause(self) -> None:
        """Nobody else is there: note how long others would have waited."""
        if self._paused_ns is None or not self.survey.finish():
            return
        now_ns = time.perf_counter_ns()
        if now_ns - self._paused_ns >= FIRST_GATE_NS:
            self._note_section(now_ns)
            self._paused_ns = now_ns

    @contextmanager
    def without_lease(self) -> Iterator[None]:
        """A block for which others would not have waited."""
        self.survey.finish()
        self._note_section(time.perf_counter_ns())
        try:
            yield
        finally:
            if self._paused_ns is not None:
                self._paused_ns = time.perf_counter_ns()

    def _note_section(self, now_ns: int) -> None:
        if self._paused_ns is not None:
            self._first_section_s = max(self._first_section_s, (now_ns - self._paused_ns) / 1e9)

    def end(self, site: Site) -> Reportable:
        """Stop the clock when the job's work is done, and keep the times if the job counts."""
        self.survey.finish()
        self._watch.stop()
        if self._paused_ns is not None:
            self._note_section(time.perf_counter_ns())
            self._paused_ns = None
        if self._lease is not None:
            self._lease.give_back()
        self._release.ends()
        if self._counting:
            self._jobs_s.append(self._watch.total_s)
        if site.settled:
            if id(site) in self._of_site:
                self._keep_times(self._of_site[id(site)][0])
        else:
            known_s = self._recorded_s.get(site.name, 0.0)
            self._recorded_s[site.name] = max(known_s, self._watch.total_s)
        if self._counting and self._process.window is None and self._shows_enough:
            ours(self._write_profile)  # a loop of the program's own may never end
        return Reportable(self._number, self._watch.total_s)

    def _keep_times(self, arena: _Measured) -> None:
        watch = self._watch
        times = watch.layer_times_s()
        if self._counting:
            arena.jobs_s.append(watch.total_s)
        elif times is not None or not self._timed:  # else it made ready for that
            arena.uncounted_s.append(watch.total_s)
        if times is None:
            return
        if not self._counting:
            self._first_section_s = max(self._first_section_s, times[0], *times[1], 0.0)
        if self._counting or watch.learns:
            arena.layers_s.append(spread(*times, arena.entries))
        if watch.learns:
            self._process.lessons += 1  # a loop that warms up goes on

    @property
    def _shows_enough(self) -> bool:
        """Whether as many jobs counted as were asked for, some of every arena, and that is new."""
        asked = self.releases or DEFAULT_RELEASES
        told = self._finished and self._told_sites == self._settled
        counted = len(self._jobs_s) >= asked and all(one.shows_enough for one in self._arenas)
        return counted and not told

    def watched(self) -> None:
        """Give up waiting for jobs that count, after many that do not."""
        patience = _PATIENCE * (self.releases or DEFAULT_RELEASES)
        endless = self._process.window is None and self._number >= patience
        if endless and not self._finished and not self._jobs_s:
            self.finish()

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
        self._workspace_known &= lesson.workspace_known
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
        if too_much := self._beyond_a_profile(contents.entries):
            many, advice = f"{site.name}: {too_much[0]}", too_much[1]
            self._process.say(f"{many}: it stays resident{advice}")
            stays = Entry(f"outside: {many}", contents.size_bytes, pinned=True)
            self._outside.append(_Measured((stays,), recorded_s))
            return
        site.arena = len(self._arenas)
        digest = hashlib.sha256()
        contents.digest_into(digest)
        self._digests.append(digest.hexdigest())
        self._write(as_record(contents, lesson.names, lesson.workspace_bytes))
        measured = _Measured(contents.entries, recorded_s, roots=site.roots)
        self._of_site[id(site)] = measured, self.survey.stopwatch(contents)
        self._arenas.append(measured)

    def _beyond_a_profile(self, entries: Sequence[Entry]) -> tuple[str, str] | None:
        """The limit that one more arena would exceed, and advice; None if it exceeds none."""
        if len(self._arenas) == MAX_ARENAS - 1:
            advice = "; put modules that run together into one `with tierline.job():` block"
            return f"a task has at most {MAX_ARENAS - 1} job roots", advice
        if sum(len(one.entries) for one in self._arenas) + len(entries) > MOST_ENTRIES:
            return "more layers than a profile holds, with those of other models", ""
        return None

    def ready(self) -> tuple[int, int]:
        """Releases may begin at once."""
        return 0, 0

    def finish(self) -> None:
        """Settle what was seen, and write the profile if it shows more than the one written."""
        if self._process.is_of(self):
            ours(self._finish)

    def _finish(self) -> None:
        self._process.settle_all(self)
        told = self._finished and self._told_jobs == len(self._jobs_s)
        if self._settled and not (told and self._told_sites == self._settled):
            self._write_profile()

    def _write_profile(self) -> None:
        self._finished = True
        self._told_sites, self._told_jobs = self._settled, len(self._jobs_s)
        if _jobs_told(self._path) > len(self._jobs_s):
            return  # a process that was forked, or that this one was forked from, showed more
        layers = [
            {
                "name": entry.name,
                "bytes": entry.size_bytes,
                "compute_s": worst_s,
                "mean_compute_s": mean_s,
                # a GPU's layers are timed at a price, in jobs that do not count for it
                "longest_compute_s": longest_s if self.survey.kind == "cpu" else None,
                "pinned": entry.pinned,
                "arena": number,
            }
            for number, part in self._parts()
            for entry, (worst_s, mean_s), longest_s in zip(
                part.entries, part.compute_s(), part.longest_s(), strict=True
            )
        ]
        self._write(
            {
                "profile": {
                    "layers": layers,
                    "workspace_bytes": self._workspace_bytes,
                    "workspace_known": self._workspace_known,
                    "weights_digest": hashlib.sha256("".join(self._digests).encode()).hexdigest(),
                    "weights_digests": self._digests,
                    "calls": self._release.calls(len(self._arenas)),
                    "between_s": self._release.between_s,
                    "jitter_s": self._release.jitter_s,
                    **self._firsts(),
                    "compute_s": self._jobs_s,
                }
            }
        )

    def _firsts(self) -> dict[str, float]:
        """Times of first jobs."""
        extra_s = max((one.first_extra_s for one in self._arenas), default=0.0)
        return {"first_section_s": self._first_section_s, "first_extra_s": extra_s}

    def _parts(self) -> list[tuple[int, _Measured]]:
        """Measurements by arena; those outside of arenas as one more of them."""
        outside = [(len(self._arenas), one) for one in self._outside]
        return [*enumerate(self._arenas), *outside]

    def _write(self, record: dict[str, object]) -> None:
        try:
            with self._writing:
                self._record.write(json.dumps(record))
        except OSError as error:  # the program goes on; its profile is not complete
            self._process.say(f"could not write TIERLINE_OBSERVE={self._path}: {error.strerror}")


def _jobs_told(path: Path) -> int:
    """How many jobs counted for the last profile in a file; 0 if there is none to be read."""
    try:
        lines = path.read_text().splitlines()
        told = [line for line in lines if line.startswith('{"profile"')]
        return len(json.loads(told[-1])["profile"]["compute_s"]) if told else 0
    except (OSError, ValueError, KeyError):
        return 0


def told_releases() -> int:
    """How many releases are to be measured. Raises TierlineError."""
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
