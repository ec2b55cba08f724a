"""`tierline fit`: four lines about a plan, files with it, and one sentence where there is none."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierline_cli.commands import fit as fit_command
from tierline_cli.errors import EXIT_BAD_INPUT, EXIT_INFEASIBLE, CommandError
from tierline_cli.main import cli
from tierline_torch.planned.modelled import DEVICES

NETS = "tests.integration.torch.planned.nets"
LINES = r"""^{NETS}:convolutions   \d+ operators, [\d.]+ MiB of weights, peak [\d.]+ MiB, step [\d.]+ ms \(modelled for H200\)
plan      ([\d.]+) MiB, step [\d.]+ ms \(\+[\d.]+ %\): (\d+) operators run again
bound     no plan below [\d.]+ MiB \(weights and inputs, and .*\); none in ([\d.]+) MiB below \+[\d.]+ %
proof     verified: 1 queue, \d+ steps, 0 waits, offsets in one arena of [\d.]+ MiB .*; right under every timing
$""".replace("{NETS}", NETS)  # noqa: E501 - as it is printed


def fit(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fit", f"{NETS}:{target}", "--seconds", "0", *arguments])


def sentence(result: Result) -> tuple[str, int]:
    assert isinstance(result.exception, CommandError), result.output
    return str(result.exception), result.exception.exit_code


def test_four_lines_and_a_plan_that_verifies(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    result = fit("convolutions", "--memory", "700KiB", "-o", str(plan))
    found = re.match(LINES, result.output)
    assert found, result.output
    assert float(found[1]) <= float(found[3])
    assert int(found[2]) > 0
    checked = fit("convolutions", "--verify", str(plan))
    assert checked.exit_code == 0
    assert "proof     verified: 1 queue" in checked.output

    plan.write_text(plan.read_text().replace('"workspace":null', '"workspace":0', 1))
    said, code = sentence(fit("convolutions", "--verify", str(plan)))
    assert (code, "the plan was edited" in said) == (EXIT_BAD_INPUT, True)


def test_a_plan_of_another_graph_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    fit("language", "--memory", "10MiB", "-o", str(plan))
    assert sentence(fit("convolutions", "--verify", str(plan))) == (
        f"{plan}: it was made for another graph",
        EXIT_BAD_INPUT,
    )


def test_a_curve_falls_with_memory(tmp_path: Path) -> None:
    picture, table = tmp_path / "curve.png", tmp_path / "curve.csv"
    result = fit("convolutions", "--curve", str(picture), "--csv", str(table))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    with table.open() as file:
        rows = [{name: int(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    assert len(rows) > 5
    for row in rows:
        assert row["plan_bytes"] <= row["budget_bytes"]
        assert row["bound_ns"] <= row["step_ns"]
    steps = [row["step_ns"] for row in rows]
    assert steps == sorted(steps, reverse=True)


def test_the_same_seed_is_the_same_plan_and_a_faster_device_takes_less_time() -> None:
    asked = ("convolutions", "--memory", "700KiB", "--json")
    plain, same = (json.loads(fit(*asked, "--seed", "3").output) for _ in range(2))
    assert plain == same
    slow = json.loads(fit(*asked, "--seed", "3", "--device", "V100").output)
    assert slow != plain


def test_one_json_object() -> None:
    found = json.loads(fit("convolutions", "--memory", "700KiB", "--json").output)
    assert found["plan"]["bytes"] <= found["plan"]["budgetBytes"] == 700 << 10
    assert found["plan"]["boundNs"] <= found["plan"]["stepNs"]
    assert found["graph"]["modelledFor"] == "H200"


def test_too_little_memory_is_infeasible_and_named() -> None:
    said, code = sentence(fit("convolutions", "--memory", "100KiB"))
    assert code == EXIT_INFEASIBLE
    assert re.fullmatch(
        r"no plan fits in 0.10 MiB: 0\.\d+ MiB is the least, for weights and inputs, and operands, "
        r"results and workspace of blocks\..*",
        said,
    )


def test_each_device_can_be_named() -> None:
    assert set(fit_command._DEVICES) == set(DEVICES)


def test_a_forward_is_planned_too() -> None:
    result = fit("forward_alone", "--memory", "1MiB")
    assert result.exit_code == 0, result.output
    assert "+0.0 %" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("convolutions", "--memory", "4GB"), "4GB may mean either; write 4GiB for 2^30 bytes"),
        (("convolutions", "--memory", "much"), "'--memory'"),
        (("convolutions", "-o", "plan"), "-o writes the plan for --memory; say how much"),
        (("convolutions", "--seconds", "-1"), "'--seconds'"),
        (("convolutions", "--device", "P4"), "'--device'"),
        (("convolutions", "--verify", "missing"), "'--verify'"),
        (("convolutions", "--curve", "curve.txt"), "does not end in .png"),
    ],
)
def test_options_that_are_wrong(arguments: tuple[str, ...], said: str) -> None:
    result = fit(*arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (f"{NETS}:broken", "RuntimeError: no such file: weights.pt ("),
        (f"{NETS}:nothing", "gives a NoneType; it must give (model, inputs) or (model, inputs, l"),
        (f"{NETS}:no_loss_function", "its loss is a int; it must be a function of the model's out"),
        (f"{NETS}:absent", f"{NETS} has no function absent"),
        (f"{NETS}:peeking", "cannot be planned: PyTorch cannot capture it"),
        ("no_such_module:step", "there is no module no_such_module here"),
        ("no_colon", "'no_colon' is no MODULE:FUNCTION"),
    ],
)
def test_targets_that_are_wrong(target: str, said: str) -> None:
    found, code = sentence(CliRunner().invoke(cli, ["fit", target, "--memory", "1GiB"]))
    assert code == EXIT_BAD_INPUT
    assert said in found
