"""What is read from the API server, and what is written for a task: pure, object by object."""

import json
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from tests.unit.api import api_objects
from tests.unit.api.contradictions import Pair, pairs
from tests.unit.placement.fleets import MIB, claim, fleet, node, profile, said, settle, task

from tierline_api.objects.conditions import ConditionType, Reason
from tierline_api.objects.kinds import KINDS
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.memtask_status import MemTaskStatus, Observed, Phase
from tierline_api.objects.optin import NODE_LABEL
from tierline_api.objects.plan import MAX_EXTENTS, Plan
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.terms import Terms
from tierline_kube.resource import MEMTASK
from tierline_operator import logs
from tierline_operator.cluster.decode import Unreadable, claim_of, meta_of, model_of, pod_of
from tierline_operator.cluster.resources import CLAIM
from tierline_operator.cluster.state import View
from tierline_operator.controller.inline import (
    InlineError,
    contradicted,
    is_described,
    is_taken_over,
    memtask_of,
    without_lent,
)
from tierline_operator.controller.manifests import (
    MANAGED_BY,
    allocation_patch,
    claim_notes,
    deployment,
    gate_removal,
    notes_patch,
)
from tierline_operator.controller.reconciler import is_placed
from tierline_operator.controller.status import status_of
from tierline_operator.placement.books.seats import ClaimKey, DeviceKey, Seat, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.planning.answer import HomeRun

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 21, 13, tzinfo=UTC)
OWNER = {"kind": "Pod", "name": "p", "uid": "u", "controller": True, "apiVersion": "v1"}


def body(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    """An object with metadata."""
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": "7f6f1ea5-7e1f-4f0a-9a55-0c9c2c7e0001",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-11-21T00:00:00Z",
        "ownerReferences": [OWNER],
    }
    return {"metadata": metadata | more.pop("metadata", {}), **more}


