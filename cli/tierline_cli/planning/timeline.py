"""A simulation as pictures and as a trace that Perfetto opens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tierline_operator.simulation.device import Seen

_SHOWN_SPANS = 4000
"""A chart of more shows nothing; the trace has them all."""


def perfetto(seen: Seen, tasks: Sequence[str], links: Sequence[str]) -> dict[str, Any]:
    """The spans as Chrome trace events, microseconds; one track for the device and each link."""
    tracks = {-1: "device", **{number: f"link {name}" for number, name in enumerate(links)}}
    named = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number + 2, "args": {"name": name}}
        for number, name in tracks.items()
    ]
    spans = [
        {
            "ph": "X",
            "name": "other traffic" if span.what == "foreign" else tasks[span.task],
            "cat": span.what,
            "pid": 1,
            "tid": span.link + 2,
            "ts": span.start_s * 1e6,
            "dur": (span.end_s - span.start_s) * 1e6,
            "args": {"job": span.job},
        }
        for span in seen.spans
    ]
    return {"traceEvents": [*named, *spans], "displayTimeUnit": "ms"}


def draw(
    seen: Seen,
    tasks: Sequence[str],
    links: Sequence[str],
    bounds_s: Sequence[float | None],
    path: Path,
) -> None:
    """A Gantt chart of the first spans, and how long jobs took from their releases.

    The chart has a row for each task's layers and its copies. Below it, for each task, the share of
    its jobs that ended within a time; the proven bound is dashed.
    """
    import matplotlib as mpl  # noqa: PLC0415 - half a second that other commands do not pay

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    spans = seen.spans[:_SHOWN_SPANS]
    height = 1.5 + 0.6 * len(tasks)
    figure, (axes, below) = plt.subplots(
        *(2, 1), figsize=(11, height + 2.5), height_ratios=(height, 2.5), layout="constrained"
    )
    rows = (
        ("compute", 0.0, "tab:blue", "layers"),
        ("copy", 0.4, "tab:orange", f"copies over {', '.join(links)}"),
        ("save", 0.0, "tab:red", "workspace written back"),
        ("restore", 0.0, "tab:green", "workspace restored"),
    )
    found = {span.what for span in spans}
    for number, name in enumerate(tasks):
        for what, offset, colour, label in rows:
            if what not in found:
                continue
            bars = [
                (span.start_s * 1e3, (span.end_s - span.start_s) * 1e3)
                for span in spans
                if span.task == number and span.what == what
            ]
            axes.broken_barh(
                bars, (number + offset, 0.35), color=colour, label=label if not number else None
            )
        axes.axhline(number - 0.1, color="0.9", linewidth=0.8)
        axes.text(0, number + 0.82, name, fontsize=8, va="bottom")
    axes.set_xlabel("time (ms)")
    axes.set_yticks([])
    axes.set_ylim(-0.2, len(tasks) + 0.2)
    axes.legend(loc="upper right", fontsize=8)
    for name, responses, bound_s in zip(tasks, seen.responses_s, bounds_s, strict=True):
        shares = [100 * (place + 1) / len(responses) for place in range(len(responses))]
        (line,) = below.step(sorted(1e3 * time for time in responses), shares, label=name)
        if bound_s is not None:
            below.axvline(bound_s * 1e3, color=line.get_color(), linestyle="--", linewidth=0.8)
    below.set_xlabel("response time (ms); dashed: proven bound")
    below.set_ylabel("jobs, %")
    below.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
