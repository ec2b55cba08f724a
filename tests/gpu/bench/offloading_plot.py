"""Draws what tests.gpu.bench.offloading measured, on any machine.

    python -m tests.gpu.bench.offloading_plot FILE.json FILE.png

A panel a model, a bar a way: the median job, next to it the device memory that its weights take.
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
    """Tierline's bars in another colour."""
    models = list(dict.fromkeys(row["model"] for row in kept["rows"]))
    figure, panels = plt.subplots(1, len(models), figsize=(15, 5), constrained_layout=True)
    for panel, model in zip(panels, models, strict=True):
        rows = [row for row in kept["rows"] if row["model"] == model]
        times_ms = [row["job_median_s"] * 1e3 for row in rows]
        colours = ["C1" if row["way"].startswith("tierline") else "C0" for row in rows]
        bars = panel.barh([row["way"] for row in rows], times_ms, color=colours)
        panel.bar_label(
            bars,
            [
                f"{time_ms:.1f} ms, {row['fast_bytes'] / 2**20:,.0f} MiB"
                for row, time_ms in zip(rows, times_ms, strict=True)
            ],
            padding=3,
            fontsize=8,
        )
        panel.set_xlim(right=max(times_ms) * 1.7)
        panel.invert_yaxis()
        panel.set_title(f"{model}, {rows[0]['weight_bytes'] / 2**20:,.0f} MiB of weights")
        panel.set_xlabel("median job, ms")
    figure.suptitle(f"weights that are not on the GPU, {kept['gpu']}: job, and weights on it")
    figure.savefig(target, dpi=120)


def main() -> None:
    """Draw a file."""
    measured, picture = files(__doc__)
    draw(json.loads(measured.read_text()), picture)


if __name__ == "__main__":
    main()
