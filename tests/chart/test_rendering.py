"""What the chart's values become, and that Kubernetes takes it, field by field."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, SYSTEM, VARIANTS, helm, objects, rendered
from tests.chart.schemas import TEMPLATE, write_schemas
from tests.unit.api.api_objects import task

from tierline_agent.config import AgentConfig, parse_config
from tierline_api.objects.memtask import MemTask
from tierline_api.pods.agents import SERVICE_ACCOUNT
from tierline_cluster.api import Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import HELM_BUILD, REPOSITORY
from tierline_operator import settings
from tierline_operator.cluster.decode import meta_of
from tierline_operator.controller.manifests import claim_template, deployment

GIB = 1 << 30
DEVICES = ("/dev/dax0.0", "/dev/nvme1n1")
GPU = CHART / "ci" / "gpu-values.yaml"
STRICT = CHART / "ci" / "strict-values.yaml"
every_variant = pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem)


def named(kind: str, name: str, values: Path | None = None) -> Manifest:
    """Return the object of this kind and name."""
    (found,) = (
        manifest
        for manifest in objects(values)
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    )
    return found


def agent(pool: str, values: Path | None = None) -> dict[str, Any]:
    """Return the spec of the pods of a pool's agents."""
    spec: dict[str, Any] = named("DaemonSet", f"tierline-agent-{pool}", values)["spec"]
    return spec["template"]["spec"]


def config(pool: str, values: Path | None = None) -> AgentConfig:
    """Return the settings of a pool's agents as they read them."""
    found = named("ConfigMap", f"tierline-agent-{pool}", values)
    return parse_config(found["data"]["agent.json"], pool)


