"""However a watch ends, and whatever happens until the next one: nothing is missed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.chart.helm import rights
from tests.integration.operator.proxy import Proxy, as_asked, proxied
from tests.integration.operator.running import ALONE, Nursery, Operator, User, until
from tests.unit.placement.fleets import node, profile, task

from tierline_kube.resource import Resource
from tierline_operator.resources import FOLLOWED

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(user: User, tmp_path: Path) -> Iterator[Proxy]:
    """A way to the API server that can be cut off."""
    with proxied(user.plane, tmp_path, lambda _: None) as found:
        yield found


@pytest.fixture
def operator(user: User, proxy: Proxy, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """A leader that reaches the API server by the proxy alone."""
    running = Operator(user.plane, nursery, tmp_path, "seeing", ALONE, kubeconfig=proxy.kubeconfig)
    running.start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        for pod in user.api.list("v1", "Pod", user.namespace):
            user.delete_pod(pod["metadata"]["name"])
        for name in ("goes", "changes", "comes"):
            user.api.delete(user.task(name))
            user.api.wait_gone(user.task(name))
        running.stop()


@contextmanager
def unseen(proxy: Proxy) -> Iterator[None]:
    """Nothing is seen meanwhile of the kinds that the operator follows by itself."""
    refused: set[Resource] = set()

    def refuse(path: str) -> str:
        for resource in FOLLOWED:
            if f"/{resource.plural}?" in path:
                refused.add(resource)
                raise ConnectionAbortedError("no watch now")
        return path

    proxy.on_watch = refuse
    proxy.cut()
    until("each has been refused", lambda: refused == set(FOLLOWED))
    yield


def much_happens(user: User) -> None:
    """A task goes, one changes, one comes with its pod."""
    user.api.delete(user.task("goes"))
    user.api.wait_gone(user.task("goes"))
    user.apply(task("changes", of="m", period_ms=99))
    user.apply(task("comes", of="m"))
    user.pod("p", "comes")


def nothing_was_missed(user: User) -> None:
    """Wait until the operator acts by what is the case."""
    user.wait_placed("p")
    user.api.wait(
        user.task("changes"), lambda t: t["status"]["granted"]["realtime"]["period"] == "99ms"
    )
    user.pod("orphan", "goes")
    until("it is missed", lambda: "MemTaskMissing" in dict(user.events("orphan")))


def two_admitted(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    for name in ("goes", "changes"):
        user.apply(task(name, of="m"))
        user.wait_task(name, "Admitted")


def test_a_watch_that_breaks_goes_on_where_it_was(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    two_admitted(user)
    with unseen(proxy):
        much_happens(user)
    proxy.on_watch = as_asked

    nothing_was_missed(user)
    assert "watches again in" in operator.log.read_text()
    assert "reads all" not in operator.log.read_text()


def test_after_one_that_is_too_old_all_is_read(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    two_admitted(user)
    old: set[str] = set()

    def grown_old(path: str) -> str:
        kind = path.partition("?")[0]
        if kind in old:
            return path
        old.add(kind)
        return re.sub(r"resourceVersion=[0-9]+", "resourceVersion=1", path)

    with unseen(proxy):
        much_happens(user)
    proxy.on_watch = grown_old

    nothing_was_missed(user)
    assert "reads all memtasks again" in operator.log.read_text()
    assert "410 Expired" in operator.log.read_text()


def test_who_may_not_see_for_a_while_reads_when_it_may(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    two_admitted(user)
    [role] = [one for one in rights("operator") if one["kind"] == "ClusterRole"]
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb not in {"list", "watch"}]}
        if "memtasks" in rule.get("resources", ())
        else rule
        for rule in role["rules"]
    ]
    try:
        with unseen(proxy):
            user.api.apply({**role, "rules": rules})
            much_happens(user)
        proxy.on_watch = as_asked
        refused = "cannot read the cluster, tries again"
        until("it is refused", lambda: refused in operator.log.read_text())
    finally:
        user.api.apply(role)

    nothing_was_missed(user)
