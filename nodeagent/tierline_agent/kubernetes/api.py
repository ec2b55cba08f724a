"""The API server in plain JSON: the `kubernetes` client's configuration, TLS and connections, and
none of its models.

Every refusal is a `KubeError` (with `NotFound` and `Conflict` below it) that says what was asked;
no answer at all is `Unreachable`, and the request may or may not have been carried out.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from tierline_agent.errors import AgentError, ConfigError
from tierline_api.base import API_VERSION

Json = dict[str, Any]
_MANAGER: Final = "tierline-agent"
_APPLY: Final = "application/apply-patch+yaml"
_PAGE: Final = 500
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15)
_WATCH_S: Final = 300
"""The server ends a watch after so long; the next one begins with a list."""


class KubeError(AgentError):
    """The API server refused a request."""

    def __init__(self, asked: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{asked}: {status} {reason}: {message}")
        self.status = status


class NotFound(KubeError):  # noqa: N818 - the API's own word
    """There is no such object."""


class Conflict(KubeError):  # noqa: N818 - the API's own word
    """The object exists already, or is another one by now."""


class Unreachable(AgentError):  # noqa: N818 - a state, not a mistake
    """The API server did not answer."""


@dataclass(frozen=True)
class Resource:
    """A kind as addresses name it."""

    group_version: str
    kind: str
    plural: str

    def address(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """The path of an object, or of a collection."""
        root = "apis" if "/" in self.group_version else "api"
        parts = [root, self.group_version]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [self.plural]
        parts += [quote(name, safe="")] if name else []
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)


NODE: Final = Resource("v1", "Node", "nodes")
CLAIM: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
SLICE: Final = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices")
MEMNODE: Final = Resource(API_VERSION, "MemNode", "memnodes")
MEMPROFILE: Final = Resource(API_VERSION, "MemProfile", "memprofiles")
EVENT: Final = Resource("events.k8s.io/v1", "Event", "events")


class Kube:
    """Requests to one API server."""

    def __init__(self) -> None:
        self._client: client.ApiClient | None = None

    async def __aenter__(self) -> Self:
        """Read the configuration: a pod's service account, or KUBECONFIG. Raises ConfigError."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                await config.load_kube_config(
                    config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
                )
            except config.ConfigException as error:
                raise ConfigError(
                    "cannot find a cluster: this is no pod with a service account, and KUBECONFIG "
                    f"names no usable file ({error}); set KUBECONFIG or leave out kubernetes"
                ) from error
        self._client = client.ApiClient(configuration)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Json:
        """Read an object."""
        return await self._ask("GET", resource.address(name, namespace))

    async def create(self, resource: Resource, body: Json) -> Json:
        """Create an object; raises Conflict if it exists."""
        address = resource.address(namespace=body["metadata"].get("namespace", ""))
        return await self._ask("POST", address, body, query={"fieldManager": _MANAGER})

    async def apply(self, resource: Resource, body: Json, subresource: str = "") -> Json:
        """Set the fields in `body`, which are this agent's from then on."""
        metadata = body["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        address = resource.address(name, namespace, subresource)
        query = {"fieldManager": _MANAGER, "force": "true"}
        whole = {"apiVersion": resource.group_version, "kind": resource.kind, **body}
        return await self._ask("PATCH", address, whole, how=_APPLY, query=query)

    async def list_all(self, resource: Resource, selector: str) -> tuple[list[Json], str]:
        """All objects that `selector` names, and the version from which to watch them."""
        items: list[Json] = []
        query = {"limit": str(_PAGE), "labelSelector": selector}
        while True:
            page = await self._ask("GET", resource.address(), query=query)
            items += page["items"]
            following = page["metadata"].get("continue")
            if not following:
                return items, str(page["metadata"]["resourceVersion"])
            query["continue"] = following

    async def watch(
        self, resource: Resource, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield what happens from `version` on: ADDED, MODIFIED or DELETED, and the object.

        Ends when the server ends it.

        Raises:
            KubeError: `version` is too old, or the watch is refused.
            Unreachable: the connection broke.
        """
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        address = resource.address()
        patience = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=_WATCH_S + 30)
        answer = await self._send("GET", address, None, "application/json", query, patience)
        try:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    said = event["object"]
                    code, reason = int(said.get("code", 0)), str(said.get("reason", ""))
                    raise KubeError(f"watch {address}", code, reason, str(said.get("message", "")))
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"the watch of {address} broke: {error!r}") from error
        finally:
            answer.close()

    async def _ask(
        self,
        method: str,
        address: str,
        body: Json | None = None,
        *,
        how: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        answer = await self._send(method, address, body, how, query, _TIMEOUT)
        try:
            value: Json = json.loads(await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {address} got no answer: {error!r}") from error
        return value

    async def _send(
        self,
        method: str,
        address: str,
        body: Json | None,
        how: str,
        query: Mapping[str, str] | None,
        patience: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._client is None:
            raise RuntimeError("cannot ask the API server: the client is not open")
        asked = f"{method} {address}"
        headers = {"Accept": "application/json", "Content-Type": how}
        await self._client.update_params_for_auth(
            headers, [], ["BearerToken"], address, method, body
        )
        url = f"{self._client.configuration.host}{address}"
        url += f"?{urlencode(query)}" if query else ""
        try:
            asked_for = await self._client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=patience
            )
            answer: aiohttp.ClientResponse = asked_for.response
            if answer.status < 400:
                return answer
            data = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{asked} got no answer: {error!r}") from error
        raise _refusal(asked, answer.status, data)


def _refusal(asked: str, status: int, data: bytes) -> AgentError:
    try:
        said = json.loads(data)
        reason, message = str(said.get("reason", "")), str(said.get("message", ""))
    except ValueError:
        reason, message = "", data[:300].decode(errors="replace")
    if status in {429, 500, 502, 503, 504}:
        return Unreachable(f"{asked}: {status} {reason}: {message}")
    kind = {404: NotFound, 409: Conflict}.get(status, KubeError)
    return kind(asked, status, reason, message)
