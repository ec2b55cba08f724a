"""The operator as a process: how it is started, what it serves, how it refuses to start."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
from tests.integration.operator.running import (
    QUICK,
    USER,
    Nursery,
    Operator,
    until,
)

from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import free_port

pytestmark = pytest.mark.slow


def answer(port: int, path: str) -> str:
    """What a port serves; nothing while it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as found:
            return str(found.read().decode())
    except URLError:
        return ""


def test_metrics_and_health(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> None:
    metrics, health = free_port(), free_port()
    given = {"METRICS_PORT": str(metrics), "HEALTH_PORT": str(health), "LOG_FORMAT": "json"}
    operator = Operator(prepared, nursery, tmp_path, "served", settings=given).start()
    try:
        until("it leads", operator.leads)
        until("it is healthy", lambda: '"turning": true' in answer(health, "/healthz"))
        until("it shows", lambda: "tierline_operator_leader 1.0" in answer(metrics, "/metrics"))
        assert 'tierline_operator_api_requests_total{method="' in answer(metrics, "/metrics")
        assert '"lease": "tierline-system/tierline-operator"' in operator.log.read_text()
    finally:
        operator.stop()


def test_kopf_starts_it_too(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kopf", "run", "-m", "tierline_operator.main"]
    named = {f"TIERLINE_OPERATOR_{name}": value for name, value in QUICK.items()}
    environment = {
        **os.environ,
        **named,
        "KUBECONFIG": str(prepared.kubeconfig_for(USER)),
        "TIERLINE_OPERATOR_IDENTITY": "kopf",
        "TIERLINE_OPERATOR_METRICS_PORT": "0",
    }
    seen = Operator(prepared, nursery, tmp_path, "kopf")
    with (tmp_path / "kopf.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--all-namespaces", "--standalone"],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until("it leads", seen.leads, 90)
    finally:
        process.terminate()
        process.wait(60)
    assert not seen.leads(), "it gives the Lease up when it ends"


def test_a_wrong_setting_is_one_sentence_before_anything_is_done() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tierline_operator", "--retry-period-s", "often"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr == (
        "tierline-operator: TIERLINE_OPERATOR_RETRY_PERIOD_S is 'often'; write a number\n"
    )


def test_without_a_cluster_it_says_what_to_set(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "nowhere.log"
    log.touch()
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    nursery.start(environment, log)

    until("it says so", lambda: "cannot find a cluster" in log.read_text())
    assert "set KUBECONFIG" in log.read_text()
