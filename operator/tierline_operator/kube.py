"""The API server in plain JSON: the `kubernetes` client's configuration, TLS and connections, and
none of its models, which would check every object of a watch a second time.

Every refusal is one of the errors below, chained to nothing the caller must know:
`KubeError` ← `Conflict` (someone changed the object first: read it again) and `NotFound`;
`Unreachable` (no answer: try again later); `NoCluster` (nothing says where it is).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from tierline_operator.metrics import API_REQUESTS, CONFLICTS

Json = dict[str, Any]
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
MANAGER: Final = "tierline-operator"
"""The field manager of everything that the operator applies."""
_PAGE: Final = 500
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15)


class KubeError(Exception):
    """The API server refused a request: its status code, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class Conflict(KubeError):  # noqa: N818 - the API's own word
    """The object changed since it was read, or exists already."""


class NotFound(KubeError):  # noqa: N818 - the API's own word
    """There is no such object."""


class Unreachable(Exception):  # noqa: N818 - a state, not a mistake
    """The API server did not answer; the request may or may not have been carried out."""


class NoCluster(Exception):  # noqa: N818 - a state, not a mistake
    """Nothing says where the API server is."""


@dataclass(frozen=True)
class Resource:
    """A kind as addresses name it."""

    group_version: str
    kind: str
    plural: str
    namespaced: bool = True
    selector: str = ""
    """A label selector: only such objects concern the operator."""

    def address(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of a collection."""
        root = "apis" if "/" in self.group_version else "api"
        parts = [root, self.group_version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(name, safe="")] if name else []
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)


class Kube:
    """Requests to one API server."""

    def __init__(self) -> None:
        self._client: client.ApiClient | None = None

    async def __aenter__(self) -> Self:
        """Read the configuration: in the cluster, or a kubeconfig's."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                await config.load_kube_config(
                    config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
                )
            except config.ConfigException as error:
                raise NoCluster(
                    "cannot find a cluster: this is no pod with a service account, and KUBECONFIG "
                    f"names no usable file ({error}); set KUBECONFIG"
                ) from error
        self._client = client.ApiClient(configuration)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Read an object."""
        return await self._request("GET", resource.address(namespace, name))

    async def list_all(self, resource: Resource) -> list[Json]:
        """Read all objects of a kind as they are now, page by page."""
        items: list[Json] = []
        query = {"limit": str(_PAGE)}
        query |= {"labelSelector": resource.selector} if resource.selector else {}
        while True:
            page = await self._request("GET", resource.address(), query=query)
            items += page["items"]
            following = page["metadata"].get("continue")
            if not following:
                return items
            query["continue"] = following

    async def create(self, resource: Resource, body: Json) -> Json:
        """Create an object; raises Conflict if it exists."""
        namespace = body["metadata"].get("namespace", "")
        address = resource.address(namespace)
        return await self._request("POST", address, body, query={"fieldManager": MANAGER})

    async def replace(self, resource: Resource, body: Json) -> Json:
        """Replace an object; its resourceVersion must still be the one given."""
        metadata = body["metadata"]
        address = resource.address(metadata.get("namespace", ""), metadata["name"])
        return await self._request("PUT", address, body, query={"fieldManager": MANAGER})

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
        """Change an object."""
        query = {"fieldManager": MANAGER} | ({"force": "true"} if how == APPLY else {})
        address = resource.address(namespace, name, subresource)
        return await self._request("PATCH", address, body, how=how, query=query)

    async def _request(
        self,
        method: str,
        address: str,
        body: Json | list[Json] | None = None,
        *,
        how: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        if self._client is None:
            raise RuntimeError("cannot ask the API server: the client is not open")
        headers = {"Accept": "application/json", "Content-Type": how}
        await self._client.update_params_for_auth(
            headers, [], ["BearerToken"], address, method, body
        )
        url = f"{self._client.configuration.host}{address}"
        url += f"?{urlencode(query)}" if query else ""
        try:
            answer = await self._client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=_TIMEOUT
            )
            data = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            API_REQUESTS.labels(method, "error").inc()
            raise Unreachable(f"{method} {address} got no answer: {error}") from error
        API_REQUESTS.labels(method, str(answer.status)).inc()
        if answer.status >= 400:
            raise _error(answer.status, data)
        value: Json = json.loads(data)
        return value


def _error(status: int, data: bytes) -> Exception:
    try:
        said = json.loads(data)
        reason, message = str(said.get("reason", "")), str(said.get("message", ""))
    except ValueError:
        reason, message = "", data[:300].decode(errors="replace")
    if status in {429, 500, 502, 503, 504}:
        return Unreachable(f"{status} {reason}: {message}")
    if status == 409:
        CONFLICTS.inc()
        return Conflict(status, reason, message)
    if status == 404:
        return NotFound(status, reason, message)
    return KubeError(status, reason, message)
