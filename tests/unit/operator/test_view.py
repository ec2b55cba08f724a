"""What is known of a cluster, when names come back."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.test_objects import pod

from tierline_operator.cluster.resources import POD
from tierline_operator.cluster.state import View
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet

OLD, NEW = TaskKey("default", "old"), TaskKey("default", "new")


def named(task: str, uid: str, version: int) -> dict[str, Any]:
    """The one pod that each time has the same name."""
    made = pod()
    metadata = {
        **made["metadata"],
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {"tierline.io/task": task},
        "annotations": {"tierline.io/task": task},
    }
    return {**made, "metadata": metadata}


def test_a_pod_that_comes_back_for_another_task_is_its_pod_and_no_others() -> None:
    view = View(Fleet())
    assert view.take(POD, named("old", "first", 1)) == {OLD}
    # That the first one went was not seen: of a name the last state is told.
    assert view.take(POD, named("new", "second", 3)) == {OLD, NEW}
    assert view.pods_of(OLD) == []
    assert [one.meta.uid for one in view.pods_of(NEW)] == ["second"]
    assert view.take(POD, named("new", "second", 4), gone=True) == {NEW}
    assert view.pods_of(OLD) == view.pods_of(NEW) == []
