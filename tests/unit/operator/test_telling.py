"""What was told is remembered while the object is there that it was told about, and no longer."""

from __future__ import annotations

from typing import Any, cast

from tests.unit.agent.loops import in_loop
from tests.unit.operator.test_objects import body, pod
from tests.unit.placement.fleets import task

from tierline_kube.resource import MEMTASK
from tierline_operator.cluster.resources import POD
from tierline_operator.cluster.state import View
from tierline_operator.controller.events import Told
from tierline_operator.controller.hindrances import Hindrances
from tierline_operator.controller.reconciler import Reconciler
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet

M, N = TaskKey("default", "m"), TaskKey("default", "n")


def test_a_topic_is_told_once_of_each_object() -> None:
    told = Told()

    assert told.first(M, "a", "waits")
    assert not told.first(M, "a", "waits")
    assert told.first(M, "a", "is refused")
    assert told.first(M, "b", "waits")
    assert told.first(N, "a", "waits")


def test_nothing_is_remembered_of_what_is_gone() -> None:
    told = Told()
    for uid in ("a", "b"):
        told.first(M, uid, "waits")
    told.first(N, "c", "waits")
    told.series(M, "a", "is placed").times = 3

    told.keep(M, {"b"})
    assert told.series(M, "a", "is placed").times == 0
    told.keep(M, {"b"})
    assert len(told) == 2
    assert told.first(M, "a", "waits")
    assert not told.first(M, "b", "waits")
    told.keep(M, set())
    told.keep(N, set())
    assert len(told) == 0


def test_of_what_happens_again_and_again_little_is_remembered() -> None:
    told = Told()
    for figure in range(100):
        told.series(M, "a", "always").times += 1
        told.series(M, "a", f"misses {figure} MiB").times += 1
    assert told.series(M, "a", "always").times == 100
    assert told.series(M, "a", "misses 99 MiB").times == 1
    assert told.series(M, "a", "misses 0 MiB").times == 0


@in_loop
async def test_a_task_and_its_pods_are_forgotten_as_they_go() -> None:
    nobody = cast(Any, None)  # nothing is written here
    view = View(Fleet())
    reconciler = Reconciler(nobody, nobody, view)
    manifest = {**task("m").to_api(), "apiVersion": "tierline.io/v1alpha1", "kind": "MemTask"}
    view.take(MEMTASK, body("m", 2, spec=manifest["spec"], metadata={"uid": "of-task"}))
    view.take(POD, {**pod(), "metadata": {**pod()["metadata"], "uid": "of-pod"}})
    for uid in ("of-task", "of-pod", "of-one-before"):
        reconciler.telling.told.first(M, uid, "waits")
    reconciler.hindrances.note(M, "Deployment", "it is refused")

    await reconciler.release(M)
    assert len(reconciler.telling.told) == 2
    view.forget(POD, ("default", "p"))
    await reconciler.release(M)
    assert len(reconciler.telling.told) == 1
    view.forget(MEMTASK, M)
    await reconciler.release(M)
    assert len(reconciler.telling.told) == 0
    assert len(reconciler.hindrances) == 0


def test_what_is_refused_is_known_until_it_is_over() -> None:
    refused = Hindrances()
    refused.note(M, "Deployment", "a")
    refused.note(M, "Deployment", "b")
    refused.note(M, "MemTask", "c")
    refused.note(N, "MemTask", "d")

    assert refused.told(M) == "b; c"
    refused.over(M, "Deployment")
    assert (refused.told(M), refused.told(N)) == ("c", "d")
    refused.over(M, "Deployment", "MemTask")
    refused.forget(N)
    assert (refused.told(M), len(refused)) == ("", 0)