def allocated(
    name: str, version: int = 1, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """A claim on node a."""
    result = {"driver": "tierline.io", "pool": "a", "device": "cpu0", "shareID": "s"}
    return body(
        name,
        version,
        metadata={"labels": {"tierline.io/task": "m"}, "annotations": annotations or {}},
        status={
            "allocation": {
                "allocationTimestamp": "2026-11-21T01:00:00Z",
                "devices": {"results": [result]},
            }
        },
    )


def pod(
    gates: list[str] | None = None, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """A pod that opted in."""
    return body(
        "p",
        metadata={"labels": {"tierline.io/task": "m"}, "annotations": annotations or {}},
        spec={"schedulingGates": [{"name": gate} for gate in gates or []]},
    )


def seated() -> tuple[Fleet, Seat]:
    """A fleet with a task, and the seat of its pod."""
    made = fleet(node("a", fast_mib=24), profile("m"), task("m"), claim("c", "m"))
    seat = made.seat_of(ClaimKey("default", "c"))
    assert seat is not None
    return made, seat


def test_a_claim_as_the_operator_left_it() -> None:
    known = claim_of(allocated("c", annotations={"tierline.io/order": "7"}))

    assert known.claim.place == DeviceKey("a", "cpu0")
    assert (known.claim.order, known.claim.pod, known.claim.task) == (7, "p", "m")
    assert not known.claim.profiling


@pytest.mark.parametrize(
    ("standing", "holds", "lost"),
    [
        ("Planned", True, False),
        ("Demoted", True, False),
        ("Profiling", False, False),
        ("Lost", False, True),
    ],
)
def test_what_a_pod_holds_is_noted_in_its_claim(standing: str, holds: bool, lost: bool) -> None:
    _, seat = seated()
    notes = claim_notes(seat, task("m").spec) | {"tierline.io/standing": standing}

    known = claim_of(allocated("c", annotations=notes))

    assert (known.claim.held == seat.held, known.claim.lost) == (holds, lost)
    again = claim_of(allocated("c", 2, annotations=notes), known)
    assert again.claim.held is known.claim.held
    open_claim = body("c", metadata={"annotations": notes})
    assert claim_of(open_claim).claim.held is None, "what is not allocated is decided again"


@pytest.mark.parametrize("plan", ['{"later": true}', "[" * 100_000], ids=["later", "nested"])
def test_a_plan_of_another_release_is_not_believed(plan: str) -> None:
    notes = {"tierline.io/standing": "Planned", "tierline.io/plan": plan}

    assert claim_of(allocated("c", annotations=notes)).claim.held is None


def test_a_claim_of_a_pod_that_had_the_name_before_places_nobody() -> None:
    gated = pod_of({**pod(), "metadata": {**pod()["metadata"], "uid": OWNER["uid"]}})
    own, of_one_before = allocated("c"), allocated("c")
    of_one_before["metadata"]["ownerReferences"] = [{**OWNER, "uid": "of-one-before"}]
    former = claim_of(of_one_before)

    assert is_placed(gated, [former, claim_of(own)])
    assert not is_placed(gated, [former])
    assert not is_placed(gated, [])


@pytest.mark.parametrize("order", ["", "-1", "seven", "٣", "9" * 5000], ids=lambda o: o[:5])
def test_an_order_that_somebody_wrote_is_not_believed(order: str) -> None:
    assert claim_of(allocated("c", annotations={"tierline.io/order": order})).claim.order is None


def test_a_claim_of_another_driver_is_not_ours() -> None:
    foreign = allocated("c")
    foreign["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.example.com"

    assert claim_of(foreign).claim.place is None


def test_what_an_agent_measured_is_read_and_nonsense_is_not() -> None:
    found = allocated("c")
    found["status"]["devices"] = [{"driver": "tierline.io", "data": {"observed": {"jobs": 3}}}]
    assert claim_of(found).observed == Observed(jobs=3)

    found["status"]["devices"][0]["data"]["observed"] = {"jobs": "many"}
    assert claim_of(found).observed is None


def test_an_object_of_another_release_is_named_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strange = body("m", apiVersion="tierline.io/v1alpha1", kind="MemTask", spec={"new": 1})
    with pytest.raises(Unreadable, match="spec"):
        model_of(MemTask, strange)

    assert View(Fleet()).take(MEMTASK, strange) == set()
    assert "is left alone" in caplog.text


BROKEN = tuple(
    pairs(
        {
            "MemTask": api_objects.task(),
            "MemProfile": api_objects.profile(),
            "MemNode": api_objects.node(),
        }
    )
)


@pytest.mark.parametrize("pair", BROKEN, ids=lambda pair: pair.id)
def test_what_was_stored_before_there_was_a_rule_is_read(pair: Pair) -> None:
    """As its server does, which asks no rule of what a change leaves as it is."""
    (model,) = (kind.model for kind in KINDS if kind.name == pair.wrong["kind"])
    with pytest.raises(ValidationError):
        model.from_api(pair.wrong)

    read = model_of(model, pair.wrong)
    assert read == model_of(model, read.to_api())
    assert read != model_of(model, pair.equal)


def test_a_workspace_beyond_the_budget_that_was_stored_is_told_by_admission() -> None:
    beyond = api_objects.task(spec__memory__workspace="2Gi", metadata__namespace="default")
    beyond["metadata"] |= {"resourceVersion": "7", "uid": "u"}
    view = View(fleet(node("a"), profile("camera")))

    assert view.take(MEMTASK, beyond) == {TaskKey("default", "camera")}
    settle(view.fleet)
    _, reason, message = said(view.fleet, "camera")
    assert reason == Reason.INVALID_SPEC
    assert "spec.memory.budget 1Gi is less than" in message


def test_an_older_state_that_arrives_late_changes_nothing() -> None:
    view = View(Fleet())
    view.take(CLAIM, allocated("c", version=12))

    pending = body("c", version=9, metadata={"labels": {"tierline.io/task": "m"}})
    assert view.take(CLAIM, pending) == set()
    assert view.claims[ClaimKey("default", "c")].claim.place is not None
    assert view.take(CLAIM, pending, gone=True) == set()

    assert view.take(CLAIM, allocated("c", version=13), gone=True) == {TaskKey("default", "m")}
    assert view.claims == {}


def test_what_is_written_into_a_claim_is_written_once() -> None:
    _, seat = seated()
    open_claim = body("c", metadata={"labels": {"tierline.io/task": "m"}, "annotations": {}})

    patch = notes_patch(claim_of(open_claim), seat, task("m").spec)

    assert patch is not None
    labels = {"tierline.io/task": "m", "tierline.io/node": "a"}
    assert patch["metadata"]["labels"] == labels
    plan = Plan.from_api(json.loads(patch["metadata"]["annotations"]["tierline.io/plan"]))
    assert plan.extent_bytes == MIB
    terms = Terms.from_api(json.loads(patch["metadata"]["annotations"]["tierline.io/terms"]))
    assert terms == Terms.of(task("m").spec)
    open_claim["metadata"]["labels"] |= patch["metadata"]["labels"]
    open_claim["metadata"]["annotations"] |= patch["metadata"]["annotations"]
    open_claim["metadata"]["finalizers"] = patch["metadata"]["finalizers"]
    assert notes_patch(claim_of(open_claim), seat, task("m").spec) is None


@pytest.mark.parametrize("length", [63, 64, 253])
def test_the_label_of_a_node_is_one_whatever_its_name(length: int) -> None:
    _, seat = seated()
    names = [(f"ip-10-0-0-{n}." + 42 * "eu.internal.")[: length - 1] + str(n) for n in range(9)]

    labels = set()
    for name in names:
        there = replace(seat, place=DeviceKey(name, "cpu0"))
        patch = notes_patch(claim_of(allocated("c")), there, task("m").spec)
        assert patch is not None
        labels.add(patch["metadata"]["labels"][NODE_LABEL])

    assert len(labels) == len(names)
    assert (labels == set(names)) == (length <= 63)
    one = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")  # as the API server has it
    assert all(map(one.fullmatch, labels))


def test_an_allocation_is_fenced_and_has_its_time() -> None:
    _, seat = seated()
    known = claim_of(body("c", 41, metadata={"labels": {"tierline.io/task": "m"}}))

    patch = allocation_patch(known, seat, "2026-11-21T12:00:00Z")

    assert patch["metadata"]["resourceVersion"] == "41"
    assert patch["status"]["allocation"]["allocationTimestamp"] == "2026-11-21T12:00:00Z"
    assert patch == allocation_patch(known, seat, "2026-11-21T12:00:00Z"), "also the share's id"


def test_a_gate_is_removed_only_from_the_pod_that_was_seen() -> None:
    known = pod_of(pod(gates=["other.io/gate", "tierline.io/admission"]))

    *tests, removal = gate_removal(known)
    assert removal == {"op": "remove", "path": "/spec/schedulingGates/1"}
    assert {test["path"] for test in tests} == {"/metadata/uid", "/metadata/resourceVersion"}
    assert pod_of(pod()).gate is None


def test_a_deployment_opts_its_pods_in_and_keeps_what_the_user_wrote() -> None:
    manifest = task("m").to_api()
    manifest["spec"]["template"] = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"containers": [{"name": "x", "command": ["y"], "tty": True}]},
    }

    made = deployment(MemTask.from_api(manifest), meta_of(body("m")))

    template = made["spec"]["template"]
    assert template["metadata"]["labels"] == {"a": "b", "tierline.io/task": "m"}
    assert template["metadata"]["annotations"] == {"c": "d", "tierline.io/task": "m"}
    assert template["spec"]["containers"] == [{"name": "x", "command": ["y"], "tty": True}]
    assert made["spec"]["selector"] == {"matchLabels": {"tierline.io/task": "m"}}


def test_a_status_that_says_nothing_new_equals_the_one_before() -> None:
    made, _ = seated()
    verdict = made.verdict(TaskKey("default", "m"))
    assert verdict is not None
    first = status_of(task("m"), verdict, [], [], NOW)

    again = status_of(task("m", status=first), verdict, [], [], LATER)

    assert again == first
    assert MemTaskStatus.from_api(first.to_api()) == first
    said = {one.type for one in first.conditions}
    assert said == set(ConditionType) - {ConditionType.HEALTHY}
    assert first.phase == Phase.ADMITTED
    assert first.fast_memory_bytes is not None
    assert sum(tier.bytes for tier in first.tiers) == 64 * MIB


def test_of_a_pod_without_a_claim_both_conditions_say_the_same_one_thing() -> None:
    made, _ = seated()
    verdict = made.verdict(TaskKey("default", "m"))
    assert verdict is not None
    alone = replace(pod_of(pod()), phase="Running", ready=True, node="a")

    status = status_of(task("m"), verdict, [alone], [], NOW, unclaimed=[alone])

    told = {one.type: one for one in status.conditions}
    admitted, ready = told[ConditionType.ADMITTED], told[ConditionType.READY]
    assert (
        (admitted.status, admitted.reason) == (ready.status, ready.reason) == ("False", "NoClaim")
    )
    assert admitted.message == ready.message
    assert (status.phase, status.reason) == (Phase.REFUSED, "NoClaim")


def test_a_status_with_times_of_any_length_equals_how_it_reads_back() -> None:
    odd = profile("m", compute_ms=10 / 3)
    made = fleet(node("a", yields=True, link_mib_s=7001), odd, task("m", deadline_ms=14.285714))
    verdict = made.verdict(TaskKey("default", "m"))
    assert verdict is not None

    status = status_of(task("m"), verdict, [], [], NOW)

    assert status.plan is not None
    assert MemTaskStatus.from_api(status.to_api()) == status


def test_best_effort_is_promised_nothing() -> None:
    made = fleet(node("a"), profile("m"), task("m", criticality=Criticality.BEST_EFFORT))
    verdict = made.verdict(TaskKey("default", "m"))
    assert verdict is not None

    status = status_of(task("m"), verdict, [], [], NOW)

    assert status.predicted is not None
    assert status.predicted.response_time_s is None


def test_what_several_pods_measured_is_added_up() -> None:
    made, _ = seated()
    verdict = made.verdict(TaskKey("default", "m"))
    assert verdict is not None
    measured = [
        Observed(jobs=10, misses=1, response_time_worst_s=0.2, streamed_bytes_per_job=100),
        Observed(jobs=30, misses=0, response_time_worst_s=0.1, streamed_bytes_per_job=200),
    ]

    seen = status_of(task("m"), verdict, [], measured, NOW).observed

    assert seen is not None
    assert (seen.jobs, seen.misses) == (40, 1)
    assert (seen.response_time_worst_s, seen.streamed_bytes_per_job) == (0.2, 175)


INLINE = {"tierline.io/period": "50ms", "tierline.io/budget": "1Gi", "tierline.io/device": "cpu"}


def test_inline_annotations_mean_a_task() -> None:
    known = pod_of(pod(annotations={**INLINE, "tierline.io/tiers": "dram, nvme"}))

    made = memtask_of(known, [OWNER])

    read = MemTask.from_api(made)
    assert read.spec.realtime.period_s == 0.05
    assert [tier.value for tier in read.spec.swap.tiers] == ["dram", "nvme"]
    assert made["metadata"]["ownerReferences"] == [OWNER | {"controller": False}]


def test_a_task_of_annotations_keeps_no_owner_from_going() -> None:
    # Any kind may own pods: ReplicationController, Rollout, whatever is installed next year.
    owner = OWNER | {"kind": "ReplicationController", "blockOwnerDeletion": True}

    made = memtask_of(pod_of(pod(annotations=INLINE)), [owner])

    [reference] = made["metadata"]["ownerReferences"]
    assert reference.keys() == {"apiVersion", "kind", "name", "uid", "controller"}


def applied_fields(*owners: str, manager: str = "tierline-operator") -> dict[str, Any]:
    """What the API server notes of owners that a manager applied."""
    keys: dict[str, Any] = {f'k:{{"uid":"{uid}"}}': {"f:name": {}} for uid in owners}
    fields = {"f:metadata": {"f:ownerReferences": keys}, "f:spec": {}}
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields}


