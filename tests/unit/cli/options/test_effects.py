"""Every option of the command line has an effect: a line for each, and none without one.

A line has two command lines that differ in that option alone; what is said, how it ends or what is
written differs. Where only programs that run for seconds show it, a test is named; its file uses
the option.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest
import yaml
from tests.unit.cli.reporting.test_answers import NODE, PROFILE, TASK, changed

from tierline_cli import errors
from tierline_cli.main import BAD_INPUT, cli

ROOT: Final = Path(__file__).parents[4]
_SECOND: Final = changed(changed(TASK, "metadata.name", "b"), "spec.profile", "a")
_LONG: Final = changed(
    changed(_SECOND, "spec.realtime.period", "10s"), "spec.realtime.executionTime", "1s"
)
_PROGRAM: Final = {"spec": {"containers": [{"name": "a", "command": ["/nowhere/program"]}]}}
_RUN: Final = changed(TASK, "spec.template", _PROGRAM)
_FILES: Final[dict[str, list[dict[str, Any]]]] = {
    "all": [TASK, PROFILE, NODE],
    "small": [changed(TASK, "spec.memory.budget", "1Mi"), PROFILE, NODE],
    "rest": [TASK, PROFILE],
    "node": [NODE],
    "two": [TASK, _SECOND, PROFILE, NODE],
    "long": [TASK, _LONG, PROFILE, NODE],
    "nothing": [NODE],
    "kubeconfig": [
        {
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "here",
        }
    ],
    "run": [_RUN],
    "gpu": [changed(_RUN, "spec.device.kind", "cuda")],
    "nvme": [changed(_RUN, "spec.swap.tiers", ["nvme"])],
    "pmem": [changed(_RUN, "spec.swap.tiers", ["pmem"])],
    "pod": [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"tierline.io/task": "a"}},
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        }
    ],
}
"""By name, as `{name}` in a line."""


class Line(NamedTuple):
    """Words in common, and what one and the other add."""

    words: str
    one: str
    other: str


LINES: Final = {
    "tierline admit files": Line("admit", "{all}", "{small}"),
    "tierline admit --node": Line("admit {rest}", "", "--node {node}"),
    "tierline admit --json": Line("admit {all}", "", "--json"),
    "tierline admit --margin": Line("admit {all}", "", "--margin 3"),
    "tierline plan files": Line("plan", "{all}", "{small}"),
    "tierline plan --node": Line("plan {rest}", "", "--node {node}"),
    "tierline plan --task": Line("plan {two}", "", "--task b"),
    "tierline plan --png": Line("plan {all}", "", "--png {out}.png"),
    "tierline plan --json": Line("plan {all}", "", "--json"),
    "tierline plan --margin": Line("plan {all}", "", "--margin 3"),
    "tierline explain files": Line("explain", "{all}", "{small}"),
    "tierline explain --node": Line("explain {rest}", "", "--node {node}"),
    "tierline explain --json": Line("explain {all}", "", "--json"),
    "tierline explain --margin": Line("explain {all}", "", "--margin 3"),
    "tierline simulate files": Line("simulate", "{all}", "{small}"),
    "tierline simulate --node": Line("simulate {rest}", "", "--node {node}"),
    "tierline simulate --scheduling": Line(
        "simulate {long} --json", "", "--scheduling layer-preemptive"
    ),
    "tierline simulate --duration": Line("simulate {all}", "--duration 1", "--duration 2"),
    "tierline simulate --releases": Line("simulate {two} --json", "", "--releases sporadic"),
    "tierline simulate --seed": Line(
        "simulate {two} --json --releases sporadic", "--seed 1", "--seed 2"
    ),
    "tierline simulate --shortest": Line("simulate {two} --json", "", "--shortest 0.5"),
    "tierline simulate --png": Line("simulate {all}", "", "--png {out}.png"),
    "tierline simulate --trace": Line("simulate {all}", "", "--trace {out}.json"),
    "tierline simulate --json": Line("simulate {all}", "", "--json"),
    "tierline simulate --margin": Line("simulate {all}", "", "--margin 3"),
    "tierline init folder": Line("init", "{out}", "{out}-too"),
    "tierline init --name": Line("init {out}", "", "--name B"),
    "tierline inject files": Line("inject", "{pod}", "{nothing}"),
    "tierline cluster check --context": Line(
        "cluster check --kubeconfig {kubeconfig}", "", "--context moon"
    ),
    "tierline cluster check --as-group": Line(
        "cluster check --kubeconfig {kubeconfig}", "", "--as-group people"
    ),
    "tierline completion shell": Line("completion", "bash", "zsh"),
    "tierline agent --config": Line("agent", "", "--config /nowhere/agent.json"),
    "tierline profile files": Line("profile", "{run}", "{nothing}"),
    "tierline profile --task": Line("profile {run}", "", "--task other"),
    "tierline profile --jobs": Line("profile {run}", "--jobs 4", "--jobs 5"),
    "tierline run --profile-jobs": Line("run {run}", "--profile-jobs 4", "--profile-jobs 5"),
    "tierline verify --jobs": Line("verify {run}", "--jobs 4", "--jobs 5"),
    "tierline profile --gpu": Line("profile {gpu}", "", "--gpu 7"),
    "tierline top --run-dir": Line("top --once", "--run-dir /nowhere/a", "--run-dir /nowhere/b"),
    **{
        f"tierline {command} {option}": line._replace(words=f"{command} {line.words}")
        for command in ("run", "verify")
        for option, line in {
            "files": Line("", "{run}", "{nothing}"),
            "--fast-memory": Line("{run}", "", "--fast-memory 64Ki"),
            "--nvme": Line("{nvme}", "", "--nvme /nowhere/x"),
            "--pmem": Line("{pmem}", "", "--pmem /nowhere/x"),
            "--extent-size": Line("{run} --fast-memory 64Ki", "", "--extent-size 64Ki"),
            "--gpu": Line("{gpu}", "", "--gpu 7"),
        }.items()
    },
}

_RUNS: Final = "tests/integration/cli/test_run.py::"
_TOP: Final = "tests/integration/agent/test_top.py::test_what_top_shows_of_a_running_agent"
_TOLD: Final = "tests/integration/operator/test_telling.py::"
_CHECK: Final = "tests/integration/operator/test_check.py::"
SEEN: Final = {
    "tierline run --duration": f"{_RUNS}test_two_tasks_larger_than_their_fast_memory",
    "tierline run --profiles-file": f"{_RUNS}test_two_tasks_larger_than_their_fast_memory",
    "tierline run --node-file": f"{_RUNS}test_two_tasks_larger_than_their_fast_memory",
    "tierline run --json": f"{_RUNS}test_ctrl_c_ends_cleanly_and_still_sums_up",
    "tierline run --json-file": f"{_RUNS}test_ctrl_c_ends_cleanly_and_still_sums_up",
    "tierline run --metrics-port": f"{_RUNS}test_ctrl_c_ends_cleanly_and_still_sums_up",
    "tierline run --margin": f"{_RUNS}test_ctrl_c_ends_cleanly_and_still_sums_up",
    "tierline verify --json": f"{_RUNS}test_verify_streams_all_and_compares",
    "tierline profile --output": f"{_RUNS}test_a_profile_goes_where_it_is_wanted",
    **{
        f"tierline fit {option}": f"tests/integration/torch/planned/test_fit.py::{test}"
        for option, test in {
            "target": "test_targets_that_are_wrong",
            "--memory": "test_too_little_memory_is_infeasible_and_named",
            "--output": "test_four_lines_and_a_plan_that_verifies",
            "--verify": "test_a_plan_of_another_graph_is_refused",
            "--curve": "test_a_curve_falls_with_memory",
            "--csv": "test_a_curve_falls_with_memory",
            "--json": "test_one_json_object",
            "--seed": "test_the_same_seed_is_the_same_plan_and_a_faster_device_takes_less_time",
            "--device": "test_the_same_seed_is_the_same_plan_and_a_faster_device_takes_less_time",
            "--seconds": "test_four_lines_and_a_plan_that_verifies",
        }.items()
    },
    "tierline top --once": _TOP,
    "tierline top --node": _TOP,
    "tierline top --interval": _TOP,
    "tierline cluster check --no-tasks": f"{_CHECK}test_what_does_not_work_is_named",
    "tierline cluster check --kubeconfig": f"{_CHECK}test_an_installation_that_works",
    **{
        f"tierline cluster check {option}": f"{_CHECK}test_who_may_not_check_is_told_so"
        for option in ("--namespace", "--all-namespaces", "--as")
    },
    "tierline cluster explain task": f"{_TOLD}test_a_task_that_runs",
    "tierline cluster why-pending name": f"{_TOLD}test_a_task_that_waits",
    "tierline cluster top --watch": f"{_TOLD}test_a_task_that_runs",
    "tierline cluster top --interval": f"{_TOLD}test_a_task_that_runs",
    **{
        f"tierline cluster {command} {option}": f"{_TOLD}{test}"
        for command in ("top", "explain", "why-pending")
        for option, test in {
            "--namespace": "test_mistakes_are_sentences",
            "--all-namespaces": "test_mistakes_are_sentences",
            "--context": "test_mistakes_are_sentences",
            "--kubeconfig": "test_mistakes_are_sentences",
            "--as": "test_it_asks_as_somebody_else_as_kubectl_does",
            "--as-group": "test_it_asks_as_somebody_else_as_kubectl_does",
            "--output": "test_a_task_that_runs",
        }.items()
    },
}
"""The test in the file that uses the option."""
_SPINNING: Final = re.compile("[\u2800-\u28ff]")
"""What turns while somebody waits: nobody knows how far."""
_SHORT: Final = {
    "--namespace": "-n",
    "--all-namespaces": "-A",
    "--output": "-o",
    "target": "fit",
    "task": "explain",
    "name": "why-pending",
}


def options() -> Iterator[str]:
    """All options and arguments, such as `tierline run --margin`."""
    yield from _options(cli, "tierline")


def _options(command: click.Command, name: str) -> Iterator[str]:
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            yield f"{name} {parameter.name}"
        elif "--version" not in parameter.opts:
            yield f"{name} {max(parameter.opts, key=len)}"
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield from _options(inner, f"{name} {part}")


def outcome(words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[object, ...]:
    """How a command ends, what it says and what it writes."""
    for name, documents in _FILES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    out = folder / "out"
    names = {name: str(folder / f"{name}.yaml") for name in _FILES}
    with pytest.raises(SystemExit) as ended:
        errors.run(cli, "tierline", words.format(**names, out=out).split(), BAD_INPUT)
    said = capsys.readouterr()
    written = sorted(path.name for path in folder.glob("out*"))
    for path in folder.glob("out*"):  # the same command may write them again
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return ended.value.code, said.out, _SPINNING.sub("", said.err), written


@pytest.mark.parametrize("option", LINES)
def test_the_option_alone_makes_a_difference(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, one, other = LINES[option]
    before = outcome(f"{words} {one}", tmp_path, capsys)
    assert outcome(f"{words} {one}", tmp_path, capsys) == before
    assert outcome(f"{words} {other}", tmp_path, capsys) != before


def test_every_option_has_its_line() -> None:
    """Whoever adds an option shows here what it changes."""
    assert set(options()) == set(LINES) | set(SEEN)


@pytest.mark.parametrize("option", SEEN)
def test_what_only_running_programs_show_is_tested(option: str) -> None:
    path, name = SEEN[option].split("::")
    source = (ROOT / path).read_text()
    assert f"\ndef {name}(" in source
    names = {option.rpartition(" ")[2], _SHORT.get(option.rpartition(" ")[2], "")} - {""}
    assert any(f'"{one}"' in source for one in names)
