"""A user's mistake ends as one sentence on standard error and exit code 2."""

import socket
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tierline_cli.errors import CommandError, run
from tierline_cli.main import cli

_TASK = """
apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  realtime: {{period: 100ms}}
  memory: {{budget: 1Gi}}
  swap: {{tiers: [{tier}]}}
  device: {{kind: cpu}}
  profile: {profile}
  template: {template}
"""
_PROFILE = """---
apiVersion: tierline.io/v1alpha1
kind: MemProfile
metadata: {{name: a, namespace: x}}
spec:
  device: {{kind: {kind}, product: p}}
  layers: [{{name: l, bytes: 1048576, computeTime: 2ms}}]
  workspace: 1Mi
"""
_NODE = """---
apiVersion: tierline.io/v1alpha1
kind: MemNode
metadata: {{name: n}}
status:
  health: {node}
  devices: [{{name: d, kind: cpu, product: p, fastBytes: 67108864, extentBytes: 1048576,
              health: {device}}}]
  tiers: [{{name: dram, capacityBytes: 1073741824, health: {tier}}}]
  links: [{{name: h2d, device: d, bandwidth: 2000000000, overhead: 20us}}]
"""
_PROGRAM = "{spec: {containers: [{name: a, command: [python, -c, pass]}]}}"


def task(**changes: str) -> str:
    values = {"name": "a", "namespace": "x", "tier": "dram", "profile": "null"}
    return _TASK.format(**{**values, "template": _PROGRAM, **changes})


def planned(kind: str = "cpu", **failed: str) -> str:
    """A task with a profile of a device of that kind, on a node of which parts have failed."""
    health = {"node": "Healthy", "device": "Healthy", "tier": "Healthy", **failed}
    return task() + _PROFILE.format(kind=kind) + _NODE.format(**health)


