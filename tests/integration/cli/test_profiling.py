"""How long a program is observed for its profile, and what is said if there is none."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from tierline_api.objects.memtask import MemTask
from tierline_cli.local import profiling
from tierline_cli.local.place import Place
from tierline_cli.local.waiting import Patience

_ROOT = Path(__file__).parents[3]
_MODEL = "import os, time, torch\nmodel = torch.nn.Linear(64, 64)\ntorch.set_grad_enabled(False)\n"
_RUN = "model(torch.ones(1, 64))\n"


def observe(
    source: str,
    folder: Path,
    patience: Patience,
    told: list[str] | None = None,
    *,
    again: bool = False,
) -> profiling.Observation:
    """Profile a program of six jobs, one that its shell starts again and again if `again`."""
    command = ["python", "-c", source]
    if again:
        command = ["bash", "-c", f"while true; do {shlex.join(command)}; done"]
    container = {"name": "c", "command": command, "workingDir": str(_ROOT)}
    task = MemTask.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": "odd"},
            "spec": {
                "realtime": {"period": "1s"},
                "memory": {"budget": "64Mi"},
                "device": {"kind": "cpu"},
                "template": {"spec": {"containers": [container]}},
            },
        }
    )
    words = [] if told is None else told
    place = Place("cpu", 0)
    return profiling.observe(task, place, folder, 6, lambda _: None, words.append, patience)


def test_a_program_whose_jobs_take_long_is_waited_for(tmp_path: Path) -> None:
    """Only the time since its last job counts."""
    began_s = time.monotonic()
    source = f"{_MODEL}for _ in range(6):\n time.sleep(3); {_RUN}"
    assert len(observe(source, tmp_path, Patience(next_s=12)).compute_s) == 6
    assert time.monotonic() - began_s > 12


@pytest.mark.parametrize("warm_ups", [0, 1, 4])
def test_a_server_that_forks_its_workers_is_profiled_by_their_jobs(
    tmp_path: Path, warm_ups: int
) -> None:
    """It may have warmed up before, and run jobs at its end."""
    source = (
        f"{_MODEL}for _ in range({warm_ups}): {_RUN}"
        "children = [os.fork() for _ in range(2)]\n"
        f"while not all(children): time.sleep(0.01); {_RUN}"
        f"try: os.wait()\nfinally: {_RUN}"
    )
    observation = observe(source, tmp_path, Patience(next_s=20))
    assert len(observation.layers) == 1
    assert len(observation.compute_s) >= 6


def test_a_program_that_ends_too_early_each_time_is_given_up(tmp_path: Path) -> None:
    """Its shell starts it again for ever; what it showed is kept all the same."""
    source = f"{_MODEL}for n in range(3): model(torch.full((1, 64), float(n)))\nos._exit(7)"
    with pytest.raises(profiling.UnobservedError) as error:
        observe(source, tmp_path, Patience(), again=True)
    assert error.value.why == "its program ended after 3 outputs and was started again"
    assert f"{error.value.why}, 3 times; its last words: it said nothing" in str(error.value)
    assert len(error.value.seen.outputs) == 3


def test_a_program_that_ends_early_may_have_shown_enough(tmp_path: Path) -> None:
    """It writes its profile when it ends; the next start begins the file again."""
    source = f"{_MODEL}for _ in range(5): {_RUN}"
    observation = observe(source, tmp_path, Patience(), again=True)
    assert len(observation.layers) == 1
    assert len(observation.compute_s) == 5
    assert observation.ended_early == "its program ended after 5 outputs and was started again"
    assert '"order"' in (tmp_path / "odd.observed.jsonl").read_text()


@pytest.mark.parametrize("again", [False, True], ids=["idle", "started again and again"])
def test_a_program_that_calls_no_model_is_told_of_and_given_up(tmp_path: Path, again: bool) -> None:
    told: list[str] = []
    with pytest.raises(
        profiling.UnobservedError, match="no job for 3 s: its program called no PyTorch"
    ):
        observe(
            "print('hello')"
            if again
            else "import signal; print('hello', flush=True); signal.pause()",
            tmp_path,
            Patience(first_s=3, word_s=1),
            told,
            again=again,
        )
    (word,) = told
    assert "MemTask/odd: no job of its program has ended in 1 s; the wait ends 3 s after" in word
    assert "env -i" in word


class Told(list[str]):
    """Words to a person; the program goes on until there is one."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self._flag = flag

    def append(self, word: str) -> None:
        super().append(word)
        self._flag.touch()


def test_why_a_model_has_no_jobs_is_told_while_it_runs(tmp_path: Path) -> None:
    """Of a newcomer who runs it with gradients."""
    told = Told(tmp_path / "told")
    source = (
        f"{_MODEL}torch.set_grad_enabled(True)\n"
        f"while not os.path.exists({str(tmp_path / 'told')!r}): time.sleep(0.05); {_RUN}"
    )
    with pytest.raises(profiling.UnobservedError, match="it runs with gradients"):
        observe(source, tmp_path, Patience(reason_s=0, word_s=600), told)
    (word,) = told
    assert "MemTask/odd: no job so far: Linear is left alone: it runs with gradients" in word
