"""A release on a real API server: installed, upgraded with its CRDs, removed without a trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, RELEASE, SYSTEM, helm
from tests.unit.api.api_objects import task as memtask

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

Helm = Callable[..., str]
TASKS = "tierline.io_memtasks.yaml"
CRD: Manifest = yaml.safe_load((CHART / "files" / "crds" / TASKS).read_text())
IGNORED = {"events", "leases", "endpoints", "endpointslices"}
"""What a server makes by itself at any time."""


@pytest.fixture
def run(bare_server: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    """Helm on a server without a trace of Tierline; what a test leaves there is removed."""

    def command(verb: str, *arguments: str | Path) -> str:
        where = ("--kubeconfig", bare_server.kubeconfig, "--namespace", SYSTEM)
        done = helm(verb, *arguments, *where, home=tmp_path / "helm")
        assert done.returncode == 0, done.stderr
        return done.stdout

    bare_server.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    yield command
    command("uninstall", RELEASE, "--ignore-not-found")
    for crd in bare_server.api.list("apiextensions.k8s.io/v1", "CustomResourceDefinition"):
        named = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"} | crd
        bare_server.api.delete(named)
        bare_server.api.wait_gone(named)


def inventory(plane: ControlPlane) -> set[str]:
    """Return the addresses of all objects of all kinds."""
    found: set[str] = set()
    roots = ["/api/v1"] + [
        f"/apis/{group['preferredVersion']['groupVersion']}"
        for group in plane.api.request("GET", "/apis")["groups"]
    ]
    for root in roots:
        for resource in plane.api.request("GET", root)["resources"]:
            name = resource["name"]
            if "list" in resource["verbs"] and name not in IGNORED:
                for item in plane.api.request("GET", f"{root}/{name}")["items"]:
                    metadata = item["metadata"]
                    found.add(f"{root}/{name}/{metadata.get('namespace')}/{metadata['name']}")
    return found


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The chart of a previous release, in which MemTasks knew less."""
    chart = tmp_path / "older"
    shutil.copytree(CHART, chart)
    crd = yaml.safe_load((chart / "files" / "crds" / TASKS).read_text())
    (version,) = crd["spec"]["versions"]
    version["additionalPrinterColumns"] = version["additionalPrinterColumns"][:1]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
    (chart / "files" / "crds" / TASKS).write_text(yaml.safe_dump(crd))
    about = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(about.replace("ersion: 0.1.0", "ersion: 0.0.9"))
    return chart


def in_default(manifest: Manifest) -> Manifest:
    metadata = {"name": manifest["metadata"]["name"], "namespace": "default"}
    return {**{k: v for k, v in manifest.items() if k != "status"}, "metadata": metadata}


def columns(plane: ControlPlane) -> list[Any]:
    """Return the columns that `kubectl get memtasks` shows."""
    crd = plane.api.get(CRD)
    (version,) = crd["spec"]["versions"]
    found: list[Any] = version["additionalPrinterColumns"]
    return found


def applied(plane: ControlPlane, manifest: Manifest) -> Manifest:
    """Apply an object as soon as the server takes it: a new CRD takes a moment to be served."""
    made: list[Manifest] = []

    def taken() -> bool:
        try:
            made.append(plane.api.apply(manifest))
        except ApiError:
            return False
        return True

    wait_until(f"the server does not take {manifest['metadata']['name']}", taken, plane.daemons)
    return made[0]


def difference(plane: ControlPlane, before: set[str]) -> set[str]:
    """Return what came or went since; while a kind does, its list fails, and that is returned."""
    try:
        return inventory(plane) ^ before
    except ApiError as error:
        return {str(error)}


def before_a_release(plane: ControlPlane) -> set[str]:
    """Return the inventory once a server has made all that it makes by itself.

    That is the service `kubernetes`, last of all; and it lists kinds, groups and their APIServices
    for a moment after their CRDs are gone.
    """
    found: set[str] = set()

    def settled() -> bool:
        nonlocal found
        try:
            found = inventory(plane)
        except ApiError:
            return False
        own = "/api/v1/services/default/kubernetes" in found
        return own and not any("tierline.io" in address for address in found)

    wait_until("the server has something of Tierline, or not all of its own", settled)
    return found


def test_an_upgrade_upgrades_the_crds_and_keeps_the_tasks(
    run: Helm, bare_server: ControlPlane, older: Path
) -> None:
    run("install", RELEASE, older)
    stored = applied(bare_server, in_default(memtask()))
    uid = stored["metadata"]["uid"]
    assert len(columns(bare_server)) == 1
    with pytest.raises(ApiError, match="replicas"):
        bare_server.api.apply(in_default(memtask(spec__replicas=2)))

    run("upgrade", RELEASE, CHART)

    (version,) = CRD["spec"]["versions"]
    assert columns(bare_server) == version["additionalPrinterColumns"]
    assert applied(bare_server, in_default(memtask(spec__replicas=2)))["metadata"]["uid"] == uid

    run("uninstall", RELEASE)
    run("install", RELEASE, CHART)

    assert bare_server.api.get(stored)["metadata"]["uid"] == uid
    bare_server.api.delete(stored)


def test_nothing_is_left_of_a_release_that_keeps_nothing(
    run: Helm, bare_server: ControlPlane
) -> None:
    before = before_a_release(bare_server)

    told = run("install", RELEASE, CHART, "--set", "crds.keep=false")

    assert "Before you uninstall, delete the MemTasks" in told
    wait_until("not all is there", lambda: len(difference(bare_server, before)) > 30)
    bare_server.api.delete(applied(bare_server, in_default(memtask())))

    run("uninstall", RELEASE)

    wait_until("something is left", lambda: difference(bare_server, before) == set())