@every_variant
def test_helm_finds_nothing_to_complain_of(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.fixture(scope="module")
def schemas(bare_server: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of the API server's kinds."""
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(bare_server.api, folder)
    return folder


def conforms(text: str, schemas: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(built(HELM_BUILD) / "kubeconform", "-strict", "-summary"),
            *("-schema-location", f"{schemas}/{TEMPLATE}"),
        ],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@every_variant
def test_each_object_conforms_to_its_schema(values: Path, schemas: Path) -> None:
    done = conforms(rendered(values), schemas)

    assert done.returncode == 0, done.stdout
    assert "Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


def test_a_mistake_in_an_object_would_be_found(schemas: Path) -> None:
    text = rendered().replace("readOnlyRootFilesystem", "readOnlyRootFileSystem")
    done = conforms(text, schemas)

    assert done.returncode != 0
    assert "readOnlyRootFileSystem" in done.stdout


@every_variant
def test_the_api_server_takes_each_object(values: Path, bare_server: ControlPlane) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    bare_server.api.apply(namespace)
    # It looks up the account of a pod.
    accounts = [one for one in objects(values) if one["kind"] == "ServiceAccount"]
    for manifest in accounts:
        bare_server.api.apply(manifest)
    for manifest in objects(values):
        bare_server.api.apply(manifest, dryRun="All")
        assert bare_server.api.warnings == (), manifest["metadata"]["name"]
    for manifest in accounts:
        bare_server.api.delete(manifest)


@every_variant
def test_settings_are_such_as_agents_and_operators_take(values: Path) -> None:
    pools = 0
    for manifest in objects(values):
        if manifest["kind"] == "ConfigMap" and "agent.json" in manifest["data"]:
            read = parse_config(manifest["data"]["agent.json"], manifest["metadata"]["name"])
            assert (read.metrics_address, read.metrics_port) == ("0.0.0.0", 9464)  # noqa: S104
            pools += 1
    assert pools
    (container,) = named("Deployment", "tierline-operator", values)["spec"]["template"]["spec"][
        "containers"
    ]
    given = {entry["name"]: entry.get("value", "of-its-pod") for entry in container["env"]}
    chosen = settings.read(given)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": chosen.metrics_port, "health": chosen.health_port}


def test_labels_and_variables_are_added_and_the_charts_own_stay() -> None:
    operator = named("Deployment", "tierline-operator", STRICT)["spec"]
    agents = named("DaemonSet", "tierline-agent-default", STRICT)["spec"]
    for spec in (operator, agents):
        labels = spec["template"]["metadata"]["labels"]
        assert labels["team"] == "platform"
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        (container,) = spec["template"]["spec"]["containers"]
        assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert operator["template"]["metadata"]["annotations"]["example.com/scrape"] == "no"
    assert agents["template"]["metadata"]["annotations"]["checksum/settings"] != "mine"


def test_each_alert_may_name_the_page_of_its_runbook(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    url = "https://example.com/runbooks"
    values.write_text(f"monitoring: {{rules: {{enabled: true, runbookUrl: '{url}'}}}}")
    (made,) = objects(values, only="templates/monitoring/rules.yaml")
    alerts = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{url}#{alert['alert'].lower()}"


def test_sizes_become_bytes() -> None:
    read = config("h200", GPU)

    assert [device.index for device in read.all_devices] == list(range(8))
    assert {device.fast_bytes for device in read.all_devices} == {130 * GIB}
    assert read.extent_bytes == 32 << 20
    assert {tier.name: tier.size_bytes for tier in read.tiers} == {
        "dram": 512 * GIB,
        "nvme": 4096 * GIB,
    }
    assert config("default").extent_bytes == 4 << 20
    assert config("default", STRICT).extent_bytes == 8 << 20


def test_the_scheduler_is_told_what_lies_in_memory() -> None:
    def asked(pool: str, values: Path | None = None) -> str:
        (container,) = agent(pool, values)["containers"]
        return str(container["resources"]["requests"]["memory"])

    assert asked("default") == "3584Mi"  # 1Gi, 2Gi and the agent's own 512Mi
    assert asked("h200", GPU) == f"{512 * 1024 + 512}Mi"
    assert asked("pmem", GPU) == "512Mi"
    assert asked("default", STRICT) == "8Gi"


@pytest.mark.parametrize(
    ("pool", "values", "privileged"),
    [
        ("default", None, False),
        ("default", STRICT, False),
        ("h200", GPU, True),
        ("pmem", GPU, True),
    ],
)
def test_an_agent_is_privileged_only_where_it_opens_devices(
    pool: str, values: Path | None, privileged: bool
) -> None:
    spec = agent(pool, values)
    (container,) = spec["containers"]
    context = container["securityContext"]

    assert context.get("privileged", False) == privileged
    assert context["readOnlyRootFilesystem"]
    assert "hostNetwork" not in spec
    if not privileged:
        assert context["capabilities"] == {"drop": ["ALL"], "add": ["KILL"]}
        assert not context["allowPrivilegeEscalation"]


def test_every_folder_of_the_node_and_its_reason_is_in_the_security_page() -> None:
    page = (REPOSITORY / "SECURITY.md").read_text()
    paths = [volume["hostPath"]["path"] for volume in agent("default")["volumes"][1:]]

    assert len(paths) == 7
    assert [path for path in paths if f"| hostPath `{path}`" not in page] == []


def test_what_agents_leave_on_a_node_is_removed_by_the_command_of_the_charts_page() -> None:
    """All folders that they make, but for those that others have things in."""
    page = (CHART / "README.md").read_text()
    (removed,) = re.findall(r"^\$ rm -rf (.*)$", page, re.MULTILINE)
    common = {"/var/lib/kubelet/plugins_registry", "/var/run/cdi", "/etc/cdi"}
    made = {volume["hostPath"]["path"] for volume in agent("default")["volumes"][1:]}

    assert set(removed.split()) == made - common


def test_what_agents_write_lies_in_folders_of_the_node() -> None:
    """What the next agent, the kubelet or the runtime reads lies at the node's own paths."""
    for pool, values in (("default", None), ("default", STRICT), ("h200", GPU), ("pmem", GPU)):
        spec, read = agent(pool, values), config(pool, values)
        assert read.kubernetes is not None
        (container,) = spec["containers"]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert len({mount["mountPath"] for mount in mounts.values()}) == len(mounts)
        shared = [
            volume["hostPath"]["path"]
            for volume in spec["volumes"]
            if "hostPath" in volume and not mounts[volume["name"]].get("readOnly")
        ]
        for name, mount in mounts.items():
            (volume,) = (volume for volume in spec["volumes"] if volume["name"] == name)
            assert mount["mountPath"] == volume.get("hostPath", {}).get("path", "/etc/tierline")
        kubernetes = read.kubernetes
        for path in (
            *(read.state_dir, read.run_dir, kubernetes.plugin_dir, kubernetes.registry_dir),
            *(kubernetes.cdi_dir, kubernetes.pods_dir, kubernetes.library_dir),
            *(tier.path for tier in read.tiers if tier.path not in DEVICES),
        ):
            assert any(Path(path).is_relative_to(folder) for folder in shared), path


def test_the_operator_has_no_rights_on_its_node() -> None:
    spec = named("Deployment", "tierline-operator")["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in spec


def test_the_operator_may_keep_from_going_whatever_it_says_to_keep() -> None:
    """Where OwnerReferencesPermissionEnforcement is on, as on OpenShift, that takes this right."""
    meta = meta_of({"metadata": {"name": "m", "uid": "u", "resourceVersion": "1"}})
    program = {"spec": {"containers": [{"name": "app", "command": ["python"]}]}}
    made = [
        claim_template(meta),
        deployment(MemTask.from_api(task(spec__template=program)), meta),
    ]
    references = [one for each in made for one in each["metadata"]["ownerReferences"]]
    kept = {
        (one["apiVersion"].partition("/")[0], f"{one['kind'].lower()}s/finalizers")
        for one in references
        if one["blockOwnerDeletion"]
    }

    role = named("ClusterRole", "tierline-operator")
    may = {
        (group, resource)
        for rule in role["rules"]
        if "update" in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if resource.endswith("/finalizers")
    }
    assert kept == may != set()


def test_the_chart_installs_the_images_of_this_version() -> None:
    (container,) = agent("default")["containers"]

    assert container["image"] == f"localhost/tierline-agent:{version('tierline')}"


def test_agents_have_the_account_that_the_policies_know() -> None:
    assert agent("default")["serviceAccountName"] == SERVICE_ACCOUNT


def test_templates_ask_no_cluster_and_draw_no_lots() -> None:
    """GitOps tools render without a cluster, again and again, and compare."""
    calls = re.compile(r"\{\{[^}]*\b(lookup|gen[A-Z]\w+|rand[A-Z]\w+|uuidv4|now|getHostByName)\b")
    found = {
        path.name: calls.findall(path.read_text())
        for path in (CHART / "templates").rglob("*")
        if path.is_file()
    }

    assert len(found) > 10
    assert not any(found.values()), found


def test_generated_files_pass_through_as_they_are() -> None:
    """Large numbers in a CRD would become floats if Helm read and wrote them."""
    files = (*(CHART / "files" / "crds").glob("*.yaml"), CHART / "files" / "admission.yaml")
    for path in files:
        for written in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            shown = named(written["kind"], written["metadata"]["name"])
            assert json.dumps(shown["spec"]) == json.dumps(written["spec"])
            kept = {"helm.sh/resource-policy": "keep"} if path.parent.name == "crds" else {}
            assert shown["metadata"].get("annotations", {}) == kept
