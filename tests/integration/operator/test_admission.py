"""Tasks and pods on a real API server: placed, held, told why, let go."""

from __future__ import annotations

import pytest
from tests.integration.operator.running import (
    Operator,
    User,
    conditions,
    memory_in,
    placed,
    plan_in,
    until,
)
from tests.unit.placement.fleets import node, profile, quota, task

from tierline_agent.kubernetes.grants import grant_of
from tierline_api.objects.swap import SwapPolicy
from tierline_api.schema.metadata import label_value
from tierline_cluster.api import ApiError, Manifest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]


def test_a_pod_leaves_its_gate_with_its_claim_allocated(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")

    assert user.wait_placed("one") == ("node-a", "cpu0")

    claim = user.claim_of("one")
    assert claim is not None
    metadata, allocation = claim["metadata"], claim["status"]["allocation"]
    assert metadata["labels"]["tierline.io/node"] == "node-a"
    assert metadata["annotations"]["tierline.io/standing"] == "Planned"
    assert "resource.kubernetes.io/delete-protection" in metadata["finalizers"]
    assert plan_in(claim)["extentBytes"] == 2**20
    assert allocation["allocationTimestamp"]
    [result] = allocation["devices"]["results"]
    assert int(result["consumedCapacity"]["fastMemory"]) > 0
    found = user.wait_task("m", "Admitted")
    assert found["status"]["node"] == "node-a"
    assert found["status"]["phase"] == "Admitted"
    assert found["status"]["observedGeneration"] == 1
    assert set(conditions(found)) == {"Profiled", "Admitted", "Ready", "DeadlinesMet"}
    assert placed(claim) == ("node-a", "cpu0")
    until("the event", lambda: "Admitted" in dict(user.events("m")))


def test_a_plain_pod_needs_nothing_but_the_annotation(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.api.create(user.plain_pod("one", "m"))
    user.apply(task("m"))

    assert user.wait_placed("one") == ("node-a", "cpu0")


def test_tasks_spread_and_what_does_not_fit_starts_when_another_goes(user: User) -> None:
    user.node(node("node-a"))
    user.node(node("node-b"))
    user.apply(profile("m", compute_ms=50))
    for name in ("a", "b", "c"):
        user.apply(task(name, of="m"))
        user.pod(name, name)
    places = {user.wait_placed("a"), user.wait_placed("b")}
    assert places == {("node-a", "cpu0"), ("node-b", "cpu0")}

    def knows_both(found: Manifest) -> bool:
        """It may have been judged before the second node was seen."""
        said: str = conditions(found)["Admitted"]["message"]
        return said.startswith("fits on none of 2 devices; nearest is node-")

    user.wait_task("c", "DeadlineInfeasible")
    waits = user.api.wait(user.task("c"), knows_both)
    message = conditions(waits)["Admitted"]["message"]
    assert "% of the device's time" in message
    assert waits["status"]["phase"] == "Pending"
    assert waits["status"]["reason"] == "DeadlineInfeasible"
    assert user.api.get(user.named_pod("c"))["spec"]["schedulingGates"]

    user.api.delete(user.task("a"))
    held = user.wait_task("a", "BeingDeleted")
    assert "waits until its pods have ended: a" in conditions(held)["Admitted"]["message"]
    user.delete_pod("a")
    user.api.wait_gone(user.task("a"))
    user.wait_placed("c")


def test_a_template_makes_a_deployment_that_goes_with_its_task(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    manifest = task("m", replicas=2).to_api()
    manifest["metadata"] = {"name": "m", "namespace": user.namespace}
    manifest["spec"]["template"] = {
        "metadata": {"labels": {"app": "mine"}},
        "spec": {"containers": [{"name": "main", "image": "none", "command": ["run"]}]},
    }
    user.api.apply(manifest)

    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m", "namespace": user.namespace},
    }
    made = user.api.wait(deployment, lambda found: found["spec"]["replicas"] == 2)
    pod = made["spec"]["template"]
    assert pod["metadata"]["labels"] == {"app": "mine", "tierline.io/task": "m"}
    assert pod["metadata"]["annotations"] == {"tierline.io/task": "m"}
    assert made["metadata"]["ownerReferences"][0]["kind"] == "MemTask"

    until("both pods have a device", lambda: len(list(filter(placed, user.claims()))) == 2)

    user.api.merge(user.task("m"), {"spec": {"replicas": 1}})
    user.api.wait(deployment, lambda found: found["spec"]["replicas"] == 1)
    user.api.delete(deployment)
    user.api.wait(deployment, lambda found: found["metadata"]["uid"] != made["metadata"]["uid"])
    until("the new pod has a device", lambda: len(list(filter(placed, user.claims()))) == 1)
    user.api.delete(user.task("m"))
    user.api.wait_gone(user.task("m"))
    user.api.wait_gone(deployment)


def test_without_its_template_a_task_has_no_pods_and_can_go(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    manifest = task("m").to_api()
    manifest["metadata"] = {"name": "m", "namespace": user.namespace}
    containers = [{"name": "main", "image": "none", "command": ["run"]}]
    manifest["spec"]["template"] = {"spec": {"containers": containers}}
    user.api.apply(manifest)
    until("its pod has a device", lambda: len(list(filter(placed, user.claims()))) == 1)

    user.api.merge(user.task("m"), {"spec": {"template": None}})
    until("its pod has gone", lambda: user.claims() == [])
    user.api.delete(user.task("m"))
    user.api.wait_gone(user.task("m"))


def test_a_changed_period_is_granted_or_refused_while_the_pod_runs(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m", compute_ms=25))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")

    user.api.merge(user.task("m"), {"spec": {"realtime": {"period": "80ms", "deadline": "80ms"}}})
    found = user.api.wait(
        user.task("m"), lambda t: t["status"]["granted"]["realtime"]["period"] == "80ms"
    )
    assert conditions(found)["Admitted"]["reason"] == "Admitted"

    user.api.merge(user.task("m"), {"spec": {"realtime": {"period": "20ms", "deadline": "20ms"}}})
    found = user.wait_task("m", "ChangeRefused")
    assert conditions(found)["Admitted"]["status"] == "True"
    assert found["status"]["granted"]["realtime"]["period"] == "80ms"
    assert "runs on as it was admitted" in conditions(found)["Admitted"]["message"]


def test_a_slower_link_is_admitted_again_and_plans_follow_at_the_next_pod(user: User) -> None:
    user.node(node("node-a", fast_mib=24))
    user.apply(profile("m"))
    user.apply(task("m", period_ms=80))
    user.pod("one", "m")
    user.wait_placed("one")
    claim = user.claim_of("one")
    assert claim is not None
    before = memory_in(claim)

    user.node(node("node-a", fast_mib=512, link_mib_s=700))
    found = user.wait_task("m", "NoLongerHolds")
    assert found["status"]["phase"] == "Refused"
    demoted = user.api.wait(
        claim, lambda c: c["metadata"]["annotations"]["tierline.io/standing"] == "Demoted"
    )
    assert memory_in(demoted) == before, "a program that runs keeps what it has mapped"

    user.delete_pod("one")
    user.pod("two", "m")
    user.wait_placed("two")
    user.wait_task("m", "Admitted")
    claim = user.claim_of("two")
    assert claim is not None
    assert len(memory_in(claim)["residentExtents"]) == 64


def test_what_a_running_pod_holds_stays_its_own_until_it_ends(user: User) -> None:
    user.node(node("node-a", fast_mib=64))
    user.apply(profile("m", mib=48))
    user.apply(task("old", of="m"))
    user.pod("old", "old")
    user.wait_placed("old")
    claim = user.claim_of("old")
    assert claim is not None
    before = memory_in(claim)

    user.apply(task("new", of="m", policy=SwapPolicy.RESIDENT))
    user.pod("new", "new")
    waits = user.wait_task("new", "MemoryInsufficient")
    message = conditions(waits)["Admitted"]["message"]
    assert "MiB are missing" in message
    assert f"it would hold if pods of {user.namespace}/old started again" in message
    user.wait_task("old", "Admitted")
    assert memory_in(user.api.get(claim)) == before

    user.delete_pod("old")
    user.wait_placed("new")
    user.pod("next", "old")
    user.wait_placed("next")
    user.wait_task("new", "Admitted")
    user.wait_task("old", "Admitted")


def test_claims_say_whose_jobs_yield_where_the_device_can(user: User) -> None:
    user.node(node("node-a", yields=True))
    user.apply(profile("slow", compute_ms=100, layers=16))
    user.apply(profile("quick", compute_ms=2, mib=8))
    user.apply(task("long", of="slow", period_ms=1000))
    user.apply(task("short", of="quick", period_ms=40))
    for name in ("long", "short"):
        user.wait_task(name, "Admitted")
    for name in ("long", "short"):
        user.pod(name, name)
        user.wait_placed(name)

    long, short = user.claim_of("long"), user.claim_of("short")
    assert long is not None
    assert short is not None
    registered = grant_of(long, "node-a").registration
    assert registered is not None
    assert registered.preemption is not None
    assert registered.preemption.scheduling == "RingKeeping"
    assert "preemption" not in plan_in(short)
    shown = user.wait_task("long", "Admitted")["status"]["plan"]["preemption"]
    assert shown == plan_in(long)["preemption"]


def test_a_node_that_disappears(user: User) -> None:
    a, b = node("node-a"), node("node-b")
    user.node(a)
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")
    user.node(b)

    gone = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemNode", "metadata": {"name": "node-a"}}
    [before] = user.claims()
    user.api.delete(gone)
    found = user.wait_task("m", "NodeGone")
    assert "delete the pod" in conditions(found)["Admitted"]["message"]
    user.node(a)
    user.wait_task("m", "Admitted")
    # A program that runs on was not told that its place is lost, which would end it.
    [after] = user.claims()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    user.api.delete(gone)
    user.wait_task("m", "NodeGone")

    user.delete_pod("one")
    user.pod("two", "m")
    assert user.wait_placed("two") == ("node-b", "cpu0")
    user.wait_task("m", "Admitted")


def test_a_task_without_a_profile_is_measured_alone_then_admitted(user: User) -> None:
    user.node(node("node-a"))
    user.apply(task("m"))
    found = user.wait_task("m", "ProfileMissing", "Profiled")
    assert found["status"]["reason"] == "ProfileMissing"

    user.pod("one", "m")
    assert user.wait_placed("one") == ("node-a", "cpu0")
    claim = user.claim_of("one")
    assert claim is not None
    assert claim["metadata"]["annotations"]["tierline.io/standing"] == "Profiling"
    found = user.wait_task("m", "Profiling", "Profiled")
    assert found["status"]["phase"] == "Profiling"
    user.pod("two", "m")
    user.api.wait(user.task("m"), lambda t: "2 pods" in conditions(t)["Ready"]["message"])

    user.apply(profile("m"))
    user.wait_task("m", "Admitted")
    user.wait_placed("two")
    user.api.wait(
        claim, lambda c: c["metadata"]["annotations"]["tierline.io/standing"] == "Planned"
    )


def test_a_task_is_measured_among_those_that_run_by_a_limit_that_it_states(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("runs", mib=8))
    user.apply(task("runs"))
    user.pod("one", "runs")
    user.wait_placed("one")
    user.apply(task("m", number=1))
    user.pod("two", "m")
    advice = "state spec.realtime.measuringLimit"
    user.api.wait(
        user.task("m"),
        lambda t: advice in conditions(t).get("Profiled", {}).get("message", ""),
    )

    user.apply(task("m", number=1, limit_ms=50))
    assert user.wait_placed("two") == ("node-a", "cpu0")
    claim = user.claim_of("two")
    assert claim is not None
    grant = grant_of(claim, "node-a")
    assert grant.measured_among_others
    assert grant.registration is not None
    assert grant.registration.job_limit_ns == 50_000_000
    assert "consumedCapacity" not in claim["status"]["allocation"]["devices"]["results"][0]
    user.wait_task("m", "Profiling", "Profiled")
    user.wait_task("runs", "Admitted")

    user.apply(profile("m", mib=8))
    user.wait_task("m", "Admitted")
    planned = user.api.wait(
        claim, lambda c: c["metadata"]["annotations"]["tierline.io/standing"] == "Planned"
    )
    assert plan_in(planned)["extentCount"] == 8


def test_tasks_that_come_together_are_measured_in_turn_on_the_only_device(user: User) -> None:
    user.node(node("node-a"))
    names = ["x", "y", "z"]
    for name in names:
        user.apply(task(name, period_ms=1000))
        user.pod(name, name)

    def measured_now() -> list[str]:
        return [
            claim["metadata"]["labels"]["tierline.io/task"]
            for claim in user.claims()
            if placed(claim)
        ]

    for done in range(3):
        until("the next one is measured", lambda done=done: len(measured_now()) == done + 1)  # type: ignore[misc]
        reached = {name: user.api.get(user.task(name)) for name in names}
        said = [conditions(found).get("Admitted", {}) for found in reached.values()]
        assert not any(one.get("status") == "True" for one in said)
        (now,) = [name for name in measured_now() if not user.api.exists(user.profile(name))]
        # What the agent writes when the pod has left its profile.
        user.apply(profile(now, mib=16, compute_ms=2))

    for name in names:
        user.wait_task(name, "Admitted")


def test_a_profile_may_go_at_any_time_and_pods_run_on_by_their_plans(user: User) -> None:
    user.node(node("node-a"))
    user.node(node("node-b"))
    measured = user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")
    claim = user.claim_of("one")
    assert claim is not None
    before = memory_in(claim)

    user.api.delete(measured)
    user.api.wait_gone(measured)
    found = user.wait_task("m", "ProfileMissing", "Profiled")
    assert conditions(found)["Admitted"]["status"] == "True"
    assert memory_in(user.api.get(claim)) == before
    user.pod("two", "m")
    assert user.wait_placed("two") == ("node-b", "cpu0"), "it is measured on an empty device"


def test_a_quota_of_the_namespace(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    limit = user.apply(quota("limit", fast_mib=80))
    user.apply(task("one", of="m", policy=SwapPolicy.RESIDENT))
    user.wait_task("one", "Admitted")
    user.apply(task("two", of="m", policy=SwapPolicy.RESIDENT))

    found = user.wait_task("two", "QuotaExceeded")
    assert "MemQuota/limit of namespace" in conditions(found)["Admitted"]["message"]

    user.api.delete(limit)
    user.wait_task("two", "Admitted")


INLINE = {"period": "100ms", "budget": "1Gi", "device": "cpu", "profile": "m", "tiers": "dram"}


def test_inline_annotations_make_a_task_that_goes_with_the_pod(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))

    user.pod("one", "mine", **INLINE)

    user.wait_placed("one")
    made = user.wait_task("mine", "Admitted")
    assert made["spec"]["realtime"]["period"] == "100ms"
    assert made["metadata"]["ownerReferences"][0]["name"] == "one"
    user.delete_pod("one")
    user.api.wait_gone(user.task("mine"))


def test_a_node_with_the_longest_name_gets_its_pods(user: User) -> None:
    name = ("ip-10-0-0-1" + 99 * ".compute")[:253]
    user.node(node(name))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")

    assert user.wait_placed("one") == (name, "cpu0")

    claim = user.claim_of("one")
    assert claim is not None
    assert claim["metadata"]["labels"]["tierline.io/node"] == label_value(name)


def test_annotations_that_make_no_task_are_refused_with_the_pod(user: User) -> None:
    with pytest.raises(ApiError, match=r"tierline.io/reserved .* must not be more than budget"):
        user.pod("one", "mine", **INLINE, reserved="2Gi")


def test_an_annotation_that_names_no_task_is_told_at_the_pod(user: User) -> None:
    user.pod("two", "other")

    until("the pod is told", lambda: user.events("two"))
    [(reason, note)] = user.events("two")
    assert reason == "MemTaskMissing"
    assert "there is no MemTask/other" in note


def test_annotations_that_say_otherwise_than_the_task_are_told_at_the_pod(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m", period="100ms", budget="2Gi", device="cpu")
    user.wait_placed("one")
    [told] = until(
        "it is told",
        lambda: [said for why, said in user.events("one") if why == "AnnotationsIgnored"],
    )
    assert "its own terms hold: tierline.io/budget says 2Gi, the task 1Gi; remove" in told


def test_what_agents_measure_shows_in_the_status(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")

    def measured(misses: int) -> None:
        user.observe("one", jobs=10, misses=misses, responseTimeWorst="12ms")

    measured(0)
    found = user.wait_task("m", "NoMisses", "DeadlinesMet")
    assert found["status"]["observed"]["responseTimeWorst"] == "12ms"
    measured(1)
    user.wait_task("m", "DeadlinesMissed", "DeadlinesMet")

    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    user.api.merge(user.named_pod("one"), {"status": ready}, subresource="status")
    found = user.wait_task("m", "Running", "Ready")
    assert found["status"]["phase"] == "Running"


def test_over_runs_that_an_agent_reports_are_planned_with(user: User, operator: Operator) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")
    claim = user.claim_of("one")
    assert claim is not None
    before = plan_in(claim)

    def overran(took: str) -> None:
        user.observe("one", jobs=10, misses=0, overruns=2, overrunJobTime=took)

    # What still holds is proven again: the pod's plan predicts it, the task says so.
    overran("40ms")
    found = user.api.wait(user.task("m"), lambda t: t["status"].get("remeasured"))
    [learned] = found["status"]["remeasured"]
    assert learned["node"] == "node-a"
    kept = user.api.get(user.profile("m"))["metadata"]
    assert learned["profile"] == f"{kept['uid']}/{kept['generation']}"
    met = conditions(found)["DeadlinesMet"]
    assert (met["status"], met["reason"]) == ("True", "NoMisses")
    assert "planned with what its jobs that over-ran showed" in met["message"]

    def replanned() -> bool:
        now = user.claim_of("one")
        return now is not None and plan_in(now)["predictedJobTime"] != before["predictedJobTime"]

    until("its claim predicts the longer time", replanned)
    now = user.claim_of("one")
    assert now is not None
    assert memory_in(now) == memory_in(claim), "what the pod holds is what it was given"

    # What does not hold is said, and outlives the operator; nothing new is placed there.
    overran("400ms")
    user.wait_task("m", "OverrunsNotHeld", "DeadlinesMet")
    user.api.wait(user.task("m"), lambda t: t["status"]["phase"] == "Admitted")
    operator.kill()
    operator.start()
    user.apply(task("other", of="m"))
    message = conditions(user.wait_task("other", "Pending"))["Admitted"]["message"]
    assert "not proven to hold by what runs there" in message
    found = user.api.get(user.task("m"))
    assert conditions(found)["DeadlinesMet"]["reason"] == "OverrunsNotHeld"
    [longer] = found["status"]["remeasured"]
    assert longer["profile"] == learned["profile"]
    until("the event", lambda: "OverrunsNotHeld" in dict(user.events("m")))

    # A profile that says more starts without what was learned.
    user.apply(profile("m", compute_ms=11))
    user.api.wait(
        user.task("m"),
        lambda t: t["status"].get("remeasured", [learned])[0]["profile"] != learned["profile"],
    )


def test_a_deployment_that_is_refused_is_told_and_holds_no_pod_up(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    wanted = task("m").to_api()
    wanted["spec"]["template"] = {"spec": {"containers": [{"name": "c", "command": ["x"]}]}}
    user.api.apply(wanted | {"metadata": {"name": "m", "namespace": user.namespace}})

    user.pod("one", "m")

    user.wait_placed("one")
    until("it is told", lambda: "DeploymentRefused" in dict(user.events("m")))
    told = dict(user.events("m"))["DeploymentRefused"]
    assert "spec.template.spec.containers[0].image: Required value" in told


def test_a_claim_template_that_is_somebody_elses_is_left_alone(user: User) -> None:
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "m", "namespace": user.namespace},
        "spec": {"spec": {"devices": {"requests": []}}},
    }
    user.api.create(foreign)
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))

    until("the event", lambda: "NameTaken" in dict(user.events("m")))
    told = dict(user.events("m"))["NameTaken"]
    assert told.startswith("ResourceClaimTemplate/m exists and is not Tierline's: it has no owner")
    assert told.endswith("another name, and delete the pods that were made meanwhile")
    user.wait_task("m", "Admitted")
    assert "labels" not in user.api.get(foreign)["metadata"]
    user.api.delete(foreign)
    user.api.wait(foreign, lambda found: "labels" in found["metadata"])
