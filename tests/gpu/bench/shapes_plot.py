"""Draws what tests.gpu.bench.shapes --plans measured, on any machine.

    python -m tests.gpu.bench.shapes_plot FILE.json FILE.png

Per model and plan: what the bare recursion predicts over the measured median, and what admission
charges over the measured 99.9th percentile. A charge below 1 would be no bound.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from tests.gpu.bench.drawing import files

mpl.use("Agg")

from matplotlib import pyplot as plt  # the backend is chosen first


def draw(kept: dict[str, Any], target: Path) -> None:
    """Two panels, a column a model, a mark a plan."""
    models = list(kept["plans"])
    figure, panels = plt.subplots(2, 1, figsize=(11, 7), sharex=True, constrained_layout=True)
    titles = ("recursion / measured median", "charged / measured p99.9")
    fields = (("recursion_s", "median_s"), ("planned_s", "p999_s"))
    shares = sorted({row["resident"] for rows in kept["plans"].values() for row in rows})
    for panel, title, (predicted, measured) in zip(panels, titles, fields, strict=True):
        for number, share in enumerate(shares):
            points = [
                (column + 0.15 * (number - (len(shares) - 1) / 2), row[predicted] / row[measured])
                for column, model in enumerate(models)
                for row in kept["plans"][model]
                if row["resident"] == share
            ]
            panel.plot(*zip(*points, strict=True), "o", label=f"{share:.0%} resident")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_ylabel(title)
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_title(f"predicted against measured job times, {kept['gpu']}")
    panels[0].legend(ncols=len(shares))
    panels[1].set_xticks(range(len(models)), models, rotation=30, ha="right")
    figure.savefig(target, dpi=120)


def main() -> None:
    """Draw a file's plans."""
    measured, picture = files(__doc__)
    kept = json.loads(measured.read_text())
    if not kept.get("plans"):
        raise SystemExit(f"{measured} holds no plans: measure with --plans")
    draw(kept, picture)


if __name__ == "__main__":
    main()
