"""What Kubernetes makes of a container's words is made of them on this machine, too."""

from __future__ import annotations

from typing import Any

import pytest

from tierline_api.memtask import MemTask
from tierline_cli.programs import ProgramSpec, program_of

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
