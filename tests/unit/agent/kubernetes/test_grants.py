"""What a claim grants, and the sentence when it grants nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.integration.dra.claims import NODE, claim, notes, results

from tierline_agent.kubernetes.grants import NotGranted, grant_of, is_of
from tierline_agent.registration import Preemption, parse_registration
from tierline_api.objects.optin import Standing


def test_an_allocated_claim_grants_what_the_operator_noted() -> None:
    grant = grant_of(claim(uid="u-1"), NODE)

    assert (grant.uid, grant.task, grant.device, grant.pool) == ("u-1", "camera", "cpu", NODE)
    assert grant.requests == ("device",)
    registration = grant.registration
    assert registration is not None
    assert (registration.name, registration.memtask) == ("u-1", "camera")
    assert (registration.domain, registration.device) == ("default", "cpu")
    assert (registration.period_ns, registration.deadline_ns) == (10**9, 5 * 10**8)
    assert registration.criticality == "Hard"


def test_a_demoted_task_runs_in_what_others_leave() -> None:
    registration = grant_of(claim(annotations=notes("Demoted")), NODE).registration

    assert registration is not None
    assert registration.criticality == "BestEffort"


def test_a_plan_says_how_jobs_give_the_device_away() -> None:
    annotations = notes()
    plan = json.loads(annotations["tierline.io/plan"])
    plan["preemption"] = {
        "scheduling": "RingKeeping",
        "layer": "2ms",
        "penalty": "1.5us",
        "parkedBytes": 4096,
    }
    noted = annotations | {"tierline.io/plan": json.dumps(plan)}

    registration = grant_of(claim(annotations=noted), NODE).registration
    without = grant_of(claim(annotations=annotations), NODE).registration

    assert registration is not None
    assert registration.preemption == Preemption(
        scheduling="RingKeeping", layer_ns=2_000_000, penalty_ns=1_500, parked_bytes=4096
    )
    assert parse_registration(registration.as_json()) == registration
    assert without is not None
    assert without.preemption is None
    assert registration.plan.holds_as(without.plan)


def test_one_measured_among_others_takes_bounded_leases_in_what_they_leave() -> None:
    grant = grant_of(claim(annotations=notes("Profiling", among_others=True)), NODE)

    registration = grant.registration
    assert grant.measured_among_others
    assert registration is not None
    assert (registration.criticality, registration.job_limit_ns) == ("BestEffort", 500_000_000)
    assert parse_registration(registration.as_json()) == registration
    planned = grant_of(claim(annotations=notes(terms=grant.terms.to_api())), NODE)
    assert planned.registration is not None
    assert planned.registration.job_limit_ns is None, "the limit is for the time of its measuring"


def test_one_that_trains_is_registered_so() -> None:
    terms = {"training": {}, "realtime": {"period": "24h", "criticality": "BestEffort"}}
    registration = grant_of(claim(annotations=notes(terms=terms)), NODE).registration

    assert registration is not None
    assert (registration.training, registration.criticality) == (True, "BestEffort")
    assert parse_registration(registration.as_json()) == registration


@pytest.mark.parametrize("standing", ["Profiling", "Lost", "Unmeasured"])
def test_who_has_no_plan_that_holds_is_not_registered(standing: str) -> None:
    grant = grant_of(claim(annotations=notes(standing)), NODE)

    assert grant.standing is Standing(standing)
    assert grant.registration is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(claim(allocated=[]), "has no device of tierline.io", id="not allocated"),
        pytest.param(
            claim(allocated=results("elsewhere")), f"on node {NODE}", id="of another node"
        ),
        pytest.param(
            claim(annotations={}), "annotate the pod with tierline.io/task", id="by somebody else"
        ),
        pytest.param(
            claim(labels={}), "was not allocated by Tierline's operator", id="without a task"
        ),
        pytest.param(
            claim(annotations=notes() | {"tierline.io/plan": "{"}),
            "are operator and agent of one release?",
            id="an unreadable plan",
        ),
        pytest.param(
            claim(annotations=notes() | {"tierline.io/standing": "Great"}),
            "are operator and agent of one release?",
            id="an unknown standing",
        ),
        pytest.param(
            claim(annotations=notes() | {"tierline.io/standing": "Measured"}),
            "are operator and agent of one release?",
            id="the operator's own standing",
        ),
        pytest.param(
            claim(annotations={k: v for k, v in notes().items() if k != "tierline.io/plan"}),
            "has no plan yet",
            id="no plan",
        ),
        pytest.param(
            claim(allocated=[*results(), *results(device="gpu-0")]),
            "has several devices (cpu, gpu-0)",
            id="two devices",
        ),
    ],
)
def test_what_grants_nothing_says_why(body: dict[str, Any], said: str) -> None:
    with pytest.raises(NotGranted) as refused:
        grant_of(body, NODE)

    assert said in str(refused.value)
    assert "claim default/camera-1" in str(refused.value)


def test_a_claim_is_of_the_node_of_its_pool() -> None:
    assert is_of(claim(), NODE)
    assert not is_of(claim(allocated=results("elsewhere")), NODE)


def test_what_was_reported_last_is_read_back() -> None:
    body = claim()
    body["status"]["devices"] = [
        {"driver": "tierline.io", "data": {"observed": {"jobs": 7, "misses": 1}}}
    ]

    observed = grant_of(body, NODE).observed
    assert observed is not None
    assert (observed.jobs, observed.misses) == (7, 1)

    body["status"]["devices"][0]["data"] = {"observed": {"jobs": "many"}}
    assert grant_of(body, NODE).observed is None
