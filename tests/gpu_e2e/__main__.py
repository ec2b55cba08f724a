"""A whole cluster on a machine with a GPU and no network: installed, measured, loaded, interrupted.

    python -m tests.gpu_e2e --carried FOLDER --out FOLDER [--device cuda|cpu] [--period S] …

In this order: the cluster comes up and, meanwhile, each model runs without Tierline (the
reference); `helm install`; each model is measured on the cluster, alone; the tasks run; under load
operator and agent are upgraded, the next agent next to the one that serves (`agent.handOver`); and
the agent is killed. No job may be late but those that wait for the agent after the one that was
killed. Each output of each job must be the reference's, and no pod of a task may start again.

A table of the phases is printed as they end, and what is known by then is in the folder:
result.json, samples.om.gz (what a Prometheus would have scraped); in the end also logs.tar.gz.

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
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.judging import Phase, gaps, hand_over, judge, objections
from tests.gpu_e2e.machine import driver_folder, programs_image, python_folders
from tests.gpu_e2e.release import AGENTS, Release, values
from tests.gpu_e2e.scraping import Scraper
from tests.gpu_e2e.tasks import Tasks, Wanted, conditions

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
    """With periods, and so deadlines, in which a job can wait for the next agent."""


SETTINGS: Final = {
    "cuda": Setting(
        {"gpus": {"count": 1, "fastMemory": "2Gi"}},
        2048,
        "16Mi",
        "5Gi",
        (
            Wanted("giant", "vit-giant", 2.5),
            Wanted("left", "llama-small", 2.5),
            Wanted("right", "llama-small", 2.5),
        ),
    ),
    # To try all of it where there is no GPU.
    "cpu": Setting(
        {"cpu": {"fastMemory": "64Mi"}},
        64,
        "4Mi",
        "256Mi",
        tuple(Wanted(name, "llama-tiny", 1.0) for name in ("front", "left", "right")),
    ),
}


class Run:
    """One run; `result` grows while it goes on."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.kind: str = options.device
        self.setting = SETTINGS[self.kind]
        self.wanted = tuple(
            replace(one, period_s=options.period or one.period_s) for one in self.setting.tasks
        )
        self.seconds: float = options.seconds
        self.patience_s: float = options.patience
        self.out: Path = options.out
        self.folder = folder
        self.carried = Carried(options.carried)
        self.cluster = Cluster(folder / "c", node_name="gpu-machine")
        self.tasks: Tasks | None = None
        self.scraper: Scraper | None = None
        self.texts: dict[str, str] = {}
        """What is kept next to the cluster's logs, by name."""
        self.failures: list[str] = []
        self.lines: dict[str, dict[str, Any]] = {one.name: {} for one in self.wanted}
        """What each task did, by phase."""
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
        self._load(self.tasks, release, {name: about["digest"] for name, about in abouts.items()})
        self._describe(self.tasks)
        self._gather()
        for pod in release.pods():
            self.texts[f"{pod['metadata']['name']}.log"] = _tried(release.log, pod)
        with self.step("uninstall"):
            for wanted in self.wanted:
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
            for model in sorted({one.model for one in self.wanted})
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
        models = sorted({one.model for one in self.wanted}, reverse=True)
        for number, model in enumerate(models):
            wanted = next(one for one in self.wanted if one.model == model)
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

    def _load(self, tasks: Tasks, release: Release, digests: Mapping[str, str]) -> None:
        """Run all tasks; hand them over to another agent, and kill that one."""
        with self.step("tasks start"):
            for wanted in self.wanted:
                tasks.apply(wanted)
            for wanted in self.wanted:
                tasks.wait(wanted.name, self.patience_s, Ready="Running")
            for wanted in self.wanted:
                tasks.wait_jobs(wanted.name, 3, self.patience_s)
        before = {one.name: tasks.identity(one.name) for one in self.wanted}
        with self.phase("load", digests):
            time.sleep(self.seconds)
        with self.phase("agent handed over", digests):
            ended = self.texts["agent-before-the-upgrade.log"] = release.upgrade(
                "next", self.patience_s
            )
            self._wait_caught_up(tasks)
        (agent,) = release.pods(AGENTS)
        self.result["hand_over_s"] = hand_over(ended, release.log(agent))
        print(f"hand-over, seconds: {json.dumps(self.result['hand_over_s'])}")
        with self.phase("load after that", digests):
            time.sleep(self.seconds)
        for name in before:
            reason = conditions(tasks.found(name)).get("DeadlinesMet")
            if reason != "NoMisses":
                self.failures.append(f"{name}: DeadlinesMet is {reason}")
        with self.phase("agent killed", digests, may_be_late=True):
            self.texts["agent-killed.log"] = release.kill_agent(self.patience_s)
            self._wait_caught_up(tasks)
        with self.phase("load in the end", digests):
            time.sleep(self.seconds)
        for wanted in self.wanted:
            tasks.wait(wanted.name, self.patience_s, Ready="Running")
        self.failures += [
            f"{name}: its pod started again"
            for name, one in before.items()
            if tasks.identity(name) != one
        ]

    def _wait_caught_up(self, tasks: Tasks) -> None:
        """Wait until the current agent serves each task, and each has caught up."""
        now = time.time()
        for wanted in self.wanted:
            tasks.wait_caught_up(wanted.name, now, self.patience_s)

    @contextmanager
    def phase(
        self, name: str, digests: Mapping[str, str], *, may_be_late: bool = False
    ) -> Iterator[None]:
        """Judge what the tasks did meanwhile, and write all that is known by then."""
        assert self.tasks is not None
        assert self.scraper is not None
        begin_s = time.time()
        with self.step(name):
            yield
        phase = Phase(name, begin_s, time.time(), may_be_late)
        self.result.setdefault("phases", []).append(asdict(phase))
        for wanted in self.wanted:
            misses = self.scraper.increase(
                "tierline_deadline_misses_total", wanted.name, phase.begin_s, phase.end_s
            )
            jobs = self.tasks.jobs(wanted.name)
            line = judge(wanted.name, phase, jobs, misses, digests[wanted.model])
            self.lines[wanted.name][name] = line.figures
            self.failures += objections(phase, line)
            print(line.text, flush=True)
        self._write()

    def _describe(self, tasks: Tasks) -> None:
        """Keep what each task is, and what its MemTask says of it."""
        weights = 0
        described = []
        for wanted in self.wanted:
            about = tasks.about(wanted.name)
            weights += about["weight_bytes"]
            status = tasks.found(wanted.name)["status"]
            jobs = tasks.jobs(wanted.name)
            described.append(
                {
                    "name": wanted.name,
                    "model": wanted.model,
                    "period_s": wanted.period_s,
                    "uid": about["uid"],
                    "torch_device": about["device"],
                    "weight_bytes": about["weight_bytes"],
                    "fast_memory_bytes": status.get("fastMemoryBytes"),
                    "predicted": status.get("predicted"),
                    "observed": status.get("observed"),
                    "conditions": conditions(tasks.found(wanted.name)),
                    "jobs": len(jobs),
                    "gaps": gaps(jobs),
                    "phases": self.lines[wanted.name],
                }
            )
        self.result["tasks"] = described
        self.result["weight_bytes"] = weights
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
            for wanted in self.wanted:
                self.texts[f"{wanted.name}.log"] = _tried(self.tasks.log, wanted.name)

    def _write(self) -> None:
        """Write what is known by now."""
        self.out.mkdir(parents=True, exist_ok=True)
        if self.scraper is not None:
            self.scraper.write(self.out / "samples.om.gz")
        (self.out / "result.json").write_text(json.dumps(self.result, indent=1) + "\n")

    def keep(self) -> None:
        """Write everything that was said."""
        self._gather()
        if self.scraper is not None:
            self.scraper.stop()
        self._write()
        with tarfile.open(self.out / "logs.tar.gz", "w:gz") as archive:
            if (self.cluster.folder / "logs").is_dir():
                archive.add(self.cluster.folder / "logs", "logs")
            for path in Path("/var/run/cdi").glob("tierline*"):
                archive.add(path, f"cdi/{path.name}")
            for name, text in self.texts.items():
                _add(archive, name, text)


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


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=sorted(SETTINGS), default="cuda")
    parser.add_argument("--seconds", type=float, default=15.0, help="of load, thrice")
    parser.add_argument("--period", type=float, help="of all tasks, instead of the setting's")
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
    print(json.dumps({name: run.result.get(name) for name in ("steps_s", "failures", "error")}))
    if "error" in run.result:
        return 2
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
