"""What the operator made for a task is the task's, whatever becomes of its owner; no more is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.operator.running import Operator, User, conditions, until
from tests.integration.operator.test_nodes import templated
from tests.integration.operator.test_telling import kubectl
from tests.unit.placement.fleets import node, profile, task

from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
KINDS = ("apps/v1 Deployment", "resource.k8s.io/v1 ResourceClaimTemplate")
MARKS = {"tierline.io/task": "m", "app.kubernetes.io/managed-by": "tierline"}


def named(user: User, kind: str) -> Manifest:
    version, _, word = kind.partition(" ")
    return user.task("m") | {"apiVersion": version, "kind": word}


def owners(user: User, kind: str) -> list[Manifest]:
    found: list[Manifest] = user.api.get(named(user, kind))["metadata"].get("ownerReferences", [])
    return found


def image_of(user: User) -> Any:
    """What the Deployment of the task runs; None without one."""
    if not user.api.exists(named(user, KINDS[0])):
        return None
    return user.api.get(named(user, KINDS[0]))["spec"]["template"]["spec"]["containers"][0]["image"]


def is_placed(user: User) -> bool:
    return any("allocation" in (claim.get("status") or {}) for claim in user.claims())


def owned_by(user: User, task_name: str) -> Callable[[str], bool]:
    uid = user.api.get(user.task(task_name))["metadata"]["uid"]
    return lambda kind: [o["uid"] for o in owners(user, kind) if o.get("controller")] == [uid]


@pytest.fixture
def running(user: User) -> User:
    """A task whose pod has its place."""
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(templated("m"))
    until("its pod is placed", lambda: is_placed(user))
    return user


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_that_somebody_takes_away_is_put_back(running: User, kind: str) -> None:
    user, word = running, kind.partition(" ")[2]
    mine = owned_by(user, "m")
    [reference] = owners(user, kind)
    user.api.merge(named(user, kind), {"metadata": {"ownerReferences": None}})
    until("it is the task's again", lambda: mine(kind))
    until("it is told", lambda: f"{word}PutBack" in dict(user.events("m")))
    assert f"{word}/m had lost its owner" in dict(user.events("m"))[f"{word}PutBack"]

    user.apply(task("n", of="m", replicas=0))
    another = user.api.get(user.task("n"))["metadata"]["uid"]
    elsewhere = [reference | {"name": "n", "uid": another}]
    user.api.merge(named(user, kind), {"metadata": {"ownerReferences": elsewhere}})
    until("it is the task's again", lambda: mine(kind))

    user.api.merge(named(user, kind), {"metadata": {"labels": dict.fromkeys(MARKS)}})
    until("its labels are back", lambda: MARKS.items() <= labels(user, kind).items())
    assert mine(kind)


def labels(user: User, kind: str) -> dict[str, str]:
    found: dict[str, str] = user.api.get(named(user, kind))["metadata"].get("labels") or {}
    return found


def test_a_deployment_that_had_lost_its_owner_follows_its_task(running: User) -> None:
    user = running
    user.api.merge(named(user, KINDS[0]), {"metadata": {"ownerReferences": None}})
    user.plane.kubectl("scale", "memtask", "m", "-n", user.namespace, "--replicas=2")
    spec = named(user, KINDS[0])
    until("it follows", lambda: user.api.get(spec)["spec"]["replicas"] == 2)

    user.api.delete(user.task("m"))
    user.api.wait_gone(user.task("m"))
    for kind in KINDS:
        user.api.wait_gone(named(user, kind))
    until("no pod is left", lambda: not user.api.list("v1", "Pod", user.namespace))


def test_a_task_that_was_to_orphan_its_deployment_takes_it_along(running: User) -> None:
    """Its pods would wait for a task that is not there; one of its name begins as any other."""
    user = running
    user.api.delete(user.task("m"), propagationPolicy="Orphan")
    user.api.wait_gone(user.task("m"))
    new = templated("m").to_api()
    new["metadata"] = {"name": "m", "namespace": user.namespace}
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "new:2"
    user.api.apply(new)

    until("the new image is rolled out", lambda: image_of(user) == "new:2")
    until("its pod is placed", lambda: is_placed(user))
    mine = owned_by(user, "m")
    until("all is the new task's", lambda: all(map(mine, KINDS)))
    user.wait_task("m", "Admitted")


def test_what_an_earlier_task_left_is_the_next_ones(user: User) -> None:
    """As what a backup restores, or what was orphaned while no operator ran."""
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    left = foreign(user, selector={"tierline.io/task": "m"}, labels=MARKS)
    user.api.create(left)
    user.apply(templated("m"))

    mine = owned_by(user, "m")
    until("it is the task's", lambda: mine(KINDS[0]))
    until("it is as the task says", lambda: image_of(user) == "none")
    until("its pod is placed", lambda: is_placed(user))


def foreign(user: User, selector: dict[str, str], **metadata: Any) -> Manifest:
    """A Deployment of the task's name."""
    template = {
        "metadata": {"labels": selector},
        "spec": {"containers": [{"name": "main", "image": "theirs:1"}]},
    }
    made = named(user, KINDS[0])
    spec = {"replicas": 0, "selector": {"matchLabels": selector}, "template": template}
    return made | {"metadata": made["metadata"] | metadata, "spec": spec}


def config(user: User) -> Manifest:
    """An owner that is no MemTask."""
    metadata = {"name": "theirs", "namespace": user.namespace}
    return user.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


@pytest.mark.parametrize("whose", ["nobody's", "another's"])
def test_a_deployment_of_others_is_left_alone_and_told(
    user: User, operator: Operator, whose: str
) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    if whose == "nobody's":
        theirs = foreign(user, selector={"app": "m"})
        told = "it has no owner, and not the marks of what Tierline makes"
    else:
        owner = config(user)["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "controller": True}
        reference["uid"] = owner["uid"]
        selector = {"tierline.io/task": "m"}
        theirs = foreign(user, selector=selector, labels=MARKS, ownerReferences=[reference])
        told = "its owner is ConfigMap/theirs"
    before = user.api.create(theirs)["metadata"]
    user.apply(templated("m"))

    found = user.wait_task("m", "ReplicaFailure", "Ready")
    ready = conditions(found)["Ready"]
    assert ready["status"] == "False"
    sentence = f"Deployment/m exists and is not Tierline's: {told}"
    assert sentence in ready["message"]
    until("it is told", lambda: sentence in dict(user.events("m")).get("NameTaken", ""))
    said = kubectl(user.plane, "tierline", "why-pending", "-n", user.namespace)
    assert sentence in said
    after = user.api.get(theirs)["metadata"]
    for field in ("uid", "generation", "labels", "ownerReferences", "annotations"):
        assert without_revision(after).get(field) == without_revision(before).get(field)
    log = operator.log.read_text()
    assert log.count("WARNING will try again: Deployment/m exists") <= 1, (
        "it is not said at each try"
    )
    assert "tierline-operator-deployments" not in log, "nothing is sent that is refused"

    user.api.delete(theirs)
    until("its pod is placed", lambda: is_placed(user))
    until("it is over", lambda: sentence not in said_of_ready(user))


def without_revision(metadata: Manifest) -> Manifest:
    """Without what the Deployment's own controller notes."""
    kept = dict(metadata.get("annotations") or {})
    kept.pop("deployment.kubernetes.io/revision", None)
    return metadata | {"annotations": kept or None}


def said_of_ready(user: User) -> str:
    message: str = conditions(user.api.get(user.task("m")))["Ready"]["message"]
    return message
