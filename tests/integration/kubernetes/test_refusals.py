"""What a real API server refuses, and in which words: refusals.yaml, each rule, each policy."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml
from tests.integration.kubernetes.refusal_cases import CASES, Case, workload
from tests.integration.kubernetes.refusals import answers, prepare, recorded, same
from tests.integration.policies import policies
from tests.unit.api.api_objects import CLUSTER, node, plan, profile, task
from tests.unit.api.api_objects import WRONG as WRONG_OBJECTS
from tests.unit.api.contradictions import Pair, pairs
from tests.unit.api.pods.pod_cases import WRONG as WRONG_PODS
from tests.unit.api.pods.pod_cases import copied, pod

from tierline_api.objects.memprofile import MAX_LAYERS
from tierline_api.pods.inject import RefusedError, injected
from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import REPOSITORY

RULES = "x-kubernetes-validations"
OF_USERS = {"tierline-pods", "tierline-workloads", "tierline-cronjobs", "tierline-pod-task"}
STATUSES = [
    *(w.object for w in WRONG_OBJECTS if w.refused_by == CLUSTER and "status" in w.object),
    task(status__plan=plan(ringExtents=6)),
    task(status__plan=plan(predictedJobTime="soon")),
    task(status__observed={"responseTimeWorst": "48h"}),
    task(status__granted={"realtime": {"period": "1s", "deadline": "2s"}}),
    node(metadata__name="slow-link", status__links__0__overhead="a while"),
]
"""Objects of which only the status is wrong; operator and agents write those."""


@pytest.fixture(scope="module")
def said(
    opting_in: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], str]:
    """What kubectl says of each case."""
    prepare(opting_in)
    return answers(opting_in, tmp_path_factory.mktemp("cases"))


def named(case: Case) -> str:
    return f"{case.section}: {case.mistake}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_kubectl_gives_the_recorded_answer(said: dict[tuple[str, str], str], case: Case) -> None:
    answer = said.get((case.section, case.mistake), "it was taken")
    wanted = recorded()[case.section][case.mistake]

    # With the way to record a new one in sight, if it was meant to change.
    assert same(answer, wanted), f"now it is: {answer}\n(refusals.py --write)\nit was: {wanted}"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_several_causes_are_the_same_in_any_order(order: tuple[int, ...]) -> None:
    causes = (
        'spec.realtime.period: Invalid value: "48h": write a duration from 1us, such as 50ms',
        'spec.realtime.criticality: Unsupported value: "hard": supported values: "Hard", "Soft"',
        "<nil>: Invalid value: null: some rules were not checked",
    )

    def said(numbers: Iterable[int]) -> str:
        return f'MemTask.tierline.io "camera" is invalid: [{", ".join(causes[n] for n in numbers)}]'

    assert same(said(order), said(range(3)))
    assert not same(said(order), said((0, 1)))
    assert not same(said(order), said(order).replace("camera", "lidar"))


def test_the_record_has_the_cases_and_no_more() -> None:
    written = [(section, mistake) for section, said in recorded().items() for mistake in said]
    assert written == [(case.section, case.mistake) for case in CASES]
    assert len(written) >= 40


def rules(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the sentence of each rule in a schema."""
    yield from (rule["message"] for rule in schema.get(RULES, ()))
    for field in schema.get("properties", {}).values():
        yield from rules(field)
    if "items" in schema:
        yield from rules(schema["items"])


def sentences() -> set[tuple[str, str]]:
    """Return the kind and the sentence of every rule in the CRDs."""
    found = set()
    for path in (REPOSITORY / "crds").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
        found |= {(spec["names"]["kind"], sentence) for sentence in rules(schema)}
    return found


def refusal_of_status(plane: ControlPlane, namespace: str, manifest: Manifest) -> str:
    """Return what the server says of the status in `manifest`; fails if it takes it."""
    manifest = deepcopy(manifest)
    manifest["metadata"]["namespace"] = namespace
    reported = manifest.pop("status")
    plane.api.create(manifest)
    with pytest.raises(ApiError) as refused:
        plane.api.apply(manifest | {"status": reported}, subresource="status")
    plane.api.delete(manifest)
    return refused.value.message