def test_a_task_that_people_took_over_keeps_only_owners_of_their_own() -> None:
    mine, theirs = OWNER | {"uid": "mine"}, OWNER | {"uid": "theirs"}
    noted = [applied_fields("mine"), applied_fields("theirs", manager="helm")]
    described = body("m", 7, metadata={"labels": dict(MANAGED_BY), "managedFields": noted})
    described["metadata"]["ownerReferences"] = [mine, theirs]
    assert is_described(meta_of(described))
    assert not is_taken_over(meta_of(described))

    taken = body("m", 8, metadata=described["metadata"] | {"labels": {"a": "b"}})
    taken["metadata"]["resourceVersion"] = "8"
    assert is_taken_over(meta_of(taken))
    patch = without_lent(taken)["metadata"]
    assert patch["ownerReferences"] == [theirs]
    assert (patch["resourceVersion"], patch["uid"]) == ("8", taken["metadata"]["uid"])

    # As the API server has it then, and a merge takes away a list that would be empty.
    taken["metadata"]["ownerReferences"] = [theirs]
    assert not is_taken_over(meta_of(taken))
    taken["metadata"]["ownerReferences"] = [mine]
    assert without_lent(taken)["metadata"]["ownerReferences"] is None
    leaving = body("m", metadata=taken["metadata"] | {"deletionTimestamp": "2026-11-21T00:00:00Z"})
    assert not is_taken_over(meta_of(leaving))


