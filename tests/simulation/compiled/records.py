"""The rows that the compiled engine works on: jobs, links, the run, an attack and what was seen."""

from __future__ import annotations

import numpy as np

JOB = np.dtype(
    [
        ("task", "i8"),
        ("key", "i8"),
        ("arrival_s", "f8"),
        ("deadline_s", "f8"),
        ("part", "i8"),
        ("layer", "i8"),
        ("epoch", "i8"),
        ("published", "i8"),
        ("consumed", "i8"),
        ("opens_s", "f8"),
        ("waiting", "i8"),
        ("alive", "i8"),
        ("begun", "i8"),
        ("stood", "i8"),
        ("starts", "i8"),
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("at", "f8"),
        ("order", "i8"),
        ("job", "i8"),
        ("position", "i8"),
        ("epoch", "i8"),
        ("taken", "i8"),
    ],
    align=True,
)
RUN = np.dtype(
    [
        ("now", "f8"),
        ("at", "f8"),
        ("order", "i8"),
        ("count", "i8"),
        ("epochs", "i8"),
        ("holder", "i8"),
        ("phase", "i8"),
        ("slots", "i8"),
        ("late_second", "i8"),
        ("failed", "i8"),
    ],
    align=True,
)
ATTACK = np.dtype(
    [
        ("until_s", "f8"),
        ("sporadic", "f8"),
        ("adaptive", "i8"),
        ("delayed", "i8"),
        ("busy", "f8"),
        ("layer_least", "f8"),
        ("copy_least", "f8"),
        ("hold", "f8"),
    ],
    align=True,
)
"""How a run differs from the plan: see releases.Pattern and device.Noise."""
SEEN = np.dtype(
    [
        ("failed", "i8"),
        ("jobs", "i8"),
        ("misses", "i8"),
        ("latest_s", "f8"),
        ("preemptions", "i8"),
        ("rings_lost", "i8"),
        ("busy_s", "f8"),
        ("end_s", "f8"),
    ],
    align=True,
)
