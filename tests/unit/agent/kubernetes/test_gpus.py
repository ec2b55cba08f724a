"""How a pod gets its GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tierline_agent.kubernetes.gpus import Access, access_to, nvidia_devices
from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memnode import Device

MIB = 1 << 20
CPU = Device(name="cpu", kind=DeviceKind.CPU, product="x", fast_bytes=MIB, extent_bytes=MIB)
GPU = CPU.model_copy(update={"name": "gpu-1", "kind": DeviceKind.CUDA, "uuid": "GPU-abc"})


def test_the_processor_needs_nothing(tmp_path: Path) -> None:
    assert access_to(CPU, {"0"}, None, tmp_path) == Access()


@pytest.mark.parametrize("name", ["GPU-abc", "1"], ids=["by uuid", "by number"])
def test_nvidias_own_device_comes_first(name: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia1").touch()

    access = access_to(GPU, {"0", "all", name}, 1, tmp_path)

    assert access == Access(described=(f"nvidia.com/gpu={name}",))


def test_without_it_the_device_nodes_that_are_there(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    nodes = access_to(GPU, {"0"}, 3, tmp_path).nodes

    assert nodes == tuple(str(tmp_path / n) for n in ("nvidia3", "nvidiactl", "nvidia-uvm"))


def test_no_way_to_a_gpu_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run nvidia-ctk cdi generate on the node"):
        access_to(GPU, {"0"}, 1, tmp_path)


def test_nvidias_descriptions_are_found_in_either_form(tmp_path: Path) -> None:
    static, runtime = tmp_path / "etc", tmp_path / "run"
    for folder in (static, runtime):
        folder.mkdir()
    gpu = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "GPU-abc"}]}
    (static / "nvidia.yaml").write_text(yaml.safe_dump(gpu))
    (runtime / "other.json").write_text(json.dumps({"kind": "x/y", "devices": [{"name": "9"}]}))
    (runtime / "more.json").write_text(json.dumps(gpu | {"devices": [{"name": "1"}]}))
    (runtime / "broken.json").write_text("{")
    (runtime / "notes.txt").write_text("kind: nvidia.com/gpu")

    assert nvidia_devices([static, runtime, tmp_path / "absent"]) == {"0", "1", "GPU-abc"}
