"""Pods that cannot work: the sentence of `kubectl apply`, which `tierline inject` says as well."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from tests.unit.pods.pod_cases import WRONG, copied, pod, templated

from tierline_api.pods.inject import RefusedError, injected
from tierline_cluster.api import ApiError
from tierline_cluster.control_plane import ControlPlane

NAMES = list(WRONG)


@pytest.fixture(scope="module", autouse=True)
def sandboxes(opting_in: ControlPlane) -> None:
    """The runtime classes that some pods name."""
    for name in ("kata-qemu", "gvisor"):
        opting_in.api.apply(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": name},
                "handler": name,
            }
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_server_refuses_it_with_the_sentence_of_inject(
    opting_in: ControlPlane, anything: str, name: str
) -> None:
    wrong = WRONG[name]
    with pytest.raises(RefusedError) as said:
        injected(wrong.pod)
    _, _, sentence = str(said.value).partition(": ")
    with pytest.raises(ApiError) as refused:
        opting_in.api.create(copied(wrong.pod, anything))

    assert wrong.says in sentence
    assert refused.value.message.endswith(f"denied request: {sentence}")


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
@pytest.mark.parametrize("name", NAMES)
def test_its_template_is_refused_as_well(
    opting_in: ControlPlane, anything: str, kind: str, name: str
) -> None:
    manifest = copied(templated(kind, WRONG[name].pod), anything)

    with pytest.raises(ApiError) as refused:
        opting_in.api.create(manifest, dry_run=True)
    assert WRONG[name].says in refused.value.message


def test_templates_without_mistakes_are_admitted(opting_in: ControlPlane, anything: str) -> None:
    for kind in ("Deployment", "CronJob"):
        for good in (pod(), pod(annotations={})):
            opting_in.api.create(copied(templated(kind, good), anything), dry_run=True)


def test_kubectl_shows_the_sentence(opting_in: ControlPlane, anything: str) -> None:
    wrong = copied(WRONG["LD_PRELOAD from elsewhere"].pod, anything)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        opting_in.kubectl("apply", "-f", "-", given=yaml.safe_dump(wrong))

    assert "a container takes LD_PRELOAD from elsewhere (valueFrom)" in refused.value.stderr
