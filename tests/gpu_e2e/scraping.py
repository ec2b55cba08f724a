"""Reads the metrics of agent and operator once a second, and keeps them for a Prometheus to come.

The labels are those that the chart's monitors give. What is kept is OpenMetrics without types,
which `promtool tsdb create-blocks-from openmetrics` takes.
"""

from __future__ import annotations

import gzip
import re
import threading
import time
import urllib.request
from collections import defaultdict
from http.client import HTTPException
from pathlib import Path
from typing import Final

from tests.gpu_e2e.release import AGENTS, OPERATORS, Release

from tierline_cluster.api import ApiError, Manifest

_PERIOD_S: Final = 1.0
_LINE: Final = re.compile(r"^([a-z_:A-Z0-9]+)(?:\{(.*)\})? (\S+)$")
_PORTS: Final = {AGENTS: ("tierline-agent", 9464), OPERATORS: ("tierline-operator", 9402)}


class Scraper:
    """Scrapes from `start` to `stop`."""

    def __init__(self, release: Release, node: str) -> None:
        self._release, self._node = release, node
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._changing = threading.Lock()
        self.samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """By series: seconds since the epoch, and the value then."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ending.set()
        self._thread.join(10)

    def write(self, path: Path) -> None:
        """Write all samples until now."""
        samples = self._until_now()
        with gzip.open(path, "wt", encoding="utf-8") as file:
            for series, points in sorted(samples.items()):
                file.writelines(f"{series} {value!r} {moment:.3f}\n" for moment, value in points)
            file.write("# EOF\n")

    def increase(self, name: str, task: str, begin_s: float, end_s: float) -> float:
        """By how much a task's counter grew between two moments; it may start again in between."""
        grown = 0.0
        for series, points in self._until_now().items():
            if not (series.startswith(f"{name}{{") and f'task="{task}"' in series):
                continue
            before = 0.0
            for moment, value in points:
                step = value - before if value >= before else value
                grown += step if begin_s <= moment <= end_s else 0.0
                before = value
        return grown

    def _until_now(self) -> dict[str, tuple[tuple[float, float], ...]]:
        with self._changing:
            return {series: tuple(points) for series, points in self.samples.items()}

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = max(due + _PERIOD_S, time.monotonic())
            for selector, (job, port) in _PORTS.items():
                try:
                    pods = self._release.pods(selector)
                except (ApiError, OSError, HTTPException):
                    continue
                for pod in pods:
                    self._scrape(pod, job, port)

    def _scrape(self, pod: Manifest, job: str, port: int) -> None:
        address = f"{pod['status'].get('podIP', '')}:{port}"
        if address.startswith(":"):
            return
        labels = f'job="{job}",instance="{address}"'
        if job == "tierline-agent":
            labels += f',node="{self._node}"'
        now = time.time()
        seen = {f"up{{{labels}}}": 0.0}
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=0.9) as answer:
                text = str(answer.read(), "utf-8")
        except (OSError, HTTPException):
            text = ""
        else:
            seen[f"up{{{labels}}}"] = 1.0
        for line in text.splitlines():
            found = _LINE.match(line)
            if found:
                own = f"{found[2]}," if found[2] else ""
                seen[f"{found[1]}{{{own}{labels}}}"] = float(found[3])
        with self._changing:
            for series, value in seen.items():
                self.samples[series].append((now, value))
