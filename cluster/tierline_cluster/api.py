"""Requests to an API server in plain JSON: what a test wants to say, and what the server answers.

Deliberately below any client library: nothing is checked or defaulted here, so a test sees exactly
what the server does with a manifest. Any number of threads, each with a connection that it keeps:
to make one takes both ends longer than most requests do.

A server that is busy is asked again, as every client of Kubernetes does: it says so also of all
objects of a kind whose CRD was made or changed a moment ago.
"""

import http.client
import json
import select
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from .certificates import Certificate

Manifest = dict[str, Any]

_JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_BRIEF: Final = 600
"""Most characters of an object's state in a message."""
_BUSY_S: Final = 60.0
"""For so long a server may be too busy to answer."""
_IDLE_S: Final = 30.0
"""A connection is not used after so long a pause: the server closes it after three times that."""


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Remember the HTTP status, the reason for scripts and the message for people."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Resource(NamedTuple):
    """How a kind is called in addresses."""

    plural: str
    namespaced: bool


@dataclass(frozen=True)
class Identity:
    """A client's proof of itself: a certificate, or a bearer token."""

    certificate: Certificate | None = None
    token: str | None = None


class _Connection(http.client.HTTPSConnection):
    """It closes itself with the thread, or the view, that it is of."""

    used = 0.0

    def __del__(self) -> None:
        self.close()

    def renew(self) -> None:
        """Have the next request make it again, if it is of no use any more."""
        if self.sock is not None:
            ended = select.poll()
            ended.register(self.sock, select.POLLIN)
            if ended.poll(0) or time.monotonic() > self.used + _IDLE_S:
                self.close()


