"""However a watch ends, and whatever happens until the next one: nothing is missed."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.chart.helm import rights
from tests.integration.operator.proxy import Proxy, Watch, as_asked, proxied
from tests.integration.operator.running import ALONE, Nursery, Operator, User, until
from tests.unit.placement.fleets import node, profile, quota, task

from tierline_api.objects.swap import SwapPolicy
from tierline_cluster.api import Manifest
from tierline_cluster.processes import free_port
from tierline_kube.resource import Resource
from tierline_operator.cluster.resources import WATCHED

pytestmark = pytest.mark.slow
API = "resource.k8s.io/v1"
FIRST = ("goes", "leaves", "changes", "stays")


@pytest.fixture
def proxy(user: User, tmp_path: Path) -> Iterator[Proxy]:
    """A way to the API server that can be cut off."""
    with proxied(user.plane, tmp_path, lambda _: None) as found:
        yield found


@pytest.fixture
def operator(user: User, proxy: Proxy, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """A leader that reaches the API server by the proxy alone."""
    given = {**ALONE, "METRICS_PORT": str(free_port())}
    running = Operator(user.plane, nursery, tmp_path, "seeing", given, kubeconfig=proxy.kubeconfig)
    running.start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        for pod in user.api.list("v1", "Pod", user.namespace):
            user.delete_pod(pod["metadata"]["name"])
        for name in (*FIRST, "comes"):
            user.api.delete(user.task(name))
            user.api.wait_gone(user.task(name))
        running.stop()


@contextmanager
def unseen(proxy: Proxy) -> Iterator[Watch]:
    """Nothing is seen meanwhile of any kind."""
    refused: set[Resource] = set()

    def refuse(path: str) -> str:
        for resource in WATCHED:
            if f"/{resource.plural}?" in path:
                refused.add(resource)
                raise ConnectionAbortedError("no watch now")
        return path

    def none_is_left() -> bool:
        """One that was let through just before may only be open by now."""
        proxy.cut()
        return refused == set(WATCHED)

    proxy.on_watch = refuse
    until("each has been refused", none_is_left)
    yield refuse


def template_of(name: str, user: User) -> Manifest:
    """How to name the claim template of a task."""
    metadata = {"name": name, "namespace": user.namespace}
    return {"metadata": metadata, "kind": "ResourceClaimTemplate", "apiVersion": API}


def too_old(path: str) -> str:
    """The same watch from a version that no server knows any more."""
    return re.sub(r"resourceVersion=[0-9]+", "resourceVersion=1", path)


def each_too_old_once() -> Watch:
    """The next watch of each kind is too old, and those after it are passed on."""
    left = {resource.plural for resource in WATCHED}

    def ask(path: str) -> str:
        plural = urlsplit(path).path.rpartition("/")[2]
        if plural not in left:
            return path
        left.discard(plural)
        return too_old(path)

    return ask


def two_go(user: User) -> None:
    for name in ("goes", "leaves"):
        user.api.delete(user.task(name))
        user.api.wait_gone(user.task(name))


def much_happens(user: User) -> None:
    """Two tasks go, one changes, one loses its template, one comes with its pod."""
    two_go(user)
    user.api.delete(template_of("stays", user))
    user.api.wait_gone(template_of("stays", user))
    user.apply(task("changes", of="m", period_ms=99))
    user.apply(task("comes", of="m"))
    user.pod("p", "comes")


def known_tasks(operator: Operator) -> float:
    """How many tasks the operator believes there are."""
    port = operator.settings["METRICS_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    [tasks] = [one for one in families if one.name == "tierline_operator_tasks"]
    return sum(sample.value for sample in tasks.samples)


def nothing_was_missed(user: User, operator: Operator) -> None:
    """Wait until the operator acts by what is the case."""
    user.wait_placed("p")
    until("it knows of those three that there are", lambda: known_tasks(operator) == 3)
    until("the template is back", lambda: user.api.exists(template_of("stays", user)))
    user.api.wait(
        user.task("changes"), lambda t: t["status"]["granted"]["realtime"]["period"] == "99ms"
    )
    user.pod("orphan", "goes")
    until("it is missed", lambda: "MemTaskMissing" in dict(user.events("orphan")))


def all_admitted(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    for name in FIRST:
        user.apply(task(name, of="m"))
        user.wait_task(name, "Admitted")


def test_a_watch_that_breaks_goes_on_where_it_was(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    all_admitted(user)
    with unseen(proxy):
        much_happens(user)
    proxy.on_watch = as_asked

    nothing_was_missed(user, operator)
    assert "watches again in" in operator.log.read_text()
    assert "reads all" not in operator.log.read_text()


def test_after_one_that_is_too_old_all_is_read(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    all_admitted(user)
    with unseen(proxy) as refuse:

        def grown_old(path: str) -> str:
            """Nothing but MemTasks is seen, from a version that the server no longer knows."""
            if "/memtasks?" not in path:
                return refuse(path)
            return too_old(path)

        two_go(user)  # and nothing else, which would have it look for them by itself
        proxy.on_watch = grown_old
        until("it knows of those two that there are", lambda: known_tasks(operator) == 2)
        much_happens(user)
    proxy.on_watch = as_asked

    nothing_was_missed(user, operator)
    assert "reads all memtasks again" in operator.log.read_text()
    assert "410 Expired" in operator.log.read_text()


def test_what_goes_before_a_watch_that_is_too_old_is_missed_at_once(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    user.node(node("node-a"))
    measured = user.apply(profile("m"))
    limit = user.apply(quota("limit", fast_mib=80))
    user.apply(task("goes", of="m", policy=SwapPolicy.RESIDENT))
    user.wait_task("goes", "Admitted")
    templated = task("stays", of="m", policy=SwapPolicy.RESIDENT).to_api()
    templated["metadata"] = {"name": "stays", "namespace": user.namespace}
    templated["spec"]["template"] = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    user.api.apply(templated)
    user.wait_task("stays", "QuotaExceeded")
    deployment = user.task("stays") | {"apiVersion": "apps/v1", "kind": "Deployment"}
    made = user.api.wait(deployment, lambda _: True)["metadata"]["uid"]

    def is_missed(manifest: Manifest, notices: Callable[[], object]) -> None:
        with unseen(proxy):
            user.api.delete(manifest)
            user.api.wait_gone(manifest)
        proxy.on_watch = each_too_old_once()
        notices()
        proxy.on_watch = as_asked

    is_missed(limit, lambda: user.wait_task("stays", "Admitted"))
    is_missed(deployment, lambda: user.api.wait(deployment, lambda d: d["metadata"]["uid"] != made))
    is_missed(measured, lambda: user.wait_task("goes", "ProfileMissing", "Profiled"))
    user.apply(profile("m"))
    user.wait_task("goes", "Admitted")
    gone = user.task("") | {"kind": "MemNode", "metadata": {"name": "node-a"}}
    is_missed(gone, lambda: user.wait_task("goes", "NoMatchingDevice"))


def test_who_may_not_see_for_a_while_reads_when_it_may(
    user: User, proxy: Proxy, operator: Operator
) -> None:
    all_admitted(user)
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

    nothing_was_missed(user, operator)