@pytest.mark.parametrize(
    "noted",
    [
        {"manager": "tierline-operator"},
        {"manager": "tierline-operator", "fieldsV1": None},
        {"manager": "tierline-operator", "fieldsV1": {"f:metadata": []}},
        {"manager": "tierline-operator", "fieldsV1": {"f:metadata": {"f:ownerReferences": "x"}}},
        applied_fields() | {"fieldsV1": {"f:metadata": {"f:ownerReferences": {"k:[]": {}}}}},
        applied_fields("u") | {"subresource": "status"},
    ],
    ids=str,
)
def test_what_names_no_owner_lends_none(noted: dict[str, Any]) -> None:
    assert meta_of(body("m", metadata={"managedFields": [noted]})).lent == frozenset()


def test_annotations_that_say_otherwise_than_the_task_are_named_and_no_others() -> None:
    applied = MemTask.from_api(memtask_of(pod_of(pod(annotations=INLINE)), []))
    same = {"tierline.io/period": "0.05s", "tierline.io/budget": "1024Mi"}
    assert contradicted(pod_of(pod(annotations={**INLINE, **same})), applied) == []
    other = {
        "tierline.io/budget": "2Gi",
        "tierline.io/tiers": "dram,nvme",
        "tierline.io/profile": "x",
    }
    assert contradicted(pod_of(pod(annotations={**INLINE, **other})), applied) == [
        "tierline.io/budget says 2Gi, the task 1Gi",
        "tierline.io/tiers says dram,nvme, the task dram",
        "tierline.io/profile says x, the task nothing",
    ]


