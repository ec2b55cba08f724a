"""Which nodes can take a pod: the rules of kube-scheduler, and a sentence for each that cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.placement.fleets import claim, feed, fleet, node, places, profile, said, task

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.placement.needs.fitting import (
    ANYWHERE,
    UNKNOWN,
    Needs,
    Taint,
    Worker,
    misfit,
)
from tierline_operator.placement.needs.pods import needs_of

LABELS = {"disk": "ssd", "cores": "8"}
WELL = Worker("a", labels=LABELS)


def term(kind: str, *requirements: tuple[Any, ...]) -> dict[str, Any]:
    """A term of required node affinity."""
    made = [{"key": k, "operator": o, "values": list(v)} for k, o, *v in requirements]
    return {kind: made}


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    """A pod spec with that required node affinity."""
    required = {"nodeSelectorTerms": list(terms)}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    }


@pytest.mark.parametrize(
    ("fits", "requirement"),
    [
        (True, ("disk", "In", "hdd", "ssd")),
        (False, ("disk", "In", "hdd")),
        (False, ("zone", "In", "x")),
        (True, ("zone", "NotIn", "x")),
        (False, ("disk", "NotIn", "ssd")),
        (True, ("disk", "Exists")),
        (False, ("zone", "Exists")),
        (True, ("zone", "DoesNotExist")),
        (False, ("disk", "DoesNotExist")),
        (True, ("cores", "Gt", "7")),
        (False, ("cores", "Gt", "8")),
        (True, ("cores", "Lt", "9")),
        (False, ("disk", "Gt", "1")),
        (False, ("zone", "Lt", "1")),
        (True, ("disk", "OfTheFuture", "1")),
    ],
)
def test_an_expression_over_labels(fits: bool, requirement: tuple[Any, ...]) -> None:
    needs = needs_of(affine(term("matchExpressions", requirement)))
    assert (misfit(WELL, needs) == "") is fits


def test_one_term_is_enough_and_an_empty_one_is_none() -> None:
    hdd, ssd = (term("matchExpressions", ("disk", "In", kind)) for kind in ("hdd", "ssd"))
    both = term("matchExpressions", ("disk", "In", "ssd"), ("cores", "In", "4"))
    here = term("matchFields", ("metadata.name", "In", "a"))
    assert misfit(WELL, needs_of(affine(hdd, ssd))) == ""
    assert misfit(WELL, needs_of(affine(here))) == ""
    assert misfit(replace(WELL, name="b"), needs_of(affine(here)))
    for none in (affine(both), affine({}), affine()):
        assert "required node affinity" in misfit(WELL, needs_of(none))


@pytest.mark.parametrize(
    ("tolerated", "toleration"),
    [
        (True, {"operator": "Exists"}),
        (True, {"key": "for", "operator": "Exists"}),
        (True, {"key": "for", "value": "gpu"}),
        (True, {"key": "for", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}),
        (False, {"key": "for"}),
        (False, {"key": "for", "value": "infra"}),
        (False, {"key": "other", "operator": "Exists"}),
        (False, {"key": "for", "operator": "Exists", "effect": "NoExecute"}),
    ],
)
def test_a_taint_and_a_toleration(tolerated: bool, toleration: dict[str, str]) -> None:
    tainted = Worker("a", taints=(Taint("for", "gpu", "NoSchedule"),))
    why = misfit(tainted, needs_of({"tolerations": [toleration]}))
    assert why == ("" if tolerated else "the pod does not tolerate its taint for=gpu:NoSchedule")


def test_what_keeps_every_pod_away() -> None:
    everything = needs_of({"tolerations": [{"operator": "Exists"}]})
    cordoned = Worker("a", cordoned=True)
    assert misfit(None, everything) == "it is no node of the cluster"
    assert misfit(Worker("a", ready=False, unready="kubelet stopped"), everything) == (
        "it is not Ready (kubelet stopped)"
    )
    assert misfit(cordoned, ANYWHERE) == "it is cordoned"
    assert misfit(cordoned, everything) == "", "as of a DaemonSet"
    assert misfit(Worker("a", taints=(Taint("k", "", "PreferNoSchedule"),)), ANYWHERE) == ""


def test_a_pod_that_others_hold_at_their_gate_gets_no_place() -> None:
    own, other = ({"name": f"{who}/admission"} for who in ("tierline.io", "kueue.x-k8s.io"))
    assert misfit(WELL, needs_of({"schedulingGates": [own]})) == ""
    assert misfit(WELL, needs_of({"schedulingGates": [own, other]})) == (
        "the pod's scheduling gate kueue.x-k8s.io/admission is not Tierline's, and still there"
    )


def test_of_a_place_kept_free_only_what_keeps_every_pod_away_counts() -> None:
    of_administrator = Worker("a", taints=(Taint("for", "gpu", "NoSchedule"),))
    of_kubernetes = Worker("a", taints=(Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),))
    assert misfit(of_administrator, UNKNOWN) == ""
    assert misfit(of_kubernetes, UNKNOWN) != ""
    assert misfit(Worker("a", cordoned=True), UNKNOWN) == "it is cordoned"


KEYS = [
    *("affinity", "nodeAffinity", "nodeSelectorTerms", "matchExpressions", "key"),
    *("operator", "values", "tolerations", "nodeSelector", "matchFields"),
    "requiredDuringSchedulingIgnoredDuringExecution",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda deeper: (
        st.lists(deeper, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            deeper,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_whatever_a_template_holds_is_read_and_answered(spec: Any) -> None:
    needs = needs_of(spec)
    assert hash(needs) == hash(needs_of(spec))
    assert isinstance(misfit(WELL, needs), str)


def chooses(name: str) -> Needs:
    return needs_of({"nodeSelector": {"host": name}})


def host(name: str) -> Worker:
    return Worker(name, labels={"host": name})


def test_a_place_kept_free_is_given_up_for_a_pod_that_cannot_run_there() -> None:
    seen = fleet(host("a"), host("b"), node("a"), node("b"), profile("m"), task("m"))
    [kept] = places(seen, "m")
    other = "b" if kept == "a/cpu0" else "a"

    feed(seen, replace(claim("c", "m"), needs=chooses(other)))

    assert places(seen, "m") == [f"{other}/cpu0"]


def test_the_template_decides_for_places_kept_free() -> None:
    made = task("m").to_api()
    spec = {"nodeSelector": {"host": "b"}, "containers": [{"name": "c", "image": "i"}]}
    made["spec"]["template"] = {"spec": spec}
    seen = fleet(host("a"), host("b"), node("a"), profile("m"), MemTask.from_api(made))

    assert said(seen, "m")[1:] == (
        "NotSchedulable",
        "node a: the pod's nodeSelector wants host=b, which is a",
    )


def test_who_is_in_the_way_is_not_named_to_other_tenants() -> None:
    """Not every namespace may read the names of another's tasks; amounts are told."""
    models = [profile("m", namespace=space) for space in ("one", "two")]
    seen = fleet(node("a", fast_mib=100), *models)
    feed(seen, task("secret", namespace="one", of="m", policy=SwapPolicy.RESIDENT))
    for space in ("one", "two"):
        feed(seen, task("late", namespace=space, of="m", policy=SwapPolicy.RESIDENT))

    assert "secret" in said(seen, "late", "one")[2]
    told = said(seen, "late", "two")[2]
    assert "secret" not in told
    assert "a task of another namespace" in told


def test_all_that_keeps_a_task_away_is_told() -> None:
    full = node("b", fast_mib=16)
    seen = fleet(
        *(Worker("a", ready=False), node("a"), full, profile("m", mib=64, compute_ms=90)),
        task("m", period_ms=95),
    )
    status, reason, message = said(seen, "m")
    assert (status, reason) != ("True", "Admitted")
    assert reason != "NotSchedulable", "what is missing on the node that would do says more"
    assert message.endswith("nor can its pod run elsewhere: node a: it is not Ready")


def test_a_pod_that_runs_is_on_its_node_however_that_is_and_on_no_other() -> None:
    bound = Needs(node="a", selector=(("disk", "hdd"),), gates=("other",))
    ill = replace(WELL, ready=False, cordoned=True, agentless="its agent is silent")
    assert misfit(ill, bound) == ""
    elsewhere = misfit(replace(WELL, name="b"), bound)
    assert elsewhere == "the pod's node is a, where it runs already"
