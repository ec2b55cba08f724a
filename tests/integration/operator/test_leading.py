"""A leader with a busy loop keeps the Lease; one with a hanging loop leaves it to others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.chart.helm import SYSTEM
from tests.integration.operator.running import until
from tests.unit.agent.loops import in_loop

from tierline_cluster.control_plane import ControlPlane
from tierline_kube.client import Kube
from tierline_operator.leadership.lease import Leadership, NoLongerLeader
from tierline_operator.leadership.renewal import Leading
from tierline_operator.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(prepared: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """The control plane as this process reaches it."""
    monkeypatch.setenv("KUBECONFIG", str(prepared.kubeconfig))
    return prepared


def lease(plane: ControlPlane, name: str) -> dict[str, Any]:
    """What a Lease says."""
    metadata = {"name": name, "namespace": SYSTEM}
    found = plane.api.get(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    )
    spec: dict[str, Any] = found["spec"]
    return spec


def settings(name: str) -> Settings:
    return Settings(
        namespace=SYSTEM,
        lease=name,
        identity=name,
        lease_duration_s=120,
        renew_deadline_s=100,
        retry_period_s=0.1,
    )


@in_loop
async def test_the_lease_is_renewed_while_the_loop_is_blocked(plane: ControlPlane) -> None:
    kube = Kube("test")
    leadership = Leadership(kube, settings("blocked"))
    async with Leading(leadership, kube) as leading:
        await leading.acquire()
        keeping = asyncio.ensure_future(leading.keep())
        await asyncio.sleep(0)
        seen = {lease(plane, "blocked")["renewTime"]}

        def renewed() -> bool:
            seen.add(lease(plane, "blocked")["renewTime"])
            return len(seen) > 3

        until("it is renewed", renewed)  # nothing else runs in this loop before it returns
        leadership.check()
        keeping.cancel()
        await asyncio.wait({keeping})
        await leading.release()
        with pytest.raises(NoLongerLeader):
            leadership.check()


@in_loop
async def test_who_hangs_leaves_the_lease_to_another(plane: ControlPlane) -> None:
    kube = Kube("test")
    leadership = Leadership(kube, settings("hangs"), longest_turn_s=1)

    def lost() -> bool:
        try:
            leadership.check()
        except NoLongerLeader:
            return True
        return False

    async with Leading(leadership, kube) as leading:
        await leading.acquire()
        keeping = asyncio.ensure_future(leading.keep())
        await asyncio.sleep(0)
        until("nothing may be written any more", lost)
        with pytest.raises(NoLongerLeader, match="has done nothing for 1 s"):
            await keeping


@pytest.mark.parametrize(
    ("writer", "left_to"), [("cut-off", ""), ("another", "another")], ids=["its own", "another's"]
)
@in_loop
async def test_a_lease_is_given_up_whatever_write_came_in_between(
    plane: ControlPlane, writer: str, left_to: str
) -> None:
    """A leader that ends cuts its last renewal off, which may arrive all the same."""
    name = {"name": "cut-off", "namespace": SYSTEM}
    named = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": name}
    async with Kube("test") as kube:
        leadership = Leadership(kube, settings("cut-off"))
        await leadership.acquire()
        spec = {"holderIdentity": writer, "renewTime": "2026-11-22T00:00:00.000000Z"}
        plane.api.merge(named, {"spec": spec})
        await leadership.release()
    assert lease(plane, "cut-off").get("holderIdentity", "") == left_to
    plane.api.delete(named)


@in_loop
async def test_who_finds_the_lease_deleted_takes_over_from_whoever_had_it(
    plane: ControlPlane,
) -> None:
    """Its last holder may be in the middle of a write; term 1 may stand at the claims already."""
    name = {"name": "deleted", "namespace": SYSTEM}
    named = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": name}
    async with Kube("test") as kube:
        first, second = (Leadership(kube, settings("deleted")) for _ in range(2))
        await first.acquire()
        keeping = asyncio.ensure_future(first.keep())
        first.turn()
        plane.api.delete(named)
        await second.acquire()
        assert second.took_over
        assert second.term == first.term
        assert second.tenure != first.tenure
        keeping.cancel()
        await asyncio.wait({keeping})
        await second.release()
    plane.api.delete(named)


@in_loop
async def test_a_leader_without_a_lease_does_not_lead(plane: ControlPlane) -> None:
    name = {"name": "missing", "namespace": SYSTEM}
    named = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": name}
    async with Kube("test") as kube:
        leadership = Leadership(kube, settings("missing"))
        await leadership.acquire()
        plane.api.delete(named)
        with pytest.raises(NoLongerLeader):
            await leadership.keep()
