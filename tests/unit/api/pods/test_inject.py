"""What is written into pods, without a cluster; the server's side is compared with it elsewhere."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.api.pods.pod_cases import (
    GATE,
    GOOD,
    LIBRARY,
    TEMPLATED,
    WRONG,
    Manifest,
    Wrong,
    container,
    inline,
    only,
    pod,
    preload,
    templated,
)

from tierline_api.objects.memtask import MemTaskSpec
from tierline_api.objects.optin import INLINE, INLINE_NEEDED
from tierline_api.objects.pod import Pod
from tierline_api.pods import generate
from tierline_api.pods.inject import TEMPLATES, RefusedError, injected, warned
from tierline_api.pods.inline_rules import inline_rules, spec_of
from tierline_api.pods.refusals import KNOWN, REFUSALS, first

FILES = Path(__file__).parents[4] / "charts" / "tierline" / "files"


def environment(manifest: Manifest, index: int = 0) -> list[Manifest]:
    """Return the environment of a container of the injected `manifest`."""
    found: list[Manifest] = injected(manifest)["spec"]["containers"][index]["env"]
    return found


@pytest.mark.parametrize("manifest", GOOD.values(), ids=list(GOOD))
def test_injecting_twice_is_injecting_once(manifest: Manifest) -> None:
    once = injected(manifest)

    assert injected(once) == once


@pytest.mark.parametrize("manifest", GOOD.values(), ids=list(GOOD))
def test_the_manifest_that_is_given_is_left_alone(manifest: Manifest) -> None:
    before = deepcopy(manifest)
    injected(manifest)

    assert manifest == before


def test_the_least_pod_gets_gate_claim_label_and_library() -> None:
    assert injected(pod({"name": "app", "image": "x"})) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "camera-1",
            "annotations": {"tierline.io/task": "camera"},
            "labels": {"tierline.io/task": "camera"},
        },
        "spec": {
            "containers": [
                {
                    "name": "app",
                    "image": "x",
                    "resources": {"claims": [{"name": "tierline"}]},
                    "env": [{"name": "LD_PRELOAD", "value": LIBRARY}],
                }
            ],
            "automountServiceAccountToken": False,
            "schedulingGates": [GATE],
            "resourceClaims": [TEMPLATED],
        },
    }


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        pytest.param("", LIBRARY, id="nothing"),
        pytest.param("/a.so", f"{LIBRARY} /a.so", id="one"),
        pytest.param("/a.so:/b.so", f"{LIBRARY} /a.so:/b.so", id="two"),
        pytest.param(f"/a.so {LIBRARY}", f"/a.so {LIBRARY}", id="there already"),
        pytest.param(f"{LIBRARY}.1", f"{LIBRARY} {LIBRARY}.1", id="a longer name"),
    ],
)
def test_a_library_of_ones_own_stays(own: str, merged: str) -> None:
    assert environment(pod(container(env=[preload(own)]))) == [preload(merged)]


def test_variables_keep_their_order() -> None:
    env = [{"name": "DIR", "value": "/opt"}, preload("$(DIR)/a.so"), {"name": "X", "value": "1"}]

    names = [entry["name"] for entry in environment(pod(container(env=env)))]
    assert names == ["DIR", "LD_PRELOAD", "X"]


def test_of_two_entries_the_one_that_counts_is_merged() -> None:
    env = [preload("/a.so"), preload("/b.so")]

    assert environment(pod(container(env=env))) == [preload("/a.so"), preload(f"{LIBRARY} /b.so")]


def test_containers_that_are_not_meant_stay_as_they_are() -> None:
    made = injected(pod(container("a"), container("b"), annotations=only("b")))["spec"]

    assert made["containers"][0] == container("a")
    assert "env" in made["containers"][1]


def test_init_containers_and_sidecars_are_meant_as_well() -> None:
    mesh = container("mesh", restartPolicy="Always")
    made = injected(pod(initContainers=[container("fetch"), mesh]))["spec"]

    assert all("LD_PRELOAD" in str(c["env"]) for c in made["initContainers"])


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_templates_are_changed_and_their_owners_are_not(kind: str) -> None:
    written = templated(kind, pod())
    made = injected(written)
    template = made
    for part in TEMPLATES[kind]:
        template = template[part]

    assert template["spec"]["schedulingGates"] == [GATE]
    assert made["metadata"] == written["metadata"]
    assert made["spec"].keys() == written["spec"].keys()


def test_a_list_is_changed_item_by_item() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    plain = pod(annotations={})
    written = {"apiVersion": "v1", "kind": "List", "items": [service, pod(), plain]}
    items = injected(written)["items"]

    assert (items[0], items[2]) == (service, plain)
    assert items[1] == injected(pod())


@pytest.mark.parametrize(
    "manifest",
    [
        pod(annotations={}),
        {"kind": "Pod"},
        {"kind": "Pod", "metadata": None, "spec": []},
        {"kind": "Deployment", "spec": {"template": 5}},
        {"kind": "ConfigMap", "data": {"tierline.io/task": "x"}},
        {"kind": 7},
        {},
    ],
    ids=str,
)
def test_what_does_not_opt_in_is_not_touched(manifest: Manifest) -> None:
    assert injected(manifest) == manifest


@pytest.mark.parametrize(
    "spec", [None, [], {"containers": "app"}, {"containers": [5, {"env": 3}]}], ids=str
)
def test_what_is_no_pod_is_left_to_the_server(spec: object) -> None:
    written = {"kind": "Pod", "metadata": {"annotations": {"tierline.io/task": "a"}}, "spec": spec}

    injected(written)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_what_cannot_work_is_refused_with_the_fix(wrong: Wrong) -> None:
    with pytest.raises(RefusedError, match="Pod camera-1: ") as refused:
        injected(wrong.pod)

    assert wrong.says in str(refused.value)


def test_every_rule_is_broken_by_some_pod() -> None:
    said = set()
    for wrong in WRONG.values():
        with pytest.raises(RefusedError) as refused:
            injected(wrong.pod)
        said.add(str(refused.value).partition(": ")[2])
    unsaid = {refusal.message for refusal in REFUSALS} - said

    assert unsaid == set()


WORDS = {
    "tierline.io/period": ["50ms", "1s", "1us", "24h", "5", "25h", "99999999999999999h"],
    "tierline.io/deadline": ["40ms", "50ms", "1s", "1us", "0s"],
    "tierline.io/criticality": ["Hard", "Soft", "BestEffort", "hard"],
    "tierline.io/execution-time": ["12.5ms", "41ms", "51ms", "2s", "-1ms"],
    "tierline.io/training": ["true", "false"],
    "tierline.io/budget": ["1Gi", "64Mi", "1", "0", "512m"],
    "tierline.io/reserved": ["0", "64Mi", "65Mi", "2Gi", "1GB"],
    "tierline.io/tiers": ["dram", "dram,nvme", "nvme , dram", "dram,dram", "peer,dram", ""],
    "tierline.io/policy": ["Auto", "Resident", "Stream", "Swap", "swap"],
    "tierline.io/on-budget-exceeded": ["Fail", "Spill", "true"],
    "tierline.io/device": ["cpu", "cuda", "gpu"],
    "tierline.io/model": ["H200", "x" * 128, "x" * 129, ""],
    "tierline.io/profile": ["camera-v2", "camera.v2", "Camera", "a" * 63, "a" * 64, "a\n"],
}


@settings(max_examples=500, deadline=None)
@given(
    st.fixed_dictionaries(
        {name: st.sampled_from(WORDS[name]) for name in INLINE_NEEDED[1:]},
        optional={
            name: st.sampled_from(words)
            for name, words in WORDS.items()
            if name not in INLINE_NEEDED[1:]
        },
    )
)
def test_annotations_are_taken_when_the_same_memtask_is(annotations: dict[str, str]) -> None:
    assert WORDS.keys() == INLINE.keys()
    try:
        MemTaskSpec.from_api(spec_of(annotations))
    except ValidationError:
        right = False
    else:
        right = True

    refusal = first(Pod(pod(annotations={"tierline.io/task": "camera", **annotations})))

    assert (refusal is None) == right, refusal


def test_each_rule_of_a_memtask_that_annotations_can_break_is_one_of_pods() -> None:
    assert {rule.field for rule in inline_rules()} == {
        ("realtime", "deadline"),
        ("realtime", "executionTime"),
        ("memory", "reserved"),
        ("swap", "tiers"),
        ("device", "kind"),
    }
    assert {rule.says for rule in inline_rules()} <= {refusal.message for refusal in REFUSALS}


@pytest.mark.parametrize("value", [1073741824, 7, 1.5, True, None])
@pytest.mark.parametrize("name", ["tierline.io/budget", "tierline.io/task"])
def test_an_annotation_that_is_no_text_is_refused(name: str, value: object) -> None:
    wrong = pod(annotations={"tierline.io/task": "camera", **inline()})
    wrong["metadata"]["annotations"][name] = value

    with pytest.raises(RefusedError, match=f"the annotation {name} is no text"):
        injected(wrong)


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (pod(container(envFrom=[{"secretRef": {"name": "x"}}])), "Tierline's hides it"),
        (
            pod(
                container(resources={"claims": [{"name": "gpu"}]}),
                resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            ),
            "it has two owners",
        ),
    ],
)
def test_what_may_be_wrong_is_warned_of(manifest: Manifest, says: str) -> None:
    (sentence,) = warned(manifest)
    assert sentence.startswith("Pod camera-1: ")
    assert says in sentence


def test_a_preload_in_env_is_merged_so_nobody_is_warned() -> None:
    both = container(envFrom=[{"secretRef": {"name": "x"}}], env=[preload("/a.so")])
    assert warned(pod(both)) == []
    assert warned(pod(container(envFrom=[{"secretRef": {"name": "x"}}]), annotations={})) == []


def test_every_inline_annotation_is_known() -> None:
    assert set(INLINE) <= set(KNOWN)
    injected(pod(annotations=inline()))


def test_sentences_are_short_and_say_what_to_do() -> None:
    for refusal in REFUSALS:
        assert len(refusal.message) < 300
        assert not refusal.message.endswith(".")


def test_what_is_checked_in_is_what_the_definition_says() -> None:
    assert generate.main(["--check", str(FILES)]) == 0