def test_every_rule_of_the_crds_says_its_sentence(opting_in: ControlPlane, anything: str) -> None:
    wanted = sentences()
    assert len(wanted) > 15
    heard = [(kind, text) for kind, said in recorded().items() for text in said.values()]
    heard += [(m["kind"], refusal_of_status(opting_in, anything, m)) for m in STATUSES]
    assert {
        (k, s) for k, s in wanted if not any(k == kind and s in t for kind, t in heard)
    } == set()


PAIRS = tuple(pairs({"MemTask": task(), "MemProfile": profile(), "MemNode": node()}))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_a_server_takes_equal_numbers(opting_in: ControlPlane, anything: str, pair: Pair) -> None:
    manifest = copied(pair.equal, anything)
    reported = manifest.pop("status", None)
    made = opting_in.api.create(manifest)
    if reported is not None:
        opting_in.api.apply(manifest | {"status": reported}, subresource="status")
    opting_in.api.delete(made)


def test_a_server_weighs_the_rules_of_the_largest_profile(
    opting_in: ControlPlane, anything: str
) -> None:
    layer = {
        "name": "n" * 60,
        "bytes": 1 << 20,
        "meanComputeTime": "1.123456789s",
        "computeTime": "2.123456789s",
        "longestComputeTime": "3.123456789s",
        "arena": 15,
    }
    largest = profile(spec__layers=[layer] * MAX_LAYERS, spec__calls=[0] * 15 + [1])
    opting_in.api.create(copied(largest, anything), dry_run=True)


def test_every_sentence_of_the_policies_is_in_the_record() -> None:
    heard = "\n".join(text for said in recorded().values() for text in said.values())
    wanted = {
        rule["message"]
        for policy in policies()
        if policy["kind"] == "ValidatingAdmissionPolicy" and policy["metadata"]["name"] in OF_USERS
        for rule in policy["spec"]["validations"]
    }
    assert len(wanted) > 15
    assert {sentence for sentence in wanted if sentence not in heard} == set()


@pytest.mark.parametrize("mistake", WRONG_PODS)
def test_inject_says_the_same_sentence(mistake: str) -> None:
    with pytest.raises(RefusedError) as refused:
        injected(WRONG_PODS[mistake].pod)

    _, _, sentence = str(refused.value).partition(": ")
    assert WRONG_PODS[mistake].says in sentence
    assert recorded()["Pod"][mistake].endswith(f"denied request: {sentence}")


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
@pytest.mark.parametrize("mistake", WRONG_PODS)
def test_a_template_with_the_mistake_is_refused_as_well(
    opting_in: ControlPlane, anything: str, kind: str, mistake: str
) -> None:
    manifest = copied(workload(kind, WRONG_PODS[mistake].pod), anything)

    with pytest.raises(ApiError) as refused:
        opting_in.api.create(manifest, dry_run=True)
    assert WRONG_PODS[mistake].says in refused.value.message


def test_templates_without_mistakes_are_admitted(opting_in: ControlPlane, anything: str) -> None:
    for kind in ("Deployment", "CronJob"):
        for good in (pod(), pod(annotations={})):
            opting_in.api.create(copied(workload(kind, good), anything), dry_run=True)


def test_of_a_single_wrong_object_kubectl_says_it_shorter(
    opting_in: ControlPlane, anything: str
) -> None:
    wrong = yaml.safe_dump(copied(task(spec__realtime__deadline="101ms"), anything))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        opting_in.kubectl("apply", "-f", "-", given=wrong)

    assert refused.value.stderr == (
        'The MemTask "camera" is invalid: spec.realtime.deadline: Invalid value:'
        " deadline must not be longer than period; write a deadline of at most the period\n"
    )
