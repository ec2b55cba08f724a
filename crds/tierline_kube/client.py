"""Requests to one API server: the `kubernetes` client's configuration, TLS, tokens and connections,
and none of its models, which would check every object of a watch a second time.

Every failure is one of `errors`, with what was asked in its sentence. Nothing is tried again here.
A service account's token is read again every minute, because kubelets replace it.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from tierline_kube.errors import (
    Conflict,
    Ending,
    KubeError,
    NoCluster,
    NotFound,
    Refused,
    Unreachable,
)
from tierline_kube.resource import Json, Resource

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
"""Of Kubernetes' own kinds: lists are merged by what their elements are told apart by."""
APPLY: Final = "application/apply-patch+yaml"
BOOKMARK: Final = "BOOKMARK"
"""Of a watch: nothing else happened, up to the version of an object that has nothing but that."""
_PLAIN: Final = "application/json"
_METADATA: Final = f"{_PLAIN};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE: Final = 500
_WATCH_S: Final = 300
"""The server ends a watch after so long."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15)
_WATCH_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=_WATCH_S + 30)
_NOT_NOW: Final = frozenset({429, 500, 502, 503, 504})
"""Answers that say nothing about the request itself."""
_ENDING: Final = "NamespaceTerminating"
"""The cause of a refusal to make something in a namespace that is being deleted."""

Count = Callable[[str, str], None]
"""Hears of each request: its method, and the status code of the answer or `error` for none."""


@dataclass(frozen=True)
class Listing:
    """All objects of a kind, and the version from which to watch them."""

    items: list[Json]
    version: str


@dataclass(frozen=True)
class Login:
    """A person's way to the API server, as kubectl has it."""

    kubeconfig: str | None = None
    """The file; None is KUBECONFIG, or ~/.kube/config."""
    context: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with each request: the user to ask as."""


class Kube:
    """Requests to one API server; `manager` has the fields that are applied."""

    def __init__(
        self,
        manager: str,
        count: Count = lambda _method, _outcome: None,
        login: Login | None = None,
    ) -> None:
        self._manager = manager
        self._count = count
        self._login = login
        self._client: client.ApiClient | None = None

    async def __aenter__(self) -> Self:
        """Read the configuration: a pod's service account, or KUBECONFIG. Raises NoCluster."""
        configuration = client.Configuration()
        if self._login is not None:
            await self._log_in(configuration, self._login)
        else:
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                await self._log_in(configuration, Login(os.environ.get("KUBECONFIG")))
        # Else the environment is asked for a proxy before each request, in another thread.
        configuration.client_session_kwargs = {"trust_env": _by_proxy(configuration.host)}
        self._client = client.ApiClient(configuration)
        return self

    @staticmethod
    async def _log_in(configuration: client.Configuration, login: Login) -> None:
        try:
            await config.load_kube_config(
                config_file=login.kubeconfig,
                context=login.context,
                client_configuration=configuration,
            )
        except config.ConfigException as error:
            raise NoCluster(
                "cannot find a cluster: this is no pod with a service account, and KUBECONFIG "
                f"names no usable file ({error}); set KUBECONFIG"
            ) from error

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Read an object."""
        return await self._ask("GET", resource.address(namespace, name))

    async def list_all(self, resource: Resource, namespace: str = "") -> Listing:
        """Read all objects of a kind, or those of a namespace, as they are now, page by page."""
        return await self._pages(resource, namespace, _PLAIN)

    async def list_metadata(self, resource: Resource) -> list[Json]:
        """Read the metadata of all objects of a kind, and nothing else of them."""
        found = await self._pages(resource, "", _METADATA)
        return [item["metadata"] for item in found.items]

    async def _pages(self, resource: Resource, namespace: str, accept: str) -> Listing:
        items: list[Json] = []
        query = _selecting(resource) | {"limit": str(_PAGE)}
        while True:
            address = resource.address(namespace)
            page = await self._ask("GET", address, query=query, accept=accept)
            items += page["items"] or ()  # of metadata alone, none is null
            following = page["metadata"].get("continue")
            if not following:
                return Listing(items, str(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    async def watch(
        self, resource: Resource, version: str
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield what happens from `version` on: ADDED, MODIFIED or DELETED, and the object.

        Ends when the server ends it. However it ends, begin again at the version of the last object
        seen, or with a listing. A BOOKMARK now and then keeps that version young where little
        happens: the server forgets old ones.

        Raises:
            Refused: also when `version` is too old (410), at once or on the way.
            Unreachable: the connection broke, or was silent for longer than a watch lasts.
        """
        query = _selecting(resource) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        address = resource.address()
        asked = f"watch {address}"
        with self._answering("GET", asked):
            answer = await self._send("GET", address, None, _PLAIN, query, _WATCH_TIMEOUT)
            try:
                self._count("GET", str(answer.status))
                if answer.status >= 400:
                    raise _failure(asked, answer.status, _said(await answer.read()))
                rest = b""  # a line may be longer than what aiohttp takes for one
                async for data in answer.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            said = event["object"]
                            raise _failure(asked, int(said.get("code", 0)), said)
                        yield event["type"], event["object"]
                if rest:
                    raise ValueError("the last event is cut off")
            finally:
                _break_off(answer)

    async def create(self, resource: Resource, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object, or ask what would become of it; raises Conflict if it exists."""
        address = resource.address(body["metadata"].get("namespace", ""))
        query = {"fieldManager": self._manager} | ({"dryRun": "All"} if dry_run else {})
        return await self._ask("POST", address, body, query=query)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object; raises NotFound if there is none."""
        await self._ask("DELETE", resource.address(namespace, name))

    async def replace(self, resource: Resource, body: Json) -> Json:
        """Replace an object; its resourceVersion must still be the one given."""
        metadata = body["metadata"]
        address = resource.address(metadata.get("namespace", ""), metadata["name"])
        return await self._ask("PUT", address, body, query={"fieldManager": self._manager})

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json | list[Json],
        *,
        how: str = MERGE,
        subresource: str = "",
    ) -> Json:
        """Change an object: MERGE, STRATEGIC, JSON_PATCH or APPLY."""
        query = {"fieldManager": self._manager} | ({"force": "true"} if how == APPLY else {})
        address = resource.address(namespace, name, subresource)
        return await self._ask("PATCH", address, body, how=how, query=query)

    async def apply(self, resource: Resource, body: Json, subresource: str = "") -> Json:
        """Set the fields in `body`, which are this manager's from then on."""
        metadata = body["metadata"]
        whole = {"apiVersion": resource.group_version, "kind": resource.kind, **body}
        where = (metadata.get("namespace", ""), metadata["name"])
        return await self.patch(resource, *where, whole, how=APPLY, subresource=subresource)

    async def _ask(
        self,
        method: str,
        address: str,
        body: Json | list[Json] | None = None,
        *,
        how: str = _PLAIN,
        query: Mapping[str, str] | None = None,
        accept: str = _PLAIN,
    ) -> Json:
        asked = f"{method} {address}"
        with self._answering(method, asked):
            sent = (method, address, body, how, query or {}, _TIMEOUT)
            answer = await self._send(*sent, accept=accept)
            data = await answer.read()
            self._count(method, str(answer.status))
            if answer.status >= 400:
                raise _failure(asked, answer.status, _said(data))
            value: Json = json.loads(data)
            return value

    async def _send(
        self,
        method: str,
        address: str,
        body: Json | list[Json] | None,
        how: str,
        query: Mapping[str, str],
        patience: aiohttp.ClientTimeout,
        accept: str = _PLAIN,
    ) -> aiohttp.ClientResponse:
        if self._client is None:
            raise RuntimeError("cannot ask the API server: the client is not open")
        headers = {"Accept": accept, "Content-Type": how}
        headers |= self._login.headers if self._login else ()
        await self._client.update_params_for_auth(
            headers, [], ["BearerToken"], address, method, body
        )
        url = f"{self._client.configuration.host}{address}"
        url += f"?{urlencode(query)}" if query else ""
        sent = await self._client.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=patience
        )
        answer: aiohttp.ClientResponse = sent.response
        return answer

    @contextmanager
    def _answering(self, method: str, asked: str) -> Iterator[None]:
        """Say what was asked when there is no answer, or none that can be read."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self._count(method, "error")
            raise Unreachable(f"{asked} got no answer: {error!r}") from error
        except config.ConfigException as error:  # while a token is renewed
            raise Unreachable(f"{asked}: cannot read credentials: {error}") from error


def _by_proxy(address: str) -> bool:
    """Whether the environment names a proxy for this address."""
    parts = urlsplit(address)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def _break_off(answer: aiohttp.ClientResponse) -> None:
    """Close the connection of an answer that nobody reads to its end.

    Not in order, which takes the server's part: nobody waits for that, and the loop may end first.
    """
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def _selecting(resource: Resource) -> dict[str, str]:
    return {"labelSelector": resource.selector} if resource.selector else {}


def _said(data: bytes) -> Json:
    """The Status in the body of a refusal; a proxy on the way says something else."""
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"message": data[:300].decode(errors="replace")}


def _failure(asked: str, status: int, said: Json) -> KubeError:
    """What an answer with this status code means."""
    reason, message = str(said.get("reason", "")), str(said.get("message", ""))
    if status in _NOT_NOW:
        return Unreachable(f"{asked}: {status} {reason}: {message}")
    causes = (said.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == _ENDING for cause in causes):
        return Ending(asked, status, reason, message)
    kind = {404: NotFound, 409: Conflict}.get(status, Refused)
    return kind(asked, status, reason, message)
