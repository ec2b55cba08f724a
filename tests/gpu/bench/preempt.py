"""What it is to give a GPU away in the middle of a job, and to get it back.

    python -m tests.gpu.bench.preempt [--model NAME] [--mode M...] [--share F...] [--jobs N]
        [--json FILE]

A long model runs job after job under an agent, eager and as a captured graph, with all of its
extents resident or none. First alone, in two processes that take turns: one whose task keeps the
device to its end, one with gates that nobody asks. Then a client without weights takes the device
at random moments, holds it for some milliseconds and gives it back: how long it waits is the time
to stop, what a preempted job has the device for beyond another one is what it lost. Every output
of every job is compared with those of the undisturbed program. Last, a short model answers requests
at random moments during the long one, with and without preemption.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.overhead import alternately, task_named
from tests.gpu.bench.shapes import Predictor, as_observed, held_s, next_record, records
from tests.gpu.bench.streaming import (
    Program,
    agent,
    learned,
    observed,
    observer,
    plan_for,
    registered,
    under_agent,
)
from tests.gpu.models import kind
from tests.gpu.paced import Paced
from tests.integration.agent.raw_client import RawClient

from tierline_agent.transport import protocol as p
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.plan import Plan
from tierline_cli.local.place import Place

_GIB = 1 << 30
_OBSERVED_JOBS = 6
_EARLY_S = 1.0
_OFTEN_S = 1e-3
"""Period and deadline of tasks whose jobs come as they like: none of them is before its time."""
_LONG_S = 1000.0


@dataclass
class Row:
    """One way to run the long model. Times in seconds."""

    model: str
    mode: str
    resident: float
    alone_s: float
    """A job of a task that keeps the device to its end."""
    gated_s: float
    """A job with gates that nobody asks."""
    held_s: float
    """For how long such a job has the device, as the agent records it."""
    layer_s: float
    """Its longest layer, as it was profiled."""
    yields_s: float
    """From the request to the gate at worst, as admission charges it."""
    stops: int = 0
    stop_median_s: float = 0.0
    stop_p99_s: float = 0.0
    stop_worst_s: float = 0.0
    lost_s: float = 0.0
    """How much longer one preemption made a job have the device, on average."""
    rings_lost: int = 0
    identical: bool = False
    response_s: dict[str, list[float]] = field(default_factory=dict)
    """Of the short model: median, 99 of 100, worst; with and without preemption."""


class _Lease(RawClient):
    """A client that needs the device alone."""

    device = p.Device.CUDA if kind() == "cuda" else p.Device.CPU


def _terms(plan: Plan, yields_s: float) -> dict[str, Any]:
    return {
        "scheduling": "RingKeeping",
        "layer_ns": int(yields_s * 1e9),
        "penalty_ns": int(1e9),
        "parked_bytes": plan.workspace_bytes,
    }


def _longest_layer_s(profile: dict[str, Any]) -> float:
    return float(max(one["compute_s"] for one in profile["layers"]))


@contextmanager
def _in_background(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _tail(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]]


def _interrupt(
    admin: Any, socket: Path, hold_s: float, every_s: float, over: threading.Event
) -> list[float]:
    """Take the device at random moments until it is over; how long a job took to give it away."""
    client = _Lease(socket)
    client.hello()
    waited: list[float] = []
    moments = random.Random(1)  # noqa: S311 - not a secret
    while not over.wait(moments.uniform(0, 2 * every_s)):
        begin = time.perf_counter()
        job = client.begin(p.NO_ARENA, deadline_s=_EARLY_S)
        took_s = time.perf_counter() - begin
        (seen,) = admin.call("snapshot")["snapshot"]["devices"]
        if seen["parked_bytes"]:  # else it came between two jobs
            waited.append(took_s)
        time.sleep(hold_s)
        client.end(job)
    client.socket.close()
    return waited


def _preempted(
    local: Any, admin: Any, row: Row, program: Program, expected: Sequence[str], hold_s: float
) -> None:
    """Run it while others take the device; fills in what was seen."""
    cursor = next_record(admin)
    over, waited = threading.Event(), list[float]()
    socket = local.task_socket("other")

    def interrupt() -> None:
        while not over.is_set() and task_named(admin, "long")["jobs"] == 0:
            time.sleep(0.1)
        waited.extend(_interrupt(admin, socket, hold_s, row.alone_s + hold_s, over))

    with _in_background(interrupt):
        try:
            report = program.run()
        finally:
            over.set()
    seen = task_named(admin, "long")
    jobs = records(admin, cursor, "long", program.jobs)
    disturbed = [job for job in jobs if job["preemptions"]]
    row.identical = report["digests"] == list(expected)
    row.stops, row.rings_lost = seen["preemptions"], seen["rings_lost"]
    row.stop_median_s, row.stop_p99_s, row.stop_worst_s = _tail(waited)
    if disturbed:
        lost_s = sum(held_s(job) - row.held_s for job in disturbed)
        row.lost_s = lost_s / sum(job["preemptions"] for job in disturbed)


def _responses(short: Paced, long: Paced, count: int, every_s: float) -> list[float]:
    """Ask the short model at random moments while the long one runs; ends both."""
    times: list[float] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            long.round()

    try:
        with _in_background(run):
            moments = random.Random(2)  # noqa: S311 - not a secret
            try:
                while len(times) < count:
                    time.sleep(moments.uniform(0, 2 * every_s))
                    times += short.round()
            finally:
                over.set()
    finally:
        short.end()
        long.end()
    return _tail(times)


class _Waiting:
    """The processes for one way to run the long model, which import while others are measured."""

    def __init__(self, local: Any, arguments: argparse.Namespace, mode: str, share: float) -> None:
        model, short = arguments.model, arguments.short
        self.mode, self.share = mode, share

        def environment(name: str, of: str) -> dict[str, str]:
            return under_agent(local.task_socket(name)) | learned(of, mode)

        self.takers = {
            name: Paced(model, mode, arguments.round, environment(name, model), prepared=True)
            for name in ("kept", "gated")
        }
        self.long = Program(model, mode, arguments.jobs, environment("long", model), "--digests")
        self.during = {
            way: (
                Paced(short, mode, 1, environment("short", short), prepared=True),
                Paced(model, mode, 10, environment("long", model), prepared=True),
            )
            for way in ("preempted", "kept")
        }


def _measure(
    local: Any, admin: Any, arguments: argparse.Namespace, mode: str, all_of_it: list[_Waiting]
) -> Iterator[Row]:
    model, short_model = arguments.model, arguments.short
    extent_bytes = arguments.extent_mib << 20
    bare = Program(model, mode, arguments.jobs, None, "--digests")
    watching = observer(model, mode, _OBSERVED_JOBS)
    short_watching = observer(short_model, mode, _OBSERVED_JOBS)
    expected = bare.run()["digests"]
    alone, layers = observed(watching)
    short_alone, short_layers = observed(short_watching)
    short_plan = plan_for(short_layers, extent_bytes, 1.0, short_alone["workspace_bytes"])
    node = MemNode.from_api(admin.call("node")["node"])
    predicted = Predictor.after(model, as_observed(alone["profile"]), node)
    for waiting in all_of_it:
        if waiting.mode != mode:
            continue
        plan = plan_for(layers, extent_bytes, waiting.share, alone["workspace_bytes"])
        yields_s = predicted.yields_within_s(plan)
        terms = _terms(plan, yields_s)
        with (
            registered(local, admin, "kept", plan),
            registered(local, admin, "gated", plan, preemption=terms),
        ):
            for process in waiting.takers.values():
                process.load()
            cursor = next_record(admin)
            times = alternately(waiting.takers, arguments.rounds)
            gated = records(admin, cursor, "gated", arguments.rounds * arguments.round)
        kept_s, gated_s = (statistics.median(times[name]) for name in ("kept", "gated"))
        layer_s = _longest_layer_s(alone["profile"])
        undisturbed_s = statistics.median(map(held_s, gated))
        row = Row(model, mode, waiting.share, kept_s, gated_s, undisturbed_s, layer_s, yields_s)
        with (
            registered(local, admin, "long", plan, preemption=terms),
            registered(local, admin, "other", short_plan, deadline_s=_OFTEN_S, period_s=_OFTEN_S),
        ):
            _preempted(local, admin, row, waiting.long, expected, arguments.hold_ms / 1e3)
        for way, (asking, running) in waiting.during.items():
            asked = terms if way == "preempted" else None
            with (
                registered(local, admin, "long", plan, preemption=asked),
                registered(
                    local, admin, "short", short_plan, deadline_s=_OFTEN_S, period_s=_OFTEN_S
                ),
            ):
                for process in (asking, running):
                    process.load()
                    process.ready()
                row.response_s[way] = _responses(
                    asking, running, arguments.requests, 2 * row.alone_s
                )
        _print(row)
        yield row


def _print(row: Row) -> None:
    def microseconds(seconds: float) -> str:
        return f"{seconds * 1e6:.0f} us"

    print(
        f"{row.model} {row.mode} {row.resident:.0%} resident: job {row.alone_s * 1e3:.3f} ms, with "
        f"gates {row.gated_s * 1e3:.3f} ms ({row.gated_s / row.alone_s - 1:+.1%}); longest layer "
        f"{microseconds(row.layer_s)}, to a gate {microseconds(row.yields_s)}; {row.stops} stops: "
        f"p50 {microseconds(row.stop_median_s)}, "
        f"p99 {microseconds(row.stop_p99_s)}, worst {microseconds(row.stop_worst_s)}; lost by one "
        f"{microseconds(row.lost_s)} ({row.rings_lost} rings); outputs "
        f"{'identical' if row.identical else 'DIFFERENT'}",
        flush=True,
    )
    for way, (median, most, worst) in row.response_s.items():
        print(
            f"    short model, long one {way}: p50 {median * 1e3:.2f} ms, "
            f"p99 {most * 1e3:.2f} ms, worst {worst * 1e3:.2f} ms",
            flush=True,
        )


def main() -> None:
    """Measure, print, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-small")
    parser.add_argument("--short", default="llama-tiny")
    parser.add_argument("--mode", nargs="+", default=["eager", "graph"])
    parser.add_argument("--share", nargs="+", type=float, default=[1.0, 0.0])
    parser.add_argument("--jobs", type=int, default=400, help="that are preempted")
    parser.add_argument("--round", type=int, default=50, help="jobs in a round without preemption")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="to the short model")
    parser.add_argument("--hold-ms", type=float, default=2.0)
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--fast-gib", type=float, default=8.0)
    parser.add_argument("--host-gib", type=float, default=4.0, help="pinned memory")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = {**describe(), "gpu": Place(kind()).product()}
    print_head(about)
    extent_bytes = arguments.extent_mib << 20
    fast, host = int(arguments.fast_gib * _GIB), int(arguments.host_gib * _GIB)
    rows: list[dict[str, Any]] = []
    with agent(extent_bytes, fast, host) as (local, admin):
        waiting = [
            _Waiting(local, arguments, mode, share)
            for mode in arguments.mode
            for share in arguments.share
        ]
        for mode in arguments.mode:
            for row in _measure(local, admin, arguments, mode, waiting):
                rows.append(asdict(row))
                keep(arguments.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
