"""What is written into pods, without a cluster; the server's side is compared with it elsewhere."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from tests.unit.pods.pod_cases import (
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

from tierline_api.optin import INLINE
from tierline_api.pods import generate
from tierline_api.pods.inject import TEMPLATES, RefusedError, injected
from tierline_api.pods.refusals import KNOWN, REFUSALS

FILES = Path(__file__).parents[3] / "charts" / "tierline" / "files"


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


def test_every_inline_annotation_is_known() -> None:
    assert set(INLINE) <= set(KNOWN)
    injected(pod(annotations=inline()))


def test_sentences_are_short_and_say_what_to_do() -> None:
    for refusal in REFUSALS:
        assert len(refusal.message) < 300
        assert not refusal.message.endswith(".")


def test_what_is_checked_in_is_what_the_definition_says() -> None:
    assert generate.main(["--check", str(FILES)]) == 0
