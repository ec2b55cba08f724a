"""Where the time of a streamed job goes that is neither compute nor copying.

Two clocks are put together, both CLOCK_MONOTONIC: the program's own stamps around what the plugin
calls (`stamp_jobs`), and the times at which the flag words of its arena changed, seen by a thread
of another process that looks at them all the time (`WordWatch`). Neither changes what is measured,
but for one more wait for the GPU before each job's end.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_PAGE_BYTES = 4096
_PUBLISHED, _CONSUMED = 0, 16
"""Places of the flag words in a control page, in words."""
_SCAN_S = 0.05
_BEFORE = "  not copying before extent "
_LONGEST = 6
"""How many of the gaps between extents are told."""

STAMPS = ("call", "begin", "granted", "launch", "launched", "end", "idle", "ended", "over")
"""In a job's order: the program calls its model, the plugin asks for the device, has it, the graph
is launched, that has returned, the plugin ends the job, the GPU is done, the job is over, and the
program goes on."""


class Stamps:
    """A program's own times of each job, nanoseconds; -1 where something did not happen."""

    def __init__(self) -> None:
        self.jobs: list[list[int]] = []
        self._current = [-1] * len(STAMPS)

    def now(self, name: str) -> None:
        """It happens now."""
        self._current[STAMPS.index(name)] = time.monotonic_ns()

    def next_job(self) -> None:
        """The job is over."""
        self.jobs.append(self._current)
        self._current = [-1] * len(STAMPS)


def stamp_jobs(synchronize: Callable[[], None]) -> Stamps:
    """Have the plugin's calls stamped from now on."""
    from tierline_client import Client  # noqa: PLC0415  # not in a program without Tierline

    stamps = Stamps()
    job_begin, job_end, replay = Client.job_begin, Client.job_end, torch.cuda.CUDAGraph.replay

    def begin(self: Client, *args: Any, **kwargs: Any) -> int:
        stamps.now("begin")
        job = job_begin(self, *args, **kwargs)
        stamps.now("granted")
        return job

    def end(self: Client, *args: Any, **kwargs: Any) -> None:
        stamps.now("end")
        synchronize()
        stamps.now("idle")
        job_end(self, *args, **kwargs)
        stamps.now("ended")

    def launch(self: torch.cuda.CUDAGraph) -> None:
        stamps.now("launch")
        replay(self)
        stamps.now("launched")

    Client.job_begin, Client.job_end = begin, end  # type: ignore[method-assign]
    torch.cuda.CUDAGraph.replay = launch  # type: ignore[method-assign]
    return stamps


@dataclass(frozen=True)
class Seen:
    """A flag word was found changed."""

    ns: int
    page: int
    published: bool
    value: int


class WordWatch:
    """Looks at all control pages of an agent's process until it is stopped."""

    def __init__(self, agent: int) -> None:
        self.seen: list[Seen] = []
        self._agent = agent
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> WordWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()

    def _run(self) -> None:
        words: dict[int, memoryview] = {}
        last: dict[int, tuple[int, int]] = {}
        next_scan = 0.0
        while not self._stopping:
            if time.monotonic() >= next_scan:
                self._scan(words)
                next_scan = time.monotonic() + _SCAN_S
            for page, view in words.items():
                now = view[_PUBLISHED], view[_CONSUMED]
                before = last.get(page)
                if now != before:
                    ns = time.monotonic_ns()
                    last[page] = now
                    if before is None or now[0] != before[0]:
                        self.seen.append(Seen(ns, page, True, now[0]))
                    if before is None or now[1] != before[1]:
                        self.seen.append(Seen(ns, page, False, now[1]))

    def _scan(self, words: dict[int, memoryview]) -> None:
        for link in Path(f"/proc/{self._agent}/fd").iterdir():
            try:
                if "tierline-control" not in str(link.readlink()):
                    continue
                page = link.stat().st_ino
                if page not in words:
                    with link.open("rb") as file:
                        kept = mmap.mmap(file.fileno(), _PAGE_BYTES, prot=mmap.PROT_READ)
                    words[page] = memoryview(kept).cast("I")
            except OSError:
                continue  # closed meanwhile


def break_down(
    jobs: Sequence[Sequence[int]], seen: Sequence[Seen], sizes: Sequence[int], rate: float
) -> dict[str, float]:
    """Medians of what each step of a job took, microseconds.

    `sizes`: bytes of the streamed extents in order; `rate`: bytes per second of a bare copy.
    """
    steps: dict[str, list[float]] = {}

    def took(name: str, ns: float) -> None:
        steps.setdefault(name, []).append(ns / 1e3)

    ordered = sorted(seen, key=lambda one: one.ns)
    times = [one.ns for one in ordered]
    for stamps in jobs:
        at = dict(zip(STAMPS, stamps, strict=True))
        passed = [name for name in STAMPS if at[name] >= 0]
        for before, after in itertools.pairwise(passed):
            took(f"{before} -> {after}", at[after] - at[before])
        took("call -> over", at["over"] - at["call"])
        if at["begin"] < 0 or not sizes:
            continue
        window = ordered[bisect.bisect(times, at["begin"]) : bisect.bisect(times, at["over"])]
        published = [one for one in window if one.published]
        if len(published) < 2:  # the reset, and what was streamed
            continue
        reset, *counts = published
        took("begin -> words set", reset.ns - at["begin"])
        took("words set -> granted", at["granted"] - reset.ns)
        took("extents there at once", reset.value * 1e3)
        first, last = counts[0], counts[-1]
        copied = sum(sizes[reset.value : first.value]) / rate * 1e9
        took("words set -> first count", first.ns - reset.ns)
        took("  of which not copying", first.ns - reset.ns - copied)
        copied = sum(sizes[first.value : last.value]) / rate * 1e9
        took("first count -> last count", last.ns - first.ns)
        took("  of which not copying ", last.ns - first.ns - copied)
        took("last count -> idle", at["idle"] - last.ns)
        for one, other in itertools.pairwise(counts):
            copied = sum(sizes[one.value : other.value]) / rate * 1e9
            took(f"{_BEFORE}{other.value - 1}", other.ns - one.ns - copied)
        consumed = [one for one in window if not one.published and one.ns > reset.ns]
        if consumed:
            took("words set -> first consumed", consumed[0].ns - reset.ns)
            took("last consumed -> idle", at["idle"] - consumed[-1].ns)
    medians = {name: statistics.median(values) for name, values in steps.items()}
    gaps = sorted((name for name in medians if name.startswith(_BEFORE)), key=medians.__getitem__)
    for name in gaps[:-_LONGEST]:
        del medians[name]
    return medians
