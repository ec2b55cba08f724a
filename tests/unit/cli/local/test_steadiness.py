"""The margin follows from what times vary by; and what /proc/stat says of others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierline_api.objects.memprofile import MemProfile
from tierline_cli.local.load_reading import LoadReader
from tierline_cli.local.steadiness import Load, Steadiness, spread, steadiness

_PARTS = st.floats(0, 1)


def profile(*arenas: tuple[float, float | None]) -> MemProfile:
    """Of two layers an arena, with the given worst and mean times in seconds."""
    layers = [
        {
            "name": f"{arena}-{half}",
            "bytes": 1,
            "computeTime": f"{worst_s / 2}s",
            "meanComputeTime": None if mean_s is None else f"{mean_s / 2}s",
            "arena": arena,
        }
        for arena, (worst_s, mean_s) in enumerate(arenas)
        for half in range(2)
    ]
    return MemProfile.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemProfile",
            "metadata": {"name": "vit", "namespace": "n"},
            "spec": {
                "device": {"kind": "cpu", "product": "x"},
                "layers": layers,
                "workspace": "16Mi",
            },
        }
    )


@pytest.mark.parametrize(
    ("variation", "usual", "margin"),
    [
        pytest.param(0.0, 1.3, 1.3, id="a steady machine keeps what is usual on processors"),
        pytest.param(0.04, 1.1, 1.1, id="and on GPUs"),
        pytest.param(0.45, 1.3, 1.9, id="a shared one does not"),
        pytest.param(0.06, 1.1, 1.2, id="margins are in tenths, above what is needed"),
        pytest.param(0.06, 1.25, 1.3, id="whatever is usual"),
        pytest.param(1.0, 1.3, 2.6, id="jobs twice as long as on average"),
    ],
)
def test_margin_follows_variation(variation: float, usual: float, margin: float) -> None:
    assert Steadiness(variation).margin(usual) == margin


@given(
    st.tuples(st.floats(0, 20), st.floats(0, 20)).map(sorted),
    st.floats(1, 3).map(lambda value: round(value, 2)),
)
def test_more_variation_is_never_less_margin(both: list[float], usual: float) -> None:
    less, more = (Steadiness(one).margin(usual) for one in both)
    assert usual <= less <= more


def test_a_person_is_told() -> None:
    seen = Steadiness(0.45, "jobs of vit")
    assert seen.sentence(seen.margin(1.3)) == (
        "times vary by 45% here (jobs of vit): planned with 1.9"
    )


def test_spread_is_of_the_arena_that_varies_most() -> None:
    assert spread(profile((0.3, 0.2), (5.0, 5.0))) == pytest.approx(0.5)
    assert spread(profile((0.3, None))) == 0.0


def test_the_largest_cause_is_named() -> None:
    profiles = {"vit": profile((0.12, 0.1)), "bert": profile((0.13, 0.1))}
    assert steadiness(profiles, ()).cause == "jobs of bert"
    noisy = steadiness(profiles, [Load(0.0, 0.0), Load(0.0, 0.6)])
    assert noisy.cause == "other programs use the processors"
    assert noisy.variation == pytest.approx(0.7 / 0.4 - 1)
    stolen = steadiness(profiles, [Load(0.0, 0.1), Load(0.5, 0.1)])
    assert stolen.cause == "the machine's host takes the processors"


def test_jobs_that_differ_by_their_inputs_do_not_lengthen_all_others() -> None:
    assert steadiness({"soft": profile((40.0, 0.1))}, ()).margin(1.3) == 2.6


@given(_PARTS, st.integers(1, 5))
def test_a_load_that_never_changes_is_no_variation(part: float, times: int) -> None:
    assert steadiness({}, [Load(0.0, part)] * times).variation == pytest.approx(0, abs=1e-9)


_SPIN = "import time\nend = time.monotonic() + {0}\nwhile time.monotonic() < end: pass"


def test_own_work_is_no_load_and_that_of_others_is() -> None:
    """Of two programs that spin, the one that is watched is the run's own."""
    own, other = (subprocess.Popen([sys.executable, "-c", _SPIN.format(60)]) for _ in range(2))
    reader = LoadReader(own.pid)
    spent: list[float] = []
    try:
        while len(reader.loads) < 2:
            time.sleep(0.05)
            reader.look()
            spent.append(time.clock_gettime((~other.pid << 3) | 2))
    finally:
        for one in (own, other):
            one.kill()
            one.wait()
    for load in reader.loads:
        assert 0 <= load.stolen <= 1
        assert 0 <= load.others <= 1
    seen_s = sum(load.others for load in reader.loads) * (os.cpu_count() or 1)
    assert seen_s > 0.5 * (spent[-1] - spent[0])
