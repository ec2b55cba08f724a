"""One operator for the tests of what it does; tests that end operators start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Shared
from tests.integration.operator.running import (
    ALONE,
    Nursery,
    Operator,
    User,
    named_worker,
    prepare,
    until,
)

from tierline_cluster.control_plane import ControlPlane


@pytest.fixture(scope="module")
def prepared(shared: Shared, control_plane: ControlPlane) -> ControlPlane:
    """A control plane with what the chart installs except the operator."""
    return shared.once("prepared", lambda: _prepared(control_plane))


def _prepared(plane: ControlPlane) -> Iterator[ControlPlane]:
    prepare(plane)
    yield plane


@pytest.fixture
def user(prepared: ControlPlane) -> Iterator[User]:
    """A namespace, and no MemNode but those that the test makes."""
    someone = User(prepared, prepared.namespace())
    yield someone
    tasks = prepared.api.list("tierline.io/v1alpha1", "MemTask", someone.namespace)
    named = [someone.task(task["metadata"]["name"]) for task in tasks]
    for task in named:
        prepared.api.delete(task)
    for pod in prepared.api.list("v1", "Pod", someone.namespace):
        prepared.api.delete(someone.named_pod(pod["metadata"]["name"]), gracePeriodSeconds=0)
    until("all claims are gone", lambda: not someone.claims())
    for task in named:
        prepared.api.wait_gone(task)
    for worker in prepared.api.list("v1", "Node"):
        prepared.api.delete(named_worker(worker["metadata"]["name"]))
    for node in prepared.api.list("tierline.io/v1alpha1", "MemNode"):
        prepared.api.delete(
            {
                "apiVersion": "tierline.io/v1alpha1",
                "kind": "MemNode",
                "metadata": {"name": node["metadata"]["name"]},
            }
        )


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts operators."""
    started = Nursery()
    yield started
    started.close()


@pytest.fixture
def operator(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """A running operator that leads."""
    running = Operator(prepared, nursery, tmp_path, "alone", ALONE).start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        running.stop()
