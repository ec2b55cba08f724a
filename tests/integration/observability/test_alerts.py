"""The alert rules by Prometheus' own promtool: each fires when it should, and not before."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.integration.observability.alert_cases import AT, CASES, Case
from tests.integration.observability.expressions import RULES, rules

from tierline_cluster.versions import REPOSITORY

RUNBOOKS = REPOSITORY / "docs" / "operations" / "runbooks.md"
_VALUE = re.compile(r"\{\{ \$value[^}]*\}\}")
_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")


def hour(case: Case, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """An hour of series as promtool reads it, and whether the alert is there at its end."""
    expected = []
    if fires:
        rule = rules()[case.alert]
        annotations = {
            name: _LABEL.sub(lambda found: case.labels[found[1]], _VALUE.sub(case.value, text))
            for name, text in rule["annotations"].items()
        }
        labels = {**rule["labels"], **case.labels}
        expected = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {
        "name": f"{case.alert} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": AT, "alertname": case.alert, "exp_alerts": expected}],
    }


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_something_is_wrong_and_not_before(tmp_path: Path) -> None:
    hours = [
        judged
        for case in CASES
        for judged in (hour(case, case.well, fires=False), hour(case, case.broken, fires=True))
    ]
    path = tmp_path / "hours.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": hours})
    )
    promtool("test", "rules", str(path))


def test_every_alert_has_a_case_and_a_runbook() -> None:
    known = set(rules())
    assert {case.alert for case in CASES} == known
    sections = set(re.findall(r"^## (Tierline\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    assert sections == known
    for rule in rules().values():
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))