def test_an_inline_annotation_means_a_task_that_trains() -> None:
    said = INLINE | {"tierline.io/training": "true"}
    del said["tierline.io/period"]
    read = MemTask.from_api(memtask_of(pod_of(pod(annotations=said)), [OWNER]))
    assert read.spec.training is not None
    assert read.spec.realtime.criticality is Criticality.BEST_EFFORT


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"tierline.io/budget": None}, "tierline.io/budget is missing; with tierline.io/period"),
        ({"tierline.io/period": "50"}, "tierline.io/period: '50' has no unit; write 50ms"),
        ({"tierline.io/tiers": "dram,tape"}, "tierline.io/tiers: 'tape' is not valid"),
        ({"tierline.io/device": "tpu"}, "tierline.io/device: 'tpu' is not valid"),
        ({"tierline.io/deadline": "60ms"}, "tierline.io/deadline: deadline 60ms is longer"),
        ({"tierline.io/policy": "Lazy"}, "tierline.io/policy: 'Lazy' is not valid"),
        ({"tierline.io/reserved": "2Gi"}, "tierline.io/reserved: reserved 2Gi is more than"),
    ],
)
def test_a_wrong_annotation_is_named(annotations: dict[str, str | None], said: str) -> None:
    given = {k: v for k, v in (INLINE | annotations).items() if v is not None}

    with pytest.raises(InlineError) as refused:
        memtask_of(pod_of(pod(annotations=given)), [OWNER])

    assert said in str(refused.value)


def test_a_lost_seat_keeps_what_it_was_granted_readable() -> None:
    _, seat = seated()
    seat.plan = None

    assert set(claim_notes(seat, task("m").spec)) == {
        "tierline.io/standing",
        "tierline.io/order",
        "tierline.io/terms",
    }


def test_the_largest_plan_fits_into_the_annotations_of_a_claim() -> None:
    _, seat = seated()
    assert seat.plan is not None
    seat.plan = replace(
        seat.plan,
        extent_count=MAX_EXTENTS,
        resident_extents=tuple(range(MAX_EXTENTS)),
        homes=tuple(HomeRun(tier, MAX_EXTENTS // 1024) for tier in ("dram", "nvme") * 512),
    )

    notes = claim_notes(seat, task("m").spec)

    assert sum(len(name) + len(text) for name, text in notes.items()) < 240 << 10


def test_log_lines_are_one_json_object_each() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "allocated %s", ("c",), None)
    record.task = TaskKey("ns", "m")

    line = json.loads(logs.JsonLines().format(record))

    assert (line["level"], line["message"], line["task"]) == ("info", "allocated c", "ns/m")


def test_what_was_stored_before_a_rule_is_written_as_it_is() -> None:
    read = MemTask.from_stored(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": "m", "namespace": "default"},
            "spec": {
                "realtime": {"period": "1s", "executionTime": "50ms", "measuringLimit": "20ms"},
                "memory": {"budget": "1Mi", "reserved": "2Mi"},
                "device": {"kind": "cpu"},
                "profile": "camera.v2",
            },
        }
    )
    terms = Terms.of(read.spec)
    assert terms.profile == "camera.v2"
    assert Terms.from_stored(terms.to_api()) == terms
    assert terms.realtime == read.spec.realtime
