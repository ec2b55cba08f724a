"""What a pod that is measured wrote, as its word and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.dra.claims import NODE, claim, notes
from tests.unit.agent.loops import in_loop
from tests.unit.api.api_objects import node as inventory

from tierline_agent.kubernetes.description import MEASURED, PROFILE
from tierline_agent.kubernetes.folders import PodFolders
from tierline_agent.kubernetes.grants import Grant, grant_of
from tierline_agent.kubernetes.measuring import Measuring, Unusable, profile_of
from tierline_api.memnode import MemNode
from tierline_kube.client import Kube

DEVICE = MemNode.from_api(inventory()).status.devices[0]
LAYER = {"name": "a", "bytes": 4096, "compute_s": 0.001, "pinned": False, "arena": 0}


def measured(terms: dict[str, Any] | None = None) -> Grant:
    return grant_of(claim(annotations=notes("Profiling", terms=terms)), NODE)


def written(**changes: Any) -> str:
    profile = {"layers": [LAYER], "workspace_bytes": 10, "weights_digest": "", "compute_s": [0.1]}
    output = {"output": {"input": "00", "output": "00", "compute_s": 0.1}}
    return "\n".join(json.dumps(line) for line in (output, {"profile": profile | changes})) + "\n"


def test_a_profile_has_the_name_of_its_task_or_the_one_it_names() -> None:
    found = profile_of(written(), measured(), DEVICE)
    assert found is not None
    assert (found.metadata.namespace, found.name) == ("default", "camera")
    assert found.spec.device.product == DEVICE.product
    assert found.spec.workspace_bytes == 10
    assert [layer.bytes for layer in found.spec.layers] == [4096]

    named = profile_of(written(), measured({"profile": "lens"}), DEVICE)
    assert named is not None
    assert named.name == "lens"


def test_outputs_alone_are_no_profile_yet() -> None:
    assert profile_of("", measured(), DEVICE) is None
    assert profile_of(written().splitlines()[0], measured(), DEVICE) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"profile": {', id="cut off"),
        pytest.param('{"profile": []}', id="of another shape"),
        pytest.param('{"profile":' + "[" * 100_000, id="without end"),
        pytest.param(written(layers=[]), id="no layers"),
        pytest.param(written(layers=[LAYER | {"bytes": -1}]), id="less than nothing"),
        pytest.param(written(layers=[LAYER] * 5000), id="too many layers"),
        pytest.param(written(weights_digest="x"), id="no digest"),
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(Unusable, match="wrote a profile that cannot be used"):
        profile_of(text, measured(), DEVICE)


@in_loop
async def test_who_is_measured_is_looked_at_often_and_scolded_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measuring, grant = Measuring(Kube("test"), PodFolders(tmp_path)), measured()
    assert not measuring.awaits([None, grant_of(claim(), NODE)])
    wrote = tmp_path / grant.uid / MEASURED / PROFILE
    wrote.parent.mkdir(parents=True)
    wrote.write_text(written(layers=[]))
    for _ in range(2):
        assert measuring.awaits([None, grant])
        await measuring.look([grant], [DEVICE])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
