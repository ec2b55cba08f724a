"""What a pod that is measured wrote, as its word and no more."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.dra.claims import NODE, claim, notes
from tests.unit.agent.loops import in_loop
from tests.unit.api.api_objects import node as inventory

from tierline_agent.kubernetes import measuring as of_pods
from tierline_agent.kubernetes.description import MEASURED, PROFILE, UNMEASURED
from tierline_agent.kubernetes.folders import PodFolders
from tierline_agent.kubernetes.grants import Grant, grant_of
from tierline_agent.kubernetes.judging import Subject, profile_of
from tierline_agent.kubernetes.measuring import Measuring
from tierline_agent.kubernetes.service import Service
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.observed import ObservedProfile
from tierline_kube.client import Kube
from tierline_kube.errors import Refused
from tierline_kube.resource import MEMPROFILE, Json, Resource

DEVICE = MemNode.from_api(inventory()).status.devices[0]
SUBJECT = Subject("default", "camera", "cpu", DEVICE.product)
LAYER = {"name": "a", "bytes": 4096, "compute_s": 0.001, "pinned": False, "arena": 0}


def measured(terms: dict[str, Any] | None = None) -> Grant:
    return grant_of(claim(annotations=notes("Profiling", terms=terms)), NODE)


def written(**changes: Any) -> str:
    profile = {"layers": [LAYER], "workspace_bytes": 10, "weights_digest": "", "compute_s": [0.1]}
    output = {"output": {"input": "00", "output": "00", "compute_s": 0.1}}
    return "\n".join(json.dumps(line) for line in (output, {"profile": profile | changes})) + "\n"


class Recorder(Kube):
    """Takes every object, but for those of a namespace that is full."""

    def __init__(self, full: str = "") -> None:
        super().__init__("test")
        self._full = full
        self.made: list[Json] = []

    def has_room(self) -> None:
        self._full = ""

    async def create(self, resource: Resource, body: Json, *, dry_run: bool = False) -> Json:
        assert resource is MEMPROFILE
        assert not dry_run
        if body["metadata"]["namespace"] == self._full:
            raise Refused("POST", 403, "Forbidden", "exceeded quota")
        self.made.append(body)
        return body


def wrote(folder: Path, grant: Grant, text: str) -> Path:
    path = folder / grant.uid / MEASURED / PROFILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@in_loop
async def test_a_profile_has_the_name_of_its_task_or_the_one_it_names(tmp_path: Path) -> None:
    kube, grants = Recorder(), [measured(), measured({"profile": "lens"})]
    measuring = Measuring(kube, PodFolders(tmp_path))
    for grant in grants:
        wrote(tmp_path, grant, written())
    await measuring.look(grants, [DEVICE])
    found, named = (MemProfile.from_api(body) for body in kube.made)

    assert (found.metadata.namespace, found.name) == ("default", "camera")
    assert found.spec.device.product == DEVICE.product
    assert found.spec.workspace_bytes == 10
    assert [layer.bytes for layer in found.spec.layers] == [4096]
    assert named.name == "lens"
    assert not measuring.awaits(grants)


@in_loop
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(written().splitlines()[0] + "\n", id="outputs"),
        pytest.param(written().rstrip("\n"), id="not to its end"),
    ],
)
async def test_what_is_no_whole_line_is_no_profile_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    kube, grant = Recorder(), measured()
    measuring = Measuring(kube, PodFolders(tmp_path))
    wrote(tmp_path, grant, text)
    await measuring.look([grant], [DEVICE])
    assert measuring.awaits([grant])
    assert caplog.messages == []
    assert kube.made == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"profile": {', id="cut off"),
        pytest.param('{"profile": []}', id="of another shape"),
        pytest.param('{"profile":' + "[" * 100_000, id="without end"),
        pytest.param(written(layers=[]), id="no layers"),
        pytest.param(written(layers=[LAYER | {"bytes": -1}]), id="less than nothing"),
        pytest.param(written(layers=[LAYER | {"compute_s": 10**400}]), id="no float"),
        pytest.param(written(layers=[LAYER | {"mean_compute_s": 10**400}]), id="no mean"),
        pytest.param(written(layers=[LAYER] * 5000), id="too many layers"),
        pytest.param(written(weights_digest="x"), id="no digest"),
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        profile_of(text.splitlines()[-1], SUBJECT)


@in_loop
async def test_who_is_measured_is_looked_at_often_and_scolded_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measuring, grant = Measuring(Recorder(), PodFolders(tmp_path)), measured()
    assert not measuring.awaits([None, grant_of(claim(), NODE)])
    wrote(tmp_path, grant, written(layers=[]))
    for _ in range(2):
        assert measuring.awaits([None, grant])
        await measuring.look([grant], [DEVICE])
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert "wrote a profile that cannot be used: 1 validation error" in said.message


@in_loop
async def test_what_takes_long_to_parse_takes_the_agent_no_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_pods, "_JUDGING_S", 600.0)  # on a busy machine, too
    measuring, grant = Measuring(Recorder(), PodFolders(tmp_path)), measured()
    text = '{"profile": [' + "[[]]," * 400_000 + "0]}\n"
    began_s = time.process_time()
    with pytest.raises(ValueError, match="written in another way"):
        ObservedProfile.written(text)
    parsed_s = time.process_time() - began_s
    wrote(tmp_path, grant, text)

    began_s = time.process_time()
    await measuring.look([grant], [DEVICE])
    assert time.process_time() - began_s < parsed_s / 2
    (said,) = caplog.records
    assert "written in another way" in said.message


@in_loop
async def test_a_file_is_read_once_in_each_state(tmp_path: Path) -> None:
    kube, grant = Recorder(), measured()
    measuring = Measuring(kube, PodFolders(tmp_path))
    good = written()
    path = wrote(tmp_path, grant, good.replace('"pinned"', '"pinnep"'))
    before = path.stat()
    await measuring.look([grant], [DEVICE])

    path.write_text(good)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await measuring.look([grant], [DEVICE])
    assert not kube.made  # it seems to be as it was

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    await measuring.look([grant], [DEVICE])
    assert len(kube.made) == 1


@in_loop
async def test_who_writes_no_profile_again_and_again_is_given_up(tmp_path: Path) -> None:
    kube, grant = Recorder(), measured()
    measuring = Measuring(kube, PodFolders(tmp_path))
    for number, text in enumerate(("[]", "[" * 5_000_000, "[0]", "[0,0]")):
        assert measuring.awaits([grant]) == (number < 3)
        wrote(tmp_path, grant, f'{{"profile": {text}}}\n')
        await measuring.look([grant], [DEVICE])
    assert (tmp_path / grant.uid / UNMEASURED).exists()
    wrote(tmp_path, grant, written())
    await measuring.look([grant], [DEVICE])
    assert not kube.made


@in_loop
async def test_a_refused_profile_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kube, grant = Recorder(full="default"), measured()
    others = [replace(measured(), namespace="other")]
    measuring = Measuring(kube, PodFolders(tmp_path))
    for one in (grant, *others):
        wrote(tmp_path, one, written())
    for _ in range(2):
        await measuring.look([grant, *others], [DEVICE])
    assert [body["metadata"]["namespace"] for body in kube.made] == ["other"]
    assert [record.levelname for record in caplog.records].count("WARNING") == 1

    assert measuring.awaits([grant])
    kube.has_room()
    await measuring.look([grant], [DEVICE])
    assert [body["metadata"]["namespace"] for body in kube.made] == ["other", "default"]


def _much(folder: Path) -> None:
    (folder / "much").write_bytes(bytes(17 << 20))


def _many(folder: Path) -> None:
    for number in range(100):
        (folder / str(number)).touch()


def _deep(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "much").touch()
    (folder / "elsewhere").symlink_to("deep")


@in_loop
@pytest.mark.parametrize("fill", [_much, _many, _deep])
@pytest.mark.parametrize("standing", ["Profiling", "Planned"])
async def test_who_fills_its_folder_is_given_up_and_loses_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fill: Callable[[Path], None],
    standing: str,
) -> None:
    kube, grant = Recorder(), grant_of(claim(annotations=notes(standing)), NODE)
    measuring = Measuring(kube, PodFolders(tmp_path))
    folder = wrote(tmp_path, grant, written()).parent
    for _ in range(2):
        fill(folder)
        await measuring.look([grant], [DEVICE])
        assert list(folder.iterdir()) == []
    assert not kube.made
    assert not measuring.awaits([grant])
    assert (tmp_path / grant.uid / UNMEASURED).exists() == (standing == "Profiling")
    assert [message for message in caplog.messages if "fills the folder" in message] != []
    assert len(caplog.messages) == (2 if standing == "Profiling" else 1)


@in_loop
async def test_what_nobody_foresaw_ends_no_other_work(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OverflowError("int too large to convert to float")

    await Service._attempt("write what was measured", fail())
    assert caplog.messages == ["cannot write what was measured"]
