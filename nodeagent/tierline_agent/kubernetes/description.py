"""The description of a claim for the container runtime (CDI): mounts, environment, device nodes.

Pure. The environment replaces variables of the same name in a container, so it holds names of
Tierline alone; LD_PRELOAD is merged into the pod by the admission policy, and PYTHONPATH is
extended by the library itself.

A description also remembers by which version of the library, and in which boot of the machine, its
pod was prepared: it lies exactly as long as that matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tierline_agent.kubernetes.grants import Grant
from tierline_agent.sessions.server import SOCKET_NAME
from tierline_api.devices.device import DeviceKind
from tierline_api.objects.optin import DRIVER, Standing
from tierline_api.objects.pod import FOLDER, LIBRARY

KIND: Final = f"{DRIVER}/claim"
PYTHON: Final = "python"
"""The plugin's folder, in a version of the library and in a pod's folder."""
MEASURED: Final = "measured"
"""The folder in a pod's folder that its program may write, while it is measured."""
PROFILE: Final = "profile.jsonl"
"""The file that it writes there."""
PLANNED: Final = "planned"
"""The file in the folder of a pod that was measured that is there once it has its plan."""
UNMEASURED: Final = "unmeasured"
"""The file in a pod's folder that is there once its measuring was given up."""
_VERSION: Final = f"version.{DRIVER}"
_BOOT: Final = f"boot.{DRIVER}"
_READ_ONLY: Final = ("ro", "nosuid", "nodev", "bind")
_WRITABLE: Final = ("rw", "nosuid", "nodev", "noexec", "bind")


@dataclass(frozen=True)
class Version:
    """A version of library and plugin on this node."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Described:
    """The facts that an existing description keeps."""

    uid: str
    version: str
    boot: str


def file_name(uid: str) -> str:
    """The name of a claim's description."""
    return f"{DRIVER}-claim-{uid}.json"


def device_id(uid: str) -> str:
    """By which the kubelet names the description to the container runtime."""
    return f"{KIND}={uid}"


def describe(
    grant: Grant,
    folder: Path,
    version: Version,
    boot: str,
    nodes: Sequence[str] = (),
    *,
    learned: bool = False,
    reconnect_s: float,
) -> dict[str, Any]:
    """The description of a granted claim whose pod has `folder`.

    Args:
        grant: what the claim grants.
        folder: the pod's folder.
        version: of library and plugin.
        boot: of the machine.
        nodes: device nodes that the pod gets.
        learned: whether this very pod was measured, and what it wrote is in its folder.
        reconnect_s: for how long its program waits for an agent that is away, in seconds.
    """
    mounts = [
        _mount(folder, FOLDER, _READ_ONLY),
        _mount(version.folder / PYTHON, f"{FOLDER}/{PYTHON}", _READ_ONLY),
    ]
    if grant.standing is Standing.PROFILING:
        mounts.append(_mount(folder / MEASURED, f"{FOLDER}/{MEASURED}", _WRITABLE))
    variables = environment(grant, learned=learned) | {"TIERLINE_RECONNECT_S": f"{reconnect_s:g}"}
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in sorted(variables.items())],
        "mounts": mounts,
    }
    if nodes:
        edits["deviceNodes"] = [{"path": path} for path in nodes]
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "annotations": {_VERSION: version.name, _BOOT: boot},
        "devices": [{"name": grant.uid, "containerEdits": edits}],
    }


def environment(grant: Grant, *, learned: bool = False) -> dict[str, str]:
    """The environment by which library and plugin in the pod know what they are."""
    terms = grant.terms
    variables = {
        "TIERLINE_CLAIM": grant.uid,
        "TIERLINE_TASK": grant.task,
        "TIERLINE_LIBRARY": LIBRARY,
        "TIERLINE_PYTHON": f"{FOLDER}/{PYTHON}",
        "TIERLINE_BUDGET": str(terms.memory.budget_bytes),
        "TIERLINE_ON_EXCEEDED": terms.swap.on_budget_exceeded.value,
    }
    if grant.standing is Standing.PROFILING:
        variables["TIERLINE_OBSERVE"] = f"{FOLDER}/{MEASURED}/{PROFILE}"
        # Where it has been measured and planned, the program ends itself to start by its plan.
        variables["TIERLINE_PLANNED"] = f"{FOLDER}/{PLANNED}"
    elif learned:
        # The plan is made of what it wrote then: its weights lie as they were measured.
        variables["TIERLINE_LEARNED"] = f"{FOLDER}/{MEASURED}/{PROFILE}"
    if grant.standing is not Standing.PROFILING or grant.measured_among_others:
        variables["TIERLINE_SOCKET"] = f"{FOLDER}/{SOCKET_NAME}"
        # It was admitted by its plan; without the agent it would take what others were granted.
        variables["TIERLINE_REQUIRED"] = "1"
    if terms.training is not None:
        variables |= terms.training.environment()
    if terms.device.kind is DeviceKind.CUDA:
        variables["TIERLINE_DEVICE"] = "cuda"
        variables["TIERLINE_EXECUTION"] = terms.device.execution.value
        if grant.plan is not None:
            variables |= terms.swap.environment(grant.plan)
    return variables


def remembered(description: Mapping[str, Any]) -> Described | None:
    """The facts in a description; None if it is none of ours."""
    notes = description.get("annotations") or {}
    devices = description.get("devices") or []
    if description.get("kind") != KIND or len(devices) != 1:
        return None
    return Described(
        str(devices[0].get("name")), str(notes.get(_VERSION, "")), str(notes.get(_BOOT, ""))
    )


def _mount(host: Path, container: str, options: Sequence[str]) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": list(options)}
