"""Pods that may run as root: warned of, refused or let through, as the chart's value says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.chart.helm import templated

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

SENTENCE = "a container may run as root"
NOT_ROOT: list[dict[str, Any]] = [
    {"securityContext": {"runAsNonRoot": True}},
    {"securityContext": {"runAsUser": 1000}},
    {"hostUsers": False},
]


def policy(value: str) -> list[Manifest]:
    done = templated("--show-only", "templates/admission.yaml", "--set", f"rootPods={value}")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load_all(done.stdout)
    return [one for one in found if one and one["metadata"]["name"] == "tierline-root"]


def pod(namespace: str, spec: dict[str, Any], **container: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"robot-{uuid.uuid4().hex[:8]}",
            "namespace": namespace,
            "annotations": {"tierline.io/task": "robot"},
        },
        "spec": {
            "containers": [{"name": "main", "image": "example.local/robot:1", **container}],
            **spec,
        },
    }


@pytest.fixture(params=["warn", "deny"])
def action(request: pytest.FixtureRequest, opting_in: ControlPlane, anything: str) -> Iterator[str]:
    manifests = policy(request.param)
    for manifest in manifests:
        opting_in.api.apply(manifest)

    def at_work() -> bool:
        try:
            opting_in.api.create(pod(anything, {}), dry_run=True)
        except ApiError as refusal:
            return request.param == "deny" and SENTENCE in str(refusal)
        return request.param == "warn" and any(
            SENTENCE in warning for warning in opting_in.api.warnings
        )

    wait_until("the policy is not at work", at_work, opting_in.daemons)
    yield request.param
    for manifest in manifests:
        opting_in.api.delete(manifest)


def test_root_is_what_the_value_says(opting_in: ControlPlane, anything: str, action: str) -> None:
    as_root = pod(
        anything, {"securityContext": {"runAsUser": 1000}}, securityContext={"runAsUser": 0}
    )
    for manifest in (pod(anything, {}), as_root):
        if action == "warn":
            opting_in.api.create(manifest, dry_run=True)
            assert any(SENTENCE in warning for warning in opting_in.api.warnings)
        else:
            with pytest.raises(ApiError, match=SENTENCE):
                opting_in.api.create(manifest, dry_run=True)


def test_others_pass_in_silence(opting_in: ControlPlane, anything: str, action: str) -> None:
    unmeant = pod(anything, {})
    del unmeant["metadata"]["annotations"]
    for manifest in (*(pod(anything, spec) for spec in NOT_ROOT), unmeant):
        opting_in.api.create(manifest, dry_run=True)
        assert not any(SENTENCE in warning for warning in opting_in.api.warnings), action


def test_nobody_is_asked_if_it_is_allowed() -> None:
    assert policy("allow") == []
