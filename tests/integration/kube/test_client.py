"""The client of the API server: towards a real one, and towards one that answers badly."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.unit.agent.loops import in_loop

from tierline_cluster.control_plane import ControlPlane
from tierline_kube import client
from tierline_kube.client import JSON_PATCH, Kube
from tierline_kube.errors import Conflict, NoCluster, NotFound, Refused, Unreachable
from tierline_kube.events import Reporter, event
from tierline_kube.resource import CLAIM, EVENT, MEMNODE, Json, Resource

MAPS = Resource("v1", "ConfigMap", "configmaps")
PATIENCE_S = 120.0


@pytest.fixture
def namespace(api_server: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace of the API server that clients find."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    return api_server.namespace()


def config_map(namespace: str, name: str, **data: str) -> Json:
    metadata = {"namespace": namespace, "name": name, "labels": {"of": namespace}}
    return {"metadata": metadata, "data": data}


@in_loop
async def test_what_is_there_or_has_changed_is_told_apart(namespace: str) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    async with Kube("tests", lambda *request: asked.update([request])) as kube:
        with pytest.raises(NotFound, match=r'GET .*/configmaps/a: 404 NotFound: .*"a" not found'):
            await kube.get(MAPS, namespace, "a")
        first = await kube.create(MAPS, config_map(namespace, "a", x="1"))
        with pytest.raises(Conflict, match="already exists"):
            await kube.create(MAPS, config_map(namespace, "a"))

        changed = await kube.patch(MAPS, namespace, "a", {"data": {"x": "2"}})
        assert changed["data"] == {"x": "2"}
        with pytest.raises(Conflict, match="has been modified"):
            await kube.replace(MAPS, first)
        stale = {"op": "test", "path": "/data/x", "value": "1"}
        with pytest.raises(Refused) as refusal:
            await kube.patch(MAPS, namespace, "a", [stale], how=JSON_PATCH)
        assert refusal.value.status == 422
        assert (await kube.replace(MAPS, changed | {"data": {"y": "3"}}))["data"] == {"y": "3"}

    assert asked["GET", "404"] == 1
    assert asked["POST", "409"] + asked["PUT", "409"] == 2


@in_loop
async def test_applied_fields_belong_to_the_manager(namespace: str) -> None:
    async with Kube("tests") as kube, Kube("others") as other:
        await other.apply(MAPS, config_map(namespace, "a", x="1", y="1"))
        await kube.apply(MAPS, config_map(namespace, "a", x="2"))
        assert (await kube.get(MAPS, namespace, "a"))["data"] == {"x": "2", "y": "1"}
        await kube.apply(MAPS, {"metadata": {"namespace": namespace, "name": "a"}})
        assert (await kube.get(MAPS, namespace, "a"))["data"] == {"y": "1"}


@in_loop
async def test_a_watch_goes_on_where_a_listing_in_pages_ended(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)
    own = MAPS.selected(f"of={namespace}")
    names = [f"map-{number}" for number in range(5)]
    async with Kube("tests") as kube, asyncio.timeout(PATIENCE_S):
        for name in names:
            await kube.create(MAPS, config_map(namespace, name))
        listing = await kube.list_all(own)
        assert [found["metadata"]["name"] for found in listing.items] == names

        unseen = config_map(namespace, "unseen")
        await kube.create(MAPS, unseen | {"metadata": unseen["metadata"] | {"labels": {}}})
        await kube.patch(MAPS, namespace, names[0], {"data": {"x": "1"}})
        await kube.patch(MAPS, namespace, names[1], {"metadata": {"labels": None}})
        await kube.create(MAPS, config_map(namespace, "late"))
        async with aclosing(kube.watch(own, listing.version)) as seen:
            told = [await anext(seen) for _ in range(3)]
    assert [(kind, found["metadata"]["name"]) for kind, found in told] == [
        ("MODIFIED", names[0]),
        ("DELETED", names[1]),
        ("ADDED", "late"),
    ]


@in_loop
async def test_an_object_of_a_watch_may_be_as_large_as_the_server_takes(namespace: str) -> None:
    own = MAPS.selected(f"of={namespace}")
    async with Kube("tests") as kube, asyncio.timeout(PATIENCE_S):
        start = (await kube.list_all(own)).version
        for name in ("large", "small"):
            await kube.create(MAPS, config_map(namespace, name, x=name * 200_000))
        async with aclosing(kube.watch(own, start)) as seen:
            told = [(await anext(seen))[1]["data"]["x"] for _ in range(2)]
    assert told == ["large" * 200_000, "small" * 200_000]


@in_loop
async def test_a_watch_says_now_and_then_up_to_where_nothing_happened(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_WATCH_S", 5)  # the server says it before the end, too
    own = MAPS.selected(f"of={namespace}")
    async with Kube("tests") as kube, asyncio.timeout(PATIENCE_S):
        start = (await kube.list_all(own)).version
        await kube.create(MAPS, config_map(namespace, "seen"))
        async with aclosing(kube.watch(own, start)) as seen:
            assert (await anext(seen))[0] == "ADDED"
            unseen = config_map(namespace, "unseen")
            metadata = unseen["metadata"] | {"labels": {}}
            there = await kube.create(MAPS, unseen | {"metadata": metadata})
            kind, mark = await anext(seen)
    assert kind == client.BOOKMARK
    versions = [int(one["metadata"]["resourceVersion"]) for one in (there, mark)]
    assert versions[0] <= versions[1]


@in_loop
async def test_a_version_that_is_too_old_is_refused(namespace: str) -> None:
    async def watched(kube: Kube) -> None:
        while True:
            try:
                await anext(kube.watch(MEMNODE, "1"))  # older than its CRD
            except Unreachable:  # the server has begun to serve the kind, and reads it first
                await asyncio.sleep(0.05)

    async with Kube("tests") as kube, asyncio.timeout(PATIENCE_S):
        with pytest.raises(Refused, match=r"watch .*/memnodes: 410 Expired: too old") as refusal:
            await watched(kube)
    assert refusal.value.status == 410


@in_loop
async def test_events_are_taken_as_they_are_made(namespace: str) -> None:
    about = CLAIM.reference({"namespace": namespace, "name": "c" * 250, "uid": "1"})
    told = event(
        Reporter("tierline.io/tests", "here", "Test"),
        *(about, "Tested", "a note of" + " many" * 1000, time.time_ns()),
        normal=True,
    )
    async with Kube("tests") as kube:
        made = await kube.create(EVENT, told)
        found = await kube.get(EVENT, namespace, made["metadata"]["name"])
    assert (found["reason"], found["regarding"]["name"]) == ("Tested", "c" * 250)


@asynccontextmanager
async def answering(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, *, cut: bool = False
) -> AsyncIterator[Kube]:
    """A client of a server that answers everything like this; `cut` breaks the answer off."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        response.content_length = len(body) + cut
        response.force_close()
        await response.prepare(request)
        await response.write(body)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        named_here(folder, monkeypatch, runner.addresses[0][1])
        async with Kube("tests") as kube, asyncio.timeout(PATIENCE_S):
            yield kube
    finally:
        await runner.cleanup()