class Api:
    """One identity's view of an API server."""

    def __init__(self, server: str, authority: Path, identity: Identity) -> None:
        """Speak to `server`, whose certificate `authority` signed, as `identity`."""
        self.server = server
        self._authority = authority
        self._token = identity.token
        self._ssl = ssl.create_default_context(cafile=str(authority))
        if identity.certificate is not None:
            pair = identity.certificate
            self._ssl.load_cert_chain(pair.certificate, pair.key)
        self._of_thread = threading.local()
        self._kinds: dict[tuple[str, str], Resource] = {}
        self.warnings: tuple[str, ...] = ()
        """The server's warnings in its last answer, as kubectl prints them."""

    def with_token(self, token: str) -> "Api":
        """Return the view of the holder of a bearer token, such as a service account."""
        return Api(self.server, self._authority, Identity(token=token))

    # -- objects ------------------------------------------------------------------------------

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create the object; returns it as it was stored (or would be, on a dry run)."""
        address = self.address(manifest, named=False)
        return self._object("POST", address, manifest, **_dry(dry_run))

    def apply(
        self, manifest: Manifest, *, manager: str = "tests", subresource: str = "", **query: str
    ) -> Manifest:
        """Apply the object as `kubectl apply --server-side --force-conflicts` does; returns it."""
        address = self.address(manifest, subresource=subresource)
        query |= {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._object("PATCH", address, manifest, content_type=_APPLY, **query)

    def replace(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Replace the object; returns it."""
        return self._object("PUT", self.address(manifest, subresource=subresource), manifest)

    def merge(
        self, manifest: Manifest, patch: Mapping[str, Any], subresource: str = ""
    ) -> Manifest:
        """Change what `patch` names in the object that `manifest` names; returns it."""
        address = self.address(manifest, subresource=subresource)
        return self._object("PATCH", address, patch, content_type=MERGE_PATCH)

    def get(self, manifest: Manifest) -> Manifest:
        """Return the object that `manifest` names as it is stored."""
        return self._object("GET", self.address(manifest))

    def list(
        self, api_version: str, kind: str, namespace: str = "", **query: str
    ) -> "list[Manifest]":
        """Return all objects of a kind, of all namespaces if none is given."""
        address = self.collection(api_version, kind, namespace)
        items: list[Manifest] = self.request("GET", address, **query)["items"]
        return items

    def delete(self, manifest: Manifest, **options: Any) -> None:
        """Delete the object that `manifest` names; it may not be there any more.

        What it owns goes with it, as with kubectl, unless `options` have another propagationPolicy:
        the API server's own default leaves the pods of a Job, and all else it owns, without owner.
        """
        options = {"propagationPolicy": "Background", **options}
        try:
            self.request("DELETE", self.address(manifest), options)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def exists(self, manifest: Manifest) -> bool:
        """Say whether the object that `manifest` names is there."""
        try:
            self.get(manifest)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return False
        return True

    def wait(
        self,
        manifest: Manifest,
        condition: Callable[[Manifest], object],
        timeout_s: float = 90.0,
    ) -> Manifest:
        """Return the object once `condition` holds of it; raises TimeoutError with its conditions.

        An object that is not there yet is waited for, and so is a field that the condition reads.
        """
        deadline = time.monotonic() + timeout_s
        last: Manifest = {}
        while True:
            try:
                last = self.get(manifest)
                with suppress(KeyError):
                    if condition(last):
                        return last
            except ApiError as error:
                if error.status != http.client.NOT_FOUND:
                    raise
            if time.monotonic() > deadline:
                state = brief(last) if last else "it never existed"
                raise TimeoutError(
                    f"{self.address(manifest)}: not {_named(condition)} in {timeout_s:g} s: {state}"
                )
            time.sleep(0.05)

    def wait_gone(self, manifest: Manifest, timeout_s: float = 90.0) -> None:
        """Wait until the object that `manifest` names is gone; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while self.exists(manifest):
            if time.monotonic() > deadline:
                state = brief(self.get(manifest))
                raise TimeoutError(
                    f"{self.address(manifest)}: there after {timeout_s:g} s: {state}"
                )
            time.sleep(0.05)

    # -- addresses ----------------------------------------------------------------------------

    def collection(self, api_version: str, kind: str, namespace: str = "") -> str:
        """Return the address of the objects of a kind."""
        resource = self.resource(api_version, kind)
        parts = [_group(api_version)]
        if resource.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        return "/".join([*parts, resource.plural])

    def address(self, manifest: Manifest, *, named: bool = True, subresource: str = "") -> str:
        """Return the address of the object, or of its collection unless `named`."""
        metadata = manifest["metadata"]
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        parts = [self.collection(api_version, kind, metadata.get("namespace", "default"))]
        parts += [quote(metadata["name"], safe="")] if named else []
        return "/".join([*parts, *([subresource] if subresource else [])])

    def resource(self, api_version: str, kind: str) -> Resource:
        """Return how `kind` is called in addresses; raises ApiError if the server has no such."""
        if (api_version, kind) not in self._kinds:
            for found in self.request("GET", _group(api_version))["resources"]:
                if "/" not in found["name"]:
                    resource = Resource(found["name"], found["namespaced"])
                    self._kinds[api_version, found["kind"]] = resource
        if (api_version, kind) not in self._kinds:
            raise ApiError(404, "NotFound", f"the server has no kind {kind} in {api_version}")
        return self._kinds[api_version, kind]

    # -- the wire -----------------------------------------------------------------------------

    def _object(self, method: str, address: str, body: object = None, **how: str) -> Manifest:
        """Return the object that the server answers with."""
        answer: Manifest = self.request(method, address, body, **how)
        return answer

    def request(
        self,
        method: str,
        address: str,
        body: object = None,
        *,
        content_type: str = _JSON,
        **query: str,
    ) -> Any:
        """Return the answer to one request: JSON as Python values, anything else as text."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._request(method, address, body, content_type, query)
            except ApiError as error:
                busy = error.status == http.client.TOO_MANY_REQUESTS
                if not busy or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _connection(self) -> _Connection:
        known: _Connection | None = getattr(self._of_thread, "connection", None)
        if known is None:
            place = urlsplit(self.server)
            known = self._of_thread.connection = _Connection(
                place.hostname or "", place.port or 443, timeout=60, context=self._ssl
            )
        known.renew()
        return known

    def _request(
        self, method: str, address: str, body: object, content_type: str, query: dict[str, str]
    ) -> Any:
        target = f"{address}?{urlencode(query)}" if query else address
        headers = {"Accept": _JSON, "Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        payload = None if body is None else json.dumps(body)
        connection = self._connection()
        try:
            connection.request(method, target, payload, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except BaseException:
            connection.close()
            raise
        connection.used = time.monotonic()
        self.warnings = tuple(
            line.partition('"')[2].rpartition('"')[0].replace('\\"', '"')
            for line in answer.headers.get_all("Warning", [])
        )
        is_json = answer.headers.get_content_type() == _JSON
        value = json.loads(text) if is_json else text
        if answer.status >= http.client.BAD_REQUEST:
            if isinstance(value, dict):
                raise ApiError(answer.status, value.get("reason", ""), value.get("message", text))
            raise ApiError(answer.status, answer.reason, text)
        return value


def brief(found: Manifest) -> str:
    """Return what a person asks first of an object: its end, its phase, its conditions."""
    metadata, status = found.get("metadata") or {}, found.get("status") or {}
    said = [f"phase {status['phase']}"] if status.get("phase") else []
    if metadata.get("deletionTimestamp"):
        holders = ", ".join(metadata.get("finalizers") or ["none"])
        said.append(f"deleted at {metadata['deletionTimestamp']}, finalizers: {holders}")
    said += [
        f"{one['type']} {one['status']} {one.get('reason', '')} {one.get('message', '')}".rstrip()
        for one in status.get("conditions") or []
    ]
    text = "; ".join(said) or f"no conditions; its status has {sorted(status) or 'nothing'}"
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]} [...]"


def _named(condition: Callable[[Manifest], object]) -> str:
    """Return what is waited for: a function's name, or where a lambda stands."""
    name = getattr(condition, "__name__", "")
    code = getattr(condition, "__code__", None)
    if name.isidentifier() or code is None:
        return name or repr(condition)
    return f"as {Path(code.co_filename).name}:{code.co_firstlineno} wants"


def _group(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _dry(dry_run: bool) -> dict[str, str]:
    return {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
