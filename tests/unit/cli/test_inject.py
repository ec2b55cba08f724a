"""`tierline inject`: what it prints, and that nothing else is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.api.pods.pod_cases import WRONG, pod, templated

from tierline_api.pods.inject import injected
from tierline_cli.commands.inject import command
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a", "labels": {"commit": "12e5678", "on": "yes", "at": "12:30"}},
    "spec": {"ports": [{"port": 80}], "note": "two\nlines\n"},
}


def said(*arguments: str, given: str | None = None) -> str:
    """Return what the command prints; raises what it raises."""
    result = CliRunner().invoke(command, arguments, input=given, catch_exceptions=False)
    return result.stdout


def test_all_files_are_printed_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(f"{json.dumps(SERVICE)}\n---\n{json.dumps(templated('Deployment', pod()))}")
    second.write_text(f"---\n# nothing\n---\n{yaml.safe_dump(pod())}")

    assert list(yaml.safe_load_all(said(str(first), str(second)))) == [
        SERVICE,
        injected(templated("Deployment", pod())),
        injected(pod()),
    ]


def test_texts_stay_texts_for_every_reader() -> None:
    printed = said("-", given=json.dumps(SERVICE))

    assert 'commit: "12e5678"' in printed
    assert '"on": "yes"' in printed
    assert 'at: "12:30"' in printed
    assert "note: |" in printed


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(CommandError, match=r"a\.yaml: not UTF-8, as manifests are"):
        said(str(file))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        pytest.param(
            yaml.safe_dump_all([SERVICE, WRONG["a node by name"].pod]),
            "standard input: Pod camera-1: spec.nodeName binds the pod to a node",
            id="a pod that cannot work",
        ),
        pytest.param("a: [", "standard input: line [12]", id="no YAML"),
        pytest.param("- a", "line 1: not an object of Kubernetes", id="a list"),
    ],
)
def test_mistakes_print_nothing_but_a_sentence(given: str, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence) as failed:
        said("-", given=given)

    assert failed.value.exit_code == EXIT_BAD_INPUT
