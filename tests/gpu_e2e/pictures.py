"""Draws the chart's dashboards as Grafana would have shown a run: one picture a dashboard.

    python -m tests.gpu_e2e.pictures RUN-FOLDER PICTURES-FOLDER

A real Prometheus gets the samples that the run kept (`promtool tsdb create-blocks-from`), and
answers each panel's own expressions, with All chosen, over the time of the run. Needs Debian's
package prometheus.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tierline_cluster.processes import free_port
from tierline_cluster.versions import REPOSITORY

_DASHBOARDS: Final = REPOSITORY / "charts" / "tierline" / "files" / "dashboards"
_STEP_S: Final = 1
_RATE: Final = "15s"
"""For a scrape a second; of Grafana's $__rate_interval."""
_CHOICE: Final = re.compile(r"\$(node|domain|task|link|device)\b")
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_BINARY: Final = {"bytes": "B", "binBps": "B/s"}


@dataclass(frozen=True)
class Line:
    """One series over time."""

    name: str
    points: tuple[tuple[float, float], ...]


class Answers:
    """A Prometheus that holds a run."""

    def __init__(self, samples: Path, folder: Path) -> None:
        """Load and start it."""
        text = folder / "samples.om"
        with gzip.open(samples, "rb") as packed, text.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        with text.open(encoding="utf-8") as lines:
            moments = [float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"]
        self.begin_s, self.end_s = min(moments), max(moments)
        data = folder / "data"
        load = ("promtool", "tsdb", "create-blocks-from", "openmetrics", text, data)
        subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
        (folder / "prometheus.yaml").write_text("{}")
        self._address = f"127.0.0.1:{free_port()}"
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={data}",
                    "--storage.tsdb.retention.time=100y",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )
        while not self._ready():
            if self._process.poll() is not None:
                raise SystemExit((folder / "prometheus.log").read_text())
            time.sleep(0.1)

    def lines(self, expression: str, legend: str) -> list[Line]:
        """What an expression gives over the run."""
        query = {
            "query": _CHOICE.sub(".*", expression).replace("$__rate_interval", _RATE),
            "start": f"{self.begin_s:.3f}",
            "end": f"{self.end_s:.3f}",
            "step": str(_STEP_S),
        }
        found = json.loads(self._get("/api/v1/query_range?" + urlencode(query)))["data"]["result"]
        return [
            Line(
                _named(one["metric"], legend),
                tuple((at - self.begin_s, float(value)) for at, value in one["values"]),
            )
            for one in found
        ]

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)

    def _ready(self) -> bool:
        try:
            self._get("/-/ready")
        except (URLError, ConnectionError):
            return False
        return True

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=60) as answer:
            return str(answer.read(), "utf-8")


def _named(labels: dict[str, str], legend: str) -> str:
    if legend:
        return _LABEL.sub(lambda found: labels.get(found[1], ""), legend)
    return " ".join(f"{value}" for name, value in sorted(labels.items()) if name != "__name__")


def draw(dashboard: dict[str, Any], answers: Answers, picture: Path) -> None:
    """Draw the panels of a dashboard where Grafana has them."""
    panels = [panel for panel in _panels(dashboard) if panel["type"] != "row"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    size = (14.0, height * 0.3 + 0.6)
    figure = Figure(figsize=size, dpi=70)
    top = 1 - 0.45 / size[1]
    figure.text(0.01, 1 - 0.3 / size[1], dashboard["title"], fontsize=13, fontweight="bold")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / 24, place["w"] / 24
        bottom = top * (1 - (place["y"] + place["h"]) / height)
        tall = top * place["h"] / height
        inside = (left + 0.045, bottom + 0.22 * tall, width - 0.06, 0.6 * tall)
        axes = figure.add_axes(inside)
        axes.set_title(panel["title"], fontsize=8, loc="left")
        lines = [
            line
            for target in panel["targets"]
            for line in answers.lines(target["expr"], target.get("legendFormat", ""))
        ]
        unit = panel["fieldConfig"]["defaults"].get("unit", "")
        if panel["type"] == "timeseries":
            _graph(axes, lines, unit, answers.end_s - answers.begin_s)
        elif panel["type"] == "stat":
            axes.axis("off")
            said = f"{lines[-1].points[-1][1]:g}" if lines else "no data"
            axes.text(0, 0.2, said, fontsize=20)
        else:
            _table(axes, panel, answers)
    figure.savefig(picture, pil_kwargs={"optimize": True})
    print(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")


def _graph(axes: Axes, lines: list[Line], unit: str, length_s: float) -> None:
    peak = max((y for line in lines for _, y in line.points if math.isfinite(y)), default=0.0)
    power = min(int(math.log2(peak) // 10), 4) if unit in _BINARY and peak >= 1024 else 0
    scale = 1024**power
    for line in lines:
        axes.plot(
            [at for at, _ in line.points],
            [value / scale for _, value in line.points],
            linewidth=1,
            label=line.name,
        )
    axes.set_xlim(0, length_s)
    axes.set_ylim(bottom=0)
    said = ["", "Ki", "Mi", "Gi", "Ti"][power] + _BINARY.get(
        unit, {"percentunit": "share"}.get(unit, unit)
    )
    axes.set_ylabel(said.replace("short", ""), fontsize=7)
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3)
    if not lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", fontsize=8)
    elif len(lines) <= 8:
        axes.legend(fontsize=5, ncols=2, loc="best", framealpha=0.5)


def _table(axes: Axes, panel: dict[str, Any], answers: Answers) -> None:
    """The last values of a table of tasks."""
    axes.axis("off")
    columns: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    for target in panel["targets"]:
        title = target.get("legendFormat", "")
        columns.append(title)
        for line in answers.lines(target["expr"], "{{domain}}/{{task}}"):
            rows.setdefault(line.name, {})[title] = f"{line.points[-1][1]:.4g}"
    if not rows:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", fontsize=8)
        return
    text = [[task, *(row.get(one, "") for one in columns)] for task, row in sorted(rows.items())]
    made = axes.table(text, colLabels=["task", *columns], loc="upper left", cellLoc="left")
    made.auto_set_font_size(False)
    made.set_fontsize(7)


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def main(run: Path, pictures: Path) -> None:
    """Draw all dashboards."""
    mpl.rcParams["axes.prop_cycle"] = mpl.cycler(color=mpl.colormaps["tab10"].colors)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        answers = Answers(run / "samples.om.gz", Path(folder))
        try:
            for path in sorted(_DASHBOARDS.glob("*.json")):
                draw(json.loads(path.read_text()), answers, pictures / f"gpu-e2e-{path.stem}.png")
        finally:
            answers.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