@pytest.mark.parametrize(
    ("arguments", "manifest", "sentence"),
    [
        pytest.param(
            ["run", "--gpu", "0"],
            task(),
            "--gpu 0: none of the tasks runs on a GPU",
            id="run: gpu for nobody",
        ),
        pytest.param(
            ["verify", "--gpu", "3"],
            task(),
            "--gpu 3: none of the tasks runs on a GPU",
            id="verify: gpu for nobody",
        ),
        pytest.param(
            ["profile", "--gpu", "3"],
            task(),
            "--gpu 3: none of the tasks runs on a GPU",
            id="profile: gpu for nobody",
        ),
        pytest.param(
            ["run", "--nvme", "x"],
            task(),
            "--nvme x: none of the tasks has the tier nvme",
            id="run: nvme for nobody",
        ),
        pytest.param(
            ["verify", "--nvme", "x"],
            task(),
            "--nvme x: none of the tasks has the tier nvme",
            id="verify: nvme for nobody",
        ),
        pytest.param(
            ["run", "--pmem", "/dev/dax9.0"],
            task(),
            "--pmem /dev/dax9.0: none of the tasks has the tier pmem",
            id="run: pmem for nobody",
        ),
        pytest.param(
            ["verify", "--pmem", "x"],
            task(),
            "--pmem x: none of the tasks has the tier pmem",
            id="verify: pmem for nobody",
        ),
        pytest.param(
            ["simulate", "--seed", "1"],
            task(),
            "--seed 1: nothing is random",
            id="a seed for nothing",
        ),
        pytest.param(
            ["run"],
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n",
            "the files hold no MemTask; there is nothing to run",
            id="nothing to run",
        ),
        pytest.param(
            ["run"],
            task() + "---" + task(namespace="y"),
            "two tasks are called a; on one machine their names must differ",
            id="one name in two namespaces",
        ),
        pytest.param(
            ["run"],
            task(template="null"),
            "MemTask/a: spec.template is missing",
            id="no program",
        ),
        pytest.param(
            ["run"],
            task(
                template="{spec: {containers: [{name: a, command: [x], env: "
                "[{name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}"
            ),
            "MemTask/a: env KEY has no plain value",
            id="a variable that only a cluster has",
        ),
        pytest.param(
            ["run"],
            task(
                template="{spec: {containers: [{name: a, command: [x], envFrom: "
                "[{configMapRef: {name: settings}}]}]}}"
            ),
            "MemTask/a: container a takes variables from the cluster (envFrom)",
            id="variables that only a cluster has",
        ),
        pytest.param(
            ["run"],
            task(
                template="{spec: {containers: [{name: proxy, command: [x]}, "
                "{name: a, command: [y]}]}}"
            ),
            "the containers proxy and a have a command each; name the one that runs the model",
            id="a sidecar in front",
        ),
        pytest.param(
            ["run"],
            task(profile="measured"),
            "spec.profile names MemProfile/measured, and none of the files holds it",
            id="a profile that is not there",
        ),
        pytest.param(
            ["admit"],
            task(),
            "MemProfile/a is in none of the files; measure it with `tierline profile`",
            id="admission without a profile",
        ),
        *(
            pytest.param(
                [planning],
                task() + "---" + task(namespace="y"),
                "two tasks are called a; on one machine their names must differ",
                id=f"one name in two namespaces, {planning}",
            )
            for planning in ("admit", "explain", "plan", "simulate")
        ),
        pytest.param(
            ["run", "--fast-memory", "100Ki"],
            task(),
            "--fast-memory 100Ki holds not one extent of 4Mi; give more, or a smaller",
            id="less than an extent",
        ),
        pytest.param(
            ["run"],
            task(tier="pmem"),
            "a task wants the tier pmem; name its device or file with --pmem",
            id="a tier without a place",
        ),
        pytest.param(
            ["run", "--nvme", "/nowhere/store"],
            task(tier="nvme"),
            "--nvme /nowhere/store: /nowhere is no folder; name a file or a device",
            id="a tier in no folder",
        ),
        pytest.param(
            ["run", "--nvme", "/"],
            task(tier="nvme"),
            "--nvme /: / is a folder; name a file or a device",
            id="a folder as a tier",
        ),
        pytest.param(
            ["run"],
            task(
                template="{spec: {containers: [{name: a, command: [python], "
                "workingDir: /nowhere}]}}"
            ),
            "MemTask/a: workingDir /nowhere is no folder on this machine",
            id="no such folder to work in",
        ),
        pytest.param(
            ["admit"],
            planned(node="Failed"),
            "MemNode/n: it has failed, and runs no task; mend it, or name another node",
            id="a node that has failed",
        ),
        pytest.param(
            ["admit"],
            planned(device="Failed"),
            "MemNode/n: its device d has failed",
            id="a device that has failed",
        ),
        pytest.param(
            ["admit"],
            planned(kind="cuda"),
            "MemProfile/a was measured on a device of kind cuda and this one is of kind cpu",
            id="a profile of another kind of device",
        ),
        pytest.param(["plan", "--task", "b"], task(), "hold no MemTask b", id="no such task"),
        pytest.param(["profile", "--task", "b"], task(), "hold no MemTask b", id="nor to profile"),
    ],
)
def test_one_sentence(tmp_path: Path, arguments: list[str], manifest: str, sentence: str) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(manifest)
    result = CliRunner().invoke(cli, [arguments[0], str(path), *arguments[1:]])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert sentence in str(result.exception)


def test_a_port_that_is_taken_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(task())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(cli, ["run", str(path), "--metrics-port", port])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert f"--metrics-port {port} cannot be used: address already in use" in str(result.exception)


@pytest.mark.parametrize("name", ["two words", "it's", '"quoted"', "-dash", "$HOME"])
def test_what_init_says_next_is_a_command_line_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["init", "--", name])
    assert result.exit_code == 0
    change = result.output.partition("next: ")[2].partition(" && ")[0]
    assert subprocess.check_output(["sh", "-c", f"{change} && ls"], text=True).split() == [
        "program.py",
        "tasks.yaml",
    ]


