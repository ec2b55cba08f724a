"""What Kubernetes makes of a container's words is made of them on this machine, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import CommandError
from tierline_cli.local.programs import Program, ProgramSpec, program_of
from tierline_cli.local.words import last_words

_TASK: dict[str, Any] = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemTask",
    "metadata": {"name": "a"},
    "spec": {
        "realtime": {"period": "100ms"},
        "memory": {"budget": "1Gi"},
        "device": {"kind": "cpu"},
    },
}


def program(*containers: dict[str, Any], **annotations: str) -> ProgramSpec:
    named = {f"tierline.io/{key}": value for key, value in annotations.items()}
    template = {
        "metadata": {"annotations": named},
        "spec": {"containers": [{"name": "a", **container} for container in containers]},
    }
    return program_of(MemTask.from_api({**_TASK, "spec": {**_TASK["spec"], "template": template}}))


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("$(A)", "one"),
        ("x$(A)y$(A)", "xoneyone"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$$$$(A)", "$$(A)"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("a$$", "a$"),
        ("$()", "$()"),
        ("$(HOME)", "$(HOME)"),  # of the machine, not of the container
    ],
)
def test_references_are_what_kubernetes_makes_of_them(text: str, means: str) -> None:
    env = [{"name": "A", "value": "one"}, {"name": "B", "value": text}]
    made = program({"command": ["run", text], "args": [text], "env": env})
    assert made.argv == ("run", means, means)
    assert dict(made.environment)["B"] == means


def test_a_variable_sees_those_above_it_alone() -> None:
    env = [
        {"name": "A", "value": "$(B)"},
        {"name": "B", "value": "2"},
        {"name": "B", "value": "$(B)$(A)"},
    ]
    made = program({"command": ["$(A)$(B)"], "env": env})
    assert dict(made.environment) == {"A": "$(B)", "B": "2$(B)"}
    assert made.argv == ("$(B)2$(B)",)


def test_the_annotation_says_which_container_is_the_program() -> None:
    proxy, model = ({"name": name, "command": [name]} for name in ("proxy", "model"))
    assert program(proxy, model, containers="model").argv == ("model",)
    assert program({"name": "proxy"}, model).argv == ("model",)


@pytest.mark.parametrize(
    ("name", "text", "mode", "why"),
    [
        ("none", None, 0, "there is no such file; write the path of a program"),
        (
            "lost",
            "#!/nowhere/sh\n",
            0o755,
            "names the interpreter '/nowhere/sh', which is not there",
        ),
        ("plain", "#!/bin/sh\n", 0o644, "it may not be executed; chmod +x"),
        ("text", "hello\n", 0o755, "it is no program; begin it with a line such as #!/bin/sh"),
    ],
)
def test_a_command_that_cannot_start_is_named_with_its_field(
    tmp_path: Path, name: str, text: str | None, mode: int, why: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    spec = program({"command": [f"./{name}"], "workingDir": str(tmp_path)})
    with pytest.raises(CommandError) as error:
        Program(spec, tmp_path / "log", {})
    begin = f"MemTask/a: spec.template.spec.containers[0].command: cannot start './{name}': "
    assert str(error.value).startswith(begin)
    assert why in str(error.value)
    assert error.value.exit_code == 2


def test_a_command_that_is_nowhere_is_named_with_the_path(tmp_path: Path) -> None:
    proxy = {"name": "proxy"}
    with pytest.raises(CommandError, match=r"containers\[1\].command: .* no such file in PATH"):
        Program(program(proxy, {"command": ["nowhere-at-all"]}), tmp_path / "log", {})


_FAILING = {
    "an error": ("1/0", "ZeroDivisionError: division by zero ({file}:1)"),
    "within a package": (
        "def f():\n  import json\n  json.loads('?')\nf()",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({file}:3)",
    ),
    "of syntax": ("x = 1\nfor\n", "SyntaxError: invalid syntax ({file}:2)"),
    "while another is handled": (
        "try:\n  1/0\nexcept Exception:\n  [][3]",
        "IndexError: list index out of range ({file}:4)",
    ),
    "of several lines": (
        "raise RuntimeError('CUDA error\\nask others\\n\\tor not')",
        "RuntimeError: CUDA error ({file}:1) … or not",
    ),
    "without words": ("raise ValueError", "ValueError ({file}:1)"),
    "that is none": ("raise SystemExit('no file')", "no file"),
}


@pytest.mark.parametrize("kind", _FAILING)
def test_an_error_is_told_with_its_place(kind: str, tmp_path: Path) -> None:
    source, words = _FAILING[kind]
    file = tmp_path / "program.py"
    file.write_text(source)
    ended = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert last_words(ended.stderr.strip().splitlines()) == words.format(file=file)