def named_here(folder: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Let KUBECONFIG name a server on this machine."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(path))


SAID = json.dumps({"reason": "TooManyRequests", "message": "come back later"}).encode()
GONE = {"code": 410, "reason": "Expired", "message": "too old resource version"}


@pytest.mark.parametrize(
    ("status", "body", "cut"),
    [
        pytest.param(429, SAID, False, id="too many requests"),
        pytest.param(503, b"no healthy upstream", False, id="a proxy in between"),
        pytest.param(200, b'{"items": [', True, id="a broken connection"),
        pytest.param(200, b"<html>", False, id="no JSON"),
    ],
)
@in_loop
async def test_what_says_nothing_about_the_request_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, *, cut: bool
) -> None:
    async with answering(tmp_path, monkeypatch, status, body, cut=cut) as kube:
        with pytest.raises(Unreachable, match="GET /api/v1/namespaces/n/configmaps/a"):
            await kube.get(MAPS, "n", "a")
        with pytest.raises(Unreachable, match="watch /api/v1/configmaps"):
            await anext(kube.watch(MAPS, "1"))


@in_loop
async def test_a_refusal_in_other_words_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(tmp_path, monkeypatch, 403, b"<html>go away</html>") as kube:
        with pytest.raises(Refused, match="403 : <html>go away"):
            await kube.list_all(MAPS)


@in_loop
async def test_a_watch_that_becomes_too_old_on_its_way_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        {"type": "ADDED", "object": {"metadata": {"name": "a"}}},
        {"type": "ERROR", "object": GONE},
    ]
    body = b"".join(json.dumps(one).encode() + b"\n" for one in events)
    async with answering(tmp_path, monkeypatch, 200, body) as kube:
        watch = kube.watch(MAPS, "1")
        assert await anext(watch) == ("ADDED", {"metadata": {"name": "a"}})
        with pytest.raises(Refused, match="410 Expired"):
            await anext(watch)


@in_loop
async def test_a_server_that_is_not_there_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        named_here(tmp_path, monkeypatch, taken.getsockname()[1])
        async with Kube("tests") as kube:
            with pytest.raises(Unreachable, match="GET /api/v1/configmaps"):
                await kube.list_all(MAPS)


@in_loop
async def test_nothing_names_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(NoCluster, match=r"KUBECONFIG names no usable file .*set KUBECONFIG"):
        await Kube("tests").__aenter__()