def test_a_folder_that_cannot_be_made_is_a_plain_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(cli, ["init", str(tmp_path / "file" / "inside")])
    assert isinstance(result.exception, CommandError)
    assert "Errno" not in str(result.exception)
    assert str(result.exception).startswith("cannot write to ")


def test_no_number_of_an_error_reaches_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def command() -> None:
        raise FileNotFoundError(2, "No such file or directory", "some where")

    with pytest.raises(SystemExit) as ended:
        run(command, "tierline", [])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "tierline: cannot use some where: No such file or directory\n"


def test_a_tier_that_has_failed_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(planned())
    assert CliRunner().invoke(cli, ["admit", str(path)]).exit_code == 0
    path.write_text(planned(tier="Failed"))
    refused = CliRunner().invoke(cli, ["admit", str(path)])
    assert refused.exit_code == 3
    assert "not admitted" in refused.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["run"], "Missing argument 'FILES...'", id="no file"),
        pytest.param(["run", "--fast-memory", "2Qi", "x"], "unknown unit 'Qi'", id="no such unit"),
        pytest.param(["run", "--duration", "0", "x"], "'--duration'", id="no time"),
        pytest.param(["run", "--margin", "0.5", "x"], "'--margin'", id="a margin below 1"),
        pytest.param(["admit", "--margin", "nan", "x"], "nan is no finite", id="no number"),
        pytest.param(["run", "--margin", "1e308", "x"], "1<=x<=100", id="too large a margin"),
        pytest.param(["run", "--duration", "inf", "x"], "inf is no finite", id="no end"),
        pytest.param(
            ["simulate", "--duration", "inf", "x"], "inf is no finite", id="nor simulated"
        ),
        pytest.param(
            ["run", "--extent-size", "5Mi", "x"],
            "5Mi is no power of two from 64Ki to 1Gi",
            id="no size of an extent",
        ),
        *(
            pytest.param(
                [*command, "/nowhere/x.png", "x"],
                "/nowhere is no folder; make it, or name another one",
                id=f"no such folder, {' '.join(command)}",
            )
            for command in (
                ("run", "--json-file"),
                ("run", "--profiles-file"),
                ("profile", "-o"),
                ("plan", "--png"),
                ("simulate", "--png"),
                ("simulate", "--trace"),
            )
        ),
        pytest.param(
            ["plan", "--png", "x.xyz", "x"],
            "x.xyz does not end in .png, .svg, .pdf",
            id="no kind of picture",
        ),
        pytest.param(["fly"], "No such command 'fly'", id="no such command"),
        pytest.param(["completion", "tcsh"], "'tcsh' is not one of", id="no such shell"),
    ],
)
def test_usage(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_TIERLINE_COMPLETE" in result.output


@pytest.mark.parametrize("content", ["a: [", "[1, 2]", "text", "clusters: 3", ""])
def test_a_kubeconfig_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)

    result = CliRunner().invoke(cli, ["cluster", "top", "--kubeconfig", str(path)])

    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "set KUBECONFIG or --kubeconfig" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "a.yaml", "-o", "a.yaml"],
        ["profile", "-o", "./a.yaml", "a.yaml"],
        ["simulate", "a.yaml", "--trace", "a.yaml"],
        ["simulate", "b.yaml", "--node", "a.yaml", "--trace", "link"],
        ["run", "a.yaml", "--json-file", "a.yaml"],
        ["run", "b.yaml", "--node-file", "a.yaml", "--profiles-file", "a.yaml"],
        ["run", "b.yaml", "--nvme", "a.yaml", "--json-file", "a.yaml"],
    ],
)
def test_no_output_is_an_input_or_another_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(task())
    (tmp_path / "link").symlink_to("a.yaml")
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "as well, and would be overwritten; name another file" in result.output
    assert (tmp_path / "a.yaml").read_text() == task()


def test_a_check_without_a_kubeconfig_names_what_to_set(tmp_path: Path) -> None:
    missing = str(tmp_path / "config")
    result = CliRunner().invoke(cli, ["cluster", "check", "--kubeconfig", missing])
    assert "set KUBECONFIG or --kubeconfig" in str(result.exception)
