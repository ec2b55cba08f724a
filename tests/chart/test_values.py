"""What the chart says of wrong values and of clusters that it cannot work on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.chart.helm import CHART, objects, templated

SIZE = "write a whole number with Ki, Mi, Gi or Ti, such as 512Mi"


class Wrong(NamedTuple):
    """Values that cannot be meant, and what is said of them."""

    values: dict[str, Any]
    said: str


def pool(**changes: Any) -> dict[str, Any]:
    """Values with these changes in pool `default`."""
    return {"agent": {"pools": {"default": changes}}}


def tier(name: str, **changes: Any) -> dict[str, Any]:
    return pool(tiers={name: changes})


WRONG = {
    "a name that is not there": Wrong(
        {"operator": {"replica": 2}}, "at '/operator': additional properties 'replica' not allowed"
    ),
    "a name at the top that is not there": Wrong(
        {"agents": {}}, "at '': additional properties 'agents' not allowed"
    ),
    "no operator": Wrong(
        {"operator": {"replicas": 0}}, "at '/operator/replicas': minimum: got 0, want 1"
    ),
    "half an operator": Wrong(
        {"operator": {"replicas": "two"}},
        "at '/operator/replicas': got string, want integer",
    ),
    "a margin that weakens the proof": Wrong(
        {"operator": {"margins": {"cuda": 0.9}}},
        "at '/operator/margins/cuda': minimum: got 0.9, want 1",
    ),
    "a log level of another program": Wrong(
        {"operator": {"logLevel": "trace"}},
        "at '/operator/logLevel': value must be one of 'debug', 'info', 'warning', 'error'",
    ),
    "an image without a name": Wrong(
        {"operator": {"image": {"repository": ""}}},
        "at '/operator/image/repository': minLength: got 0, want 1",
    ),
    "a digest within the name": Wrong(
        {"agent": {"image": {"repository": "agent@sha256:00"}}},
        "at '/agent/image/repository': 'agent@sha256:00' does not match pattern",
    ),
    "a tag within the name": Wrong(
        {"operator": {"image": {"repository": "localhost/tierline-operator:0.1.0"}}},
        "at '/operator/image/repository': 'localhost/tierline-operator:0.1.0' does not match",
    ),
    "two pools that can choose one node": Wrong(
        {
            "agent": {
                "pools": {
                    "second": {
                        "devices": {"cpu": {"fastMemory": "256Mi"}},
                        "tiers": {"dram": {"path": "/run/tierline/dram2", "size": "256Mi"}},
                    }
                }
            }
        },
        "agent.pools.default and agent.pools.second can choose one node",
    ),
    "GPUs without a way to their driver": Wrong(
        pool(devices={"gpus": {"count": 1, "fastMemory": "70Gi"}}),
        "agent.pools.default.devices.gpus: nothing brings the GPU driver's libraries to the agent",
    ),
    "a digest that is none": Wrong(
        {"agent": {"image": {"digest": "latest"}}},
        "at '/agent/image/digest': 'latest' does not match pattern '^(sha256:[0-9a-f]{64})?$'",
    ),
    "a pull policy that is none": Wrong(
        {"agent": {"image": {"pullPolicy": "Sometimes"}}},
        "at '/agent/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
    ),
    "a relative folder": Wrong(
        {"agent": {"kubeletDir": "kubelet"}},
        "at '/agent/kubeletDir': 'kubelet' does not match pattern",
    ),
    "a folder that ends in a slash": Wrong(
        {"agent": {"cdiDir": "/var/run/cdi/"}},
        "at '/agent/cdiDir': '/var/run/cdi/' does not match pattern",
    ),
    "a folder above another": Wrong(
        {"agent": {"kubeletDir": "/var/lib/../kubelet"}},
        "at '/agent/kubeletDir': '/var/lib/../kubelet' does not match pattern",
    ),
    "a folder that YAML would cut short": Wrong(
        {"agent": {"kubeletDir": "/kubelet #2"}},
        "at '/agent/kubeletDir': '/kubelet #2' does not match pattern",
    ),
    "more nodes at once than there are": Wrong(
        {"agent": {"maxUnavailable": "150%"}},
        "at '/agent/maxUnavailable': '150%' does not match pattern",
    ),
    "a pool whose name cannot be a label": Wrong(
        {"agent": {"pools": {"GPU_Nodes": {}}}}, "invalid propertyName 'GPU_Nodes'"
    ),
    "a pool of nothing": Wrong(
        {"agent": {"pools": {"gpu": {}}}},
        "at '/agent/pools/gpu': missing properties 'devices', 'tiers'",
    ),
    "a device of another kind": Wrong(
        pool(devices={"tpu": {"fastMemory": "1Gi"}}),
        "at '/agent/pools/default/devices': additional properties 'tpu' not allowed",
    ),
    "a pool without devices": Wrong(
        pool(devices={"cpu": None}),
        "agent.pools.default has no device; give devices.cpu or devices.gpus",
    ),
    "GPUs without a count": Wrong(
        pool(devices={"gpus": {"fastMemory": "70Gi"}}),
        "at '/agent/pools/default/devices/gpus': missing property 'count'",
    ),
    "no GPU": Wrong(
        pool(devices={"gpus": {"count": 0, "fastMemory": "70Gi"}}),
        "at '/agent/pools/default/devices/gpus/count': minimum: got 0, want 1",
    ),
    "fast memory in decimal units": Wrong(
        pool(devices={"cpu": {"fastMemory": "1GB"}}),
        f'agent.pools.default.devices.cpu.fastMemory is "1GB"; {SIZE}',
    ),
    "fast memory of less than an extent": Wrong(
        pool(devices={"gpus": {"count": 1, "fastMemory": "16Mi"}, "cpu": None}),
        "agent.pools.default.devices.gpus.fastMemory 16Mi holds not one extent of 32Mi; give more,"
        " or a smaller extentSize",
    ),
    "an extent that is no power of two": Wrong(
        pool(extentSize="3Mi"),
        "at '/agent/pools/default/extentSize': '3Mi' does not match pattern '^((64|128|256|512)Ki|",
    ),
    "a size in bytes": Wrong(
        tier("nvme", size=4294967296),
        "at '/agent/pools/default/tiers/nvme/size': got number, want string",
    ),
    "a size without a unit": Wrong(
        tier("nvme", size="4294967296"),
        f'agent.pools.default.tiers.nvme.size is "4294967296"; {SIZE}',
    ),
    "a pool without tiers": Wrong(
        pool(tiers={"dram": None, "nvme": None}),
        "agent.pools.default has no tier; give one of tiers.dram, tiers.pmem and tiers.nvme",
    ),
    "a tier of another kind": Wrong(
        tier("ssd", path="/mnt/ssd"),
        "at '/agent/pools/default/tiers': additional properties 'ssd' not allowed",
    ),
    "a tier without a path": Wrong(
        tier("pmem", size="1Gi"), "at '/agent/pools/default/tiers/pmem': missing property 'path'"
    ),
    "a tier's size without a unit that is known": Wrong(
        tier("nvme", size="1Eb"), f'agent.pools.default.tiers.nvme.size is "1Eb"; {SIZE}'
    ),
    "a tier's file without a size": Wrong(
        tier("pmem", path="/mnt/pmem0/store"),
        "agent.pools.default.tiers.pmem: /mnt/pmem0/store is a file, whose size is needed; give"
        " agent.pools.default.tiers.pmem.size",
    ),
    "a tier of less than an extent": Wrong(
        tier("nvme", size="1Mi"),
        "agent.pools.default.tiers.nvme.size 1Mi holds not one extent of 4Mi; give more, or a"
        " smaller extentSize",
    ),
    "two tiers in one file": Wrong(
        tier("nvme", path="/dev/shm/tierline/dram"),  # noqa: S108 - the DRAM tier's
        "agent.pools.default.tiers.nvme.path /dev/shm/tierline/dram is another tier's as well;"
        " give each its own",
    ),
    "a tier in the root folder": Wrong(
        tier("nvme", path="/nvme"),
        "agent.pools.default.tiers.nvme.path /nvme is in /, which cannot be a tier's folder in the"
        " agent's container; choose another folder, such as /var/lib/tierline",
    ),
    "a tier among the agent's settings": Wrong(
        tier("nvme", path="/etc/tierline/nvme"),
        "agent.pools.default.tiers.nvme.path /etc/tierline/nvme is in /etc/tierline, which cannot",
    ),
    "a tier in the plugin's folder": Wrong(
        tier("nvme", path="/var/lib/kubelet/plugins/tierline.io/nvme"),
        "is in /var/lib/kubelet/plugins/tierline.io, which cannot be a tier's folder",
    ),
    "a memory limit that would end the agent": Wrong(
        {"agent": {"resources": {"limits": {"memory": "2Gi"}}}},
        "agent.resources.limits.memory 2Gi is below the 3584Mi that agents of the pool default keep"
        " in memory (fast memory of cpu, tier dram, 512Mi of their own); raise it or leave it out",
    ),
    "a memory limit in decimal units": Wrong(
        {"agent": {"resources": {"limits": {"memory": "64G"}}}},
        f'agent.resources.limits.memory is "64G"; {SIZE}',
    ),
    "more processors asked than allowed": Wrong(
        {"operator": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}},
        "operator.resources.requests.cpu 2 is above the limit 1500m; lower it, or raise limits.cpu",
    ),
    "more memory asked than allowed": Wrong(
        {"agent": {"resources": {"requests": {"memory": "65G"}, "limits": {"memory": "60Gi"}}}},
        "agent.resources.requests.memory 65G is above the limit 60Gi; lower it, or raise",
    ),
    "a request that is no quantity": Wrong(
        {"operator": {"resources": {"requests": {"cpu": "two"}, "limits": {"cpu": "2"}}}},
        'operator.resources.requests.cpu is "two"; write a quantity such as 500m or 512Mi',
    ),
    **{
        f"a tier in {folder}": Wrong(
            tier("nvme", path=f"{folder}/nvme"),
            f"agent.pools.default.tiers.nvme.path {folder}/nvme is in {folder}, which others on",
        )
        for folder in (
            *("/etc", "/etc/ssl", "/usr/lib", "/var", "/var/lib", "/run", "/proc/sys"),
            *("/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/containerd"),
        )
    },
    "more fast memory than there is": Wrong(
        pool(devices={"cpu": {"fastMemory": "65Ti"}}),
        "agent.pools.default.devices.cpu.fastMemory 65Ti is more than 64Ti, which no device has",
    ),
    "a tier larger than a number": Wrong(
        tier("nvme", size="9999999Ti"),
        'agent.pools.default.tiers.nvme.size is "9999999Ti", which no machine has; write at most',
    ),
    "a label's key that is none": Wrong(
        {"operator": {"podLabels": {"a b": "c"}}},
        "invalid propertyName 'a b'",
    ),
    "an annotation's key that is none": Wrong(
        {"agent": {"podAnnotations": {"Example.com/-": "c"}}},
        "invalid propertyName 'Example.com/-'",
    ),
    "a label's value that is none": Wrong(
        {"agent": {"podLabels": {"team": "a b"}}},
        "at '/agent/podLabels/team': 'a b' does not match pattern",
    ),
    "a node's label that is none": Wrong(
        pool(nodeSelector={"/zone": "a"}),
        "invalid propertyName '/zone'",
    ),
    "a word for a truth value": Wrong(
        {"crds": {"keep": "yes"}}, "at '/crds/keep': got string, want boolean"
    ),
    "no way to the API server": Wrong(
        {"networkPolicy": {"apiServerPorts": []}},
        "at '/networkPolicy/apiServerPorts': minItems: got 0, want 1",
    ),
    "a port that is none": Wrong(
        {"networkPolicy": {"apiServerPorts": [70000]}},
        "at '/networkPolicy/apiServerPorts/0': maximum: got 70,000, want 65,535",
    ),
    "a secret without a name": Wrong(
        {"imagePullSecrets": ["registry"]},
        "at '/imagePullSecrets/0': got string, want object",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused_with_a_message(wrong: Wrong, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(wrong.values))

    done = templated("--values", values)

    assert done.returncode != 0
    assert wrong.said in done.stderr


def test_an_old_cluster_is_refused_with_what_to_do() -> None:
    done = templated("--kube-version", "1.35.4")

    assert done.returncode != 0
    assert (
        "cannot install Tierline on Kubernetes v1.35.4: it needs 1.36 or later, with containerd 2"
        " or CRI-O on the nodes" in done.stderr
    )
    assert "upgrade the cluster, or run the tasks of one machine with `tierline run`" in done.stderr


@pytest.mark.parametrize("version", ["1.36.0", "v1.36.0-beta.1", "v1.37.2-gke.100", "v1.36.3+k3s1"])
def test_later_clusters_are_taken(version: str) -> None:
    assert templated("--kube-version", version).returncode == 0


def paths(schema: dict[str, Any], of: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the names of all values; free-form ones as a whole."""
    name = of.get("$ref", "").removeprefix("#/definitions/")
    of = schema["definitions"].get(name, of)
    if "properties" in of and name != "resources":
        for key, value in of["properties"].items():
            yield from paths(schema, value, f"{path}.{key}" if path else key)
    elif "$ref" in (inner := of.get("additionalProperties") or {}):
        yield from paths(schema, inner, f"{path}.NAME")
    else:
        yield path


def test_every_value_is_in_the_table_of_the_charts_page() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    page = (CHART / "README.md").read_text()
    known = [path for path in paths(schema, schema) if path != "global"]

    assert len(known) > 30
    assert [path for path in known if f"`{path}`" not in page] == []


def test_names_of_digits_are_names(tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    default = yaml.safe_load((CHART / "values.yaml").read_text())["agent"]["pools"]["default"]
    pools = {"default": None, "2026": default}
    values.write_text(json.dumps({"agent": {"pools": pools, "priorityClassName": "12"}}))

    made = objects(values, only="templates/agent/daemonset.yaml")
    (agent,) = (one for one in made if one["kind"] == "DaemonSet")
    assert agent["metadata"]["labels"]["tierline.io/pool"] == "2026"
    assert agent["spec"]["template"]["spec"]["priorityClassName"] == "12"
