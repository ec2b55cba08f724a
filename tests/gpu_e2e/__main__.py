"""A whole cluster on a machine with a GPU and no network: installed, measured, loaded, interrupted.

    python -m tests.gpu_e2e --carried FOLDER --out FOLDER [--device cuda|cpu] [--seconds S]

In this order: the cluster comes up and, meanwhile, each model runs without Tierline (the
reference); `helm install`; each model is measured on the cluster, alone; the tasks run, and no job
may be late; the agent's pod is deleted under load; then again no job may be late. Each output of
each job must be the reference's, and no pod may start again. Everything that was said lies in
the folder afterwards, also when the run failed: result.json, samples.om.gz (what a Prometheus would
have scraped), logs.tar.gz.

Exit codes: 0 all of it held, 1 something did not, by result.json, 2 the run could not be finished.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.machine import driver_folder, programs_image, python_folders
from tests.gpu_e2e.release import AGENTS, Release, values
from tests.gpu_e2e.scraping import Scraper
from tests.gpu_e2e.tasks import Job, Tasks, Wanted, conditions, wait_for

from tierline_cluster.cluster import Cluster
from tierline_cluster.versions import CONTAINERD, HELM, KUBERNETES, REPOSITORY

_REFERENCE_JOBS: Final = 2
_MEBI: Final = 1 << 20


@dataclass(frozen=True)
class Setting:
    """What runs on a kind of device."""

    device: Mapping[str, Any]
    fast_mebibytes: int
    extent: str
    tier: str
    tasks: tuple[Wanted, ...]


SETTINGS: Final = {
    "cuda": Setting(
        {"gpus": {"count": 1, "fastMemory": "2Gi"}},
        2048,
        "16Mi",
        "5Gi",
        (
            Wanted("giant", "vit-giant", 0.25),
            Wanted("left", "llama-small", 0.25),
            Wanted("right", "llama-small", 0.25),
        ),
    ),
    # To try all of it where there is no GPU.
    "cpu": Setting(
        {"cpu": {"fastMemory": "64Mi"}},
        64,
        "4Mi",
        "256Mi",
        tuple(Wanted(name, "llama-tiny", 6.0) for name in ("front", "left", "right")),
    ),
}


class Run:
    """One run; `result` grows while it goes on."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.kind: str = options.device
        self.setting = SETTINGS[self.kind]
        self.seconds: float = options.seconds
        self.patience_s: float = options.patience
        self.out: Path = options.out
        self.folder = folder
        self.carried = Carried(options.carried)
        self.cluster = Cluster(folder / "c", node_name="gpu-machine")
        self.tasks: Tasks | None = None
        self.scraper: Scraper | None = None
        self.texts: dict[str, str] = {}
        """What is kept beside the cluster's logs, by name."""
        self.failures: list[str] = []
        self.steps: dict[str, float] = {}
        self.result: dict[str, Any] = {
            "kernel": platform.release(),
            "python": platform.python_version(),
            "kubernetes": KUBERNETES,
            "containerd": CONTAINERD,
            "helm": HELM,
            "device": self.kind,
            "fast_bytes": self.setting.fast_mebibytes * _MEBI,
            "steps_s": self.steps,
            "failures": self.failures,
        }

    def go(self) -> None:
        """Do all of it. Raises whatever goes wrong."""
        with self.step("references begin"):
            references = self._start_references()
        with self.step("cluster up"):
            plane, node = self.cluster.up(self.carried.programs)
        with self.step("images"):
            node.import_image(self.carried.images)
            node.import_image(programs_image().write(self.folder / "programs.tar"))
        with self.step("references"):
            abouts = {name: self._reference(process) for name, process in references.items()}
        self.result["references"] = abouts
        library = next(iter(abouts.values()))["driver"]
        if self.kind == "cuda" and not library:
            raise SystemExit("the reference found no GPU")
        driver = driver_folder(library, self.folder / "driver") if library else None
        release = Release(self.carried, plane, node)
        with self.step("helm install"):
            setting = self.setting
            given = values(node, setting.device, setting.extent, setting.tier, driver)
            release.install(given, self.patience_s)
        self.result["node"] = plane.api.get(release.memnode)["status"]
        self.scraper = Scraper(release, node.name)
        self.scraper.start()
        self.tasks = Tasks(plane.api, self.kind, python_folders(), driver)
        self.tasks.prepare()
        self._measure(self.tasks)
        self._load(self.tasks, release)
        self._judge(self.tasks, {name: about["digest"] for name, about in abouts.items()})
        self._gather()
        for pod in release.pods():
            self.texts[f"{pod['metadata']['name']}.log"] = _tried(release.log, pod)
        with self.step("uninstall"):
            for wanted in self.setting.tasks:
                self.tasks.delete(wanted.name, self.patience_s)
            release.uninstall(self.patience_s)

    # -- the parts

    def _start_references(self) -> dict[str, subprocess.Popen[str]]:
        """Run each model without Tierline around it, by the very plugin that pods get."""
        plugin = self.carried.plugin(self.folder)
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{plugin}"}
        return {
            model: subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.gpu_e2e.program", model),
                    *("--period", "1", "--jobs", str(_REFERENCE_JOBS)),
                ],
                env=environment,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                text=True,
            )
            for model in sorted({one.model for one in self.setting.tasks})
        }

    def _reference(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """What a model without Tierline said of itself, with the digest of its output."""
        said, _ = process.communicate(timeout=self.patience_s)
        about, *jobs = said.splitlines() or [""]
        digests = {line.split()[2] for line in jobs}
        if process.returncode != 0 or len(digests) != 1:
            raise SystemExit(f"a model without Tierline ended with {process.returncode}: {said}")
        return {**json.loads(about), "digest": digests.pop()}

    def _measure(self, tasks: Tasks) -> None:
        """Let each model be measured alone; the last one's task goes on to run by its plan."""
        models = sorted({one.model for one in self.setting.tasks}, reverse=True)
        for number, model in enumerate(models):
            wanted = next(one for one in self.setting.tasks if one.model == model)
            with self.step(f"measure {model}"):
                tasks.apply(wanted)
                profile = tasks.wait_measured(model, self.patience_s)
                layers = profile["spec"]["layers"]
                self.result.setdefault("profiles", {})[model] = {
                    "layers": len(layers),
                    "bytes": sum(layer["bytes"] for layer in layers),
                }
                if number + 1 < len(models):
                    tasks.delete(wanted.name, self.patience_s)

    def _load(self, tasks: Tasks, release: Release) -> None:
        """Run all tasks, and restart the agent in between."""
        with self.step("tasks start"):
            for wanted in self.setting.tasks:
                tasks.apply(wanted)
            for wanted in self.setting.tasks:
                tasks.wait(wanted.name, self.patience_s, Ready="Running")
            for wanted in self.setting.tasks:
                tasks.wait_jobs(wanted.name, 3, self.patience_s)
        before = {one.name: tasks.identity(one.name) for one in self.setting.tasks}
        marks = {"load": time.time()}
        with self.step("load"):
            time.sleep(self.seconds)
        for name in before:
            reason = conditions(tasks.found(name)).get("DeadlinesMet")
            if reason != "NoMisses":
                self.failures.append(f"{name}: DeadlinesMet is {reason} under load")
        with self.step("agent restarts"):
            (agent,) = release.pods(AGENTS)
            self.texts["agent-before-its-restart.log"] = release.log(agent)
            marks["restart"] = time.time()
            release.api.delete(agent)
            uid = agent["metadata"]["uid"]

            def replaced() -> bool:
                found = release.pods(AGENTS)
                return [one["metadata"]["uid"] for one in found] != [uid] and release.ready()

            wait_for("another agent is ready", replaced, self.patience_s)
            jobs = {one.name: len(tasks.jobs(one.name)) for one in self.setting.tasks}
            for name, count in jobs.items():
                tasks.wait_jobs(name, count + 2, self.patience_s)
            marks["again"] = time.time()
        with self.step("load again"):
            time.sleep(self.seconds)
        for wanted in self.setting.tasks:
            tasks.wait(wanted.name, self.patience_s, Ready="Running")
        marks["end"] = time.time()
        self.result["marks"] = marks
        self.result["restarted"] = [
            name for name, one in before.items() if tasks.identity(name) != one
        ]

    def _judge(self, tasks: Tasks, digests: Mapping[str, str]) -> None:
        """Hold every job against what was promised."""
        assert self.scraper is not None
        marks = self.result["marks"]
        spans = {
            "load": (marks["load"], marks["restart"]),
            "restart": (marks["restart"], marks["again"]),
            "again": (marks["again"], marks["end"]),
        }
        weights = 0
        lines = []
        for wanted in self.setting.tasks:
            about = tasks.about(wanted.name)
            weights += about["weight_bytes"]
            status = tasks.found(wanted.name)["status"]
            jobs = tasks.jobs(wanted.name)
            line: dict[str, Any] = {
                "name": wanted.name,
                "model": wanted.model,
                "period_s": wanted.period_s,
                "uid": about["uid"],
                "torch_device": about["device"],
                "weight_bytes": about["weight_bytes"],
                "fast_memory_bytes": status.get("fastMemoryBytes"),
                "predicted": status.get("predicted"),
                "observed": status.get("observed"),
                "conditions": {one["type"]: one["reason"] for one in status["conditions"]},
                "wrong": sum(job.digest != digests[wanted.model] for job in jobs),
                "gaps": _gaps(jobs),
                "spans": {},
            }
            for span, (begin_s, end_s) in spans.items():
                inside = [job for job in jobs if begin_s <= job.ended_s < end_s]
                misses = self.scraper.increase(
                    "tierline_deadline_misses_total", wanted.name, begin_s, end_s
                )
                late = sum(job.late for job in inside)
                line["spans"][span] = {"jobs": len(inside), "late": late, "misses": misses}
                if span != "restart" and (late or misses or not inside):
                    self.failures.append(f"{wanted.name}, {span}: {line['spans'][span]}")
            if line["wrong"]:
                self.failures.append(f"{wanted.name}: {line['wrong']} outputs differ")
            lines.append(line)
        self.result["tasks"] = lines
        self.result["weight_bytes"] = weights
        self.failures += [f"{name}: its pod started again" for name in self.result["restarted"]]
        if weights <= self.result["fast_bytes"]:
            self.failures.append("the weights fit into the fast memory")

    # -- around them

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Say how long something takes."""
        began = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {name} ...", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            self.steps[name] = round(time.monotonic() - began, 2)
            print(f"{' ' * 8} {name}: {self.steps[name]} s", file=sys.stderr, flush=True)

    def _gather(self) -> None:
        """Ask for what goes with the tasks' pods, unless that was done."""
        if self.tasks is not None and "objects.json" not in self.texts:
            self.texts["objects.json"] = _tried(self.tasks.describe)
            for wanted in self.setting.tasks:
                self.texts[f"{wanted.name}.log"] = _tried(self.tasks.log, wanted.name)

    def keep(self) -> None:
        """Write everything that was said."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._gather()
        if self.scraper is not None:
            self.scraper.stop()
            self.scraper.write(self.out / "samples.om.gz")
        (self.out / "result.json").write_text(json.dumps(self.result, indent=1) + "\n")
        with tarfile.open(self.out / "logs.tar.gz", "w:gz") as archive:
            if (self.cluster.folder / "logs").is_dir():
                archive.add(self.cluster.folder / "logs", "logs")
            for path in Path("/var/run/cdi").glob("tierline*"):
                archive.add(path, f"cdi/{path.name}")
            for name, text in self.texts.items():
                _add(archive, name, text)


def _gaps(jobs: list[Job]) -> int:
    """How many releases have no job: their numbers must follow each other."""
    return sum(b.index - a.index - 1 for a, b in pairwise(jobs))


def _tried(ask: Callable[..., str], *arguments: object) -> str:
    try:
        return ask(*arguments)
    except Exception:  # what can be kept is kept, whatever the rest says
        return traceback.format_exc()


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, BytesIO(content))


def show(result: Mapping[str, Any]) -> None:
    """Print a line a task."""
    for one in result.get("tasks", ()):
        spans = ", ".join(
            f"{name}: {span['jobs']} jobs, {span['late']} late, {span['misses']:.0f} misses"
            for name, span in one["spans"].items()
        )
        right = "identical" if not one["wrong"] else f"{one['wrong']} WRONG"
        print(f"{one['name']:<8}{one['model']:<14}{spans}; outputs {right}")
    print(json.dumps({name: result.get(name) for name in ("steps_s", "failures", "error")}))


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=sorted(SETTINGS), default="cuda")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, twice")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for any one thing")
    parser.add_argument("--limit", type=int, default=400, help="seconds for all of it")
    options = parser.parse_args()

    def too_long(_signal: int, _frame: FrameType | None) -> None:
        # No error of the system's, for which a wait asks again.
        raise SystemExit(f"the run was ended; its limit is {options.limit} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, too_long)
    signal.alarm(options.limit)
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        run = Run(options, Path(folder))
        try:
            run.go()
        except BaseException as error:
            run.result["error"] = f"{type(error).__name__}: {error}"[:4000]
            traceback.print_exc()
        finally:
            signal.alarm(0)
            try:
                run.keep()
            finally:
                run.cluster.down(keep_logs=True)
    show(run.result)
    if "error" in run.result:
        return 2
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
