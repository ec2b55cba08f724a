"""The cluster as the user's kubeconfig shows it; every failure is a sentence with its fix.

The Kubernetes client takes a second or more to import, so that happens when a request is made and
not for `--help`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

from tierline_api.objects.optin import TASK
from tierline_api.schema.base import API_GROUP, API_VERSION
from tierline_cli.errors import EXIT_BAD_INPUT, EXIT_FAILED, CommandError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Json = dict[str, Any]
_VERSION: Final = API_VERSION.removeprefix(f"{API_GROUP}/")
_AT_ONCE: Final = 500
_TIMEOUT_S: Final = 30
_UNREADABLE: Final = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError),
    yaml.YAMLError,
)
"""Errors of the client for a kubeconfig that is none, in addition to its own."""


class NotThere(CommandError):  # noqa: N818 - a state, not a mistake
    """The one object that was asked for does not exist."""


class NotAllowed(CommandError):  # noqa: N818 - a state, not a mistake
    """RBAC does not let the user see it."""


@dataclass(frozen=True)
class Scope:
    """Where a user looks."""

    namespace: str | None = None
    """None is the context's own."""
    everywhere: bool = False
    context: str | None = None
    kubeconfig: str | None = None
    user: str | None = None
    """The user to ask as; None is as the kubeconfig says."""
    groups: tuple[str, ...] = ()


@dataclass
class Cluster:
    """Reads objects, over connections that end with the `with` block. Not for several threads."""

    scope: Scope
    _client: ApiClient | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        """Connections are made when they are needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @cached_property
    def namespace(self) -> str:
        """The namespace that names are looked up in."""
        return self.scope.namespace or str(self._context.get("namespace") or "default")

    def tasks(self) -> list[Json]:
        """The MemTasks in scope. Raises CommandError."""
        return list(self._listed("memtasks", "" if self.scope.everywhere else self.namespace))

    def task(self, name: str) -> Json:
        """A MemTask of the namespace. Raises NotThere, CommandError."""
        from kubernetes.client import CustomObjectsApi  # noqa: PLC0415

        found: Json = self._ask(
            f"read MemTask/{name} in namespace {self.namespace}",
            CustomObjectsApi(self._connected()).get_namespaced_custom_object,
            *(API_GROUP, _VERSION, self.namespace, "memtasks", name),
        )
        return found

    def nodes(self) -> list[Json]:
        """All MemNodes. Raises CommandError."""
        return list(self._listed("memnodes", ""))

    def pods(self, namespace: str, task: str | None = None) -> list[Json]:
        """The pods that opted in, of one task or of all; all namespaces if it is empty.

        One that was made while no admission policy was in force has the annotation and no label, so
        that all pods are looked at. Raises CommandError.
        """
        from kubernetes.client import CoreV1Api  # noqa: PLC0415

        core = CoreV1Api(self._connected())
        call, where = (
            (core.list_namespaced_pod, [namespace])
            if namespace
            else (core.list_pod_for_all_namespaces, [])
        )
        pods: list[Json] = []
        more: dict[str, Any] = {"limit": _AT_ONCE}
        while True:
            page = self._ask(f"list pods{_in(namespace)}", call, *where, **more)
            for pod in page.items:
                told = (pod.metadata.annotations or {}, pod.metadata.labels or {})
                named = next((of[TASK] for of in told if TASK in of), None)
                if named is not None and task in {None, named}:
                    pods.append(self._connected().sanitize_for_serialization(pod))
            if not page.metadata._continue:
                return pods
            more["_continue"] = page.metadata._continue

    def warnings(self, namespace: str) -> list[Json]:
        """The Warning events of a namespace (empty: of all); None if the user may not read them.

        Raises CommandError.
        """
        from kubernetes.client import CoreV1Api  # noqa: PLC0415

        core = CoreV1Api(self._connected())
        call, where = (
            (core.list_namespaced_event, [namespace])
            if namespace
            else (core.list_event_for_all_namespaces, [])
        )
        selector = "type=Warning"
        try:
            found = self._ask(f"list events{_in(namespace)}", call, *where, field_selector=selector)
        except NotAllowed:
            return []
        return [self._connected().sanitize_for_serialization(event) for event in found.items]

    def pod(self, name: str) -> Json:
        """A pod of the namespace. Raises NotThere, CommandError."""
        from kubernetes.client import CoreV1Api  # noqa: PLC0415

        core = CoreV1Api(self._connected())
        what = f"read Pod/{name} in namespace {self.namespace}"
        found = self._ask(what, core.read_namespaced_pod, name, self.namespace)
        plain: Json = self._connected().sanitize_for_serialization(found)
        return plain

    def has_claim(self, namespace: str, name: str) -> bool:
        """Whether a ResourceClaim is there, or may be: not everybody may look.

        Raises CommandError.
        """
        from kubernetes.client import CustomObjectsApi  # noqa: PLC0415

        try:
            self._ask(
                f"read ResourceClaim/{name} in namespace {namespace}",
                CustomObjectsApi(self._connected()).get_namespaced_custom_object,
                *("resource.k8s.io", "v1", namespace, "resourceclaims", name),
            )
        except NotThere:
            return False
        except NotAllowed:
            return True
        return True

    def _listed(self, plural: str, namespace: str) -> Iterator[Json]:
        from kubernetes.client import CustomObjectsApi  # noqa: PLC0415

        api = CustomObjectsApi(self._connected())
        call, where = (
            (api.list_namespaced_custom_object, [API_GROUP, _VERSION, namespace, plural])
            if namespace
            else (api.list_cluster_custom_object, [API_GROUP, _VERSION, plural])
        )
        more: dict[str, Any] = {"limit": _AT_ONCE}
        while True:
            page = self._ask(f"list {plural}{_in(namespace)}", call, *where, **more)
            yield from page["items"]
            if not page["metadata"].get("continue"):
                return
            more["_continue"] = page["metadata"]["continue"]

    @cached_property
    def _context(self) -> Json:
        """The chosen context of the kubeconfig. Raises CommandError."""
        from kubernetes import config  # noqa: PLC0415

        try:
            contexts, current = config.list_kube_config_contexts(self.scope.kubeconfig)
        except (config.ConfigException, *_UNREADABLE) as error:
            raise _no_cluster(error) from error
        wanted = self.scope.context
        chosen = next((c for c in contexts if c["name"] == wanted), None) if wanted else current
        if chosen is None:
            names = ", ".join(sorted(c["name"] for c in contexts))
            raise CommandError(
                f"the kubeconfig has no context {wanted!r}; there are {names}", EXIT_BAD_INPUT
            )
        context: Json = chosen["context"]
        return context

    def _connected(self) -> ApiClient:
        from kubernetes import config  # noqa: PLC0415

        if self._client is None:
            _ = self._context  # a wrong name is told before anything else
            try:
                self._client = config.new_client_from_config(
                    config_file=self.scope.kubeconfig, context=self.scope.context
                )
            except (config.ConfigException, *_UNREADABLE) as error:
                raise _no_cluster(error) from error
            for name, value in self.impersonation():
                self._client.set_default_header(name, value)
        return self._client

    def impersonation(self) -> Iterator[tuple[str, str]]:
        """The headers by which kubectl asks as somebody else; the client knows nothing of it."""
        from kubernetes.config import kube_config  # noqa: PLC0415

        user, groups = self.scope.user, self.scope.groups
        context = self._context  # that there is none is told before anything else
        if user is None:
            path = self.scope.kubeconfig or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
            users = kube_config.KubeConfigMerger(path).config.value.get("users") or ()
            named = (one["user"].value for one in users if one["name"] == context.get("user"))
            chosen = next(named, None) or {}
            user, groups = chosen.get("as"), tuple(chosen.get("as-groups") or ())
        if user is None:
            return
        yield "Impersonate-User", user
        for index, group in enumerate(groups):
            # One header for each group, and the client keeps one of each name as it is written.
            yield _written(index, "impersonate-group"), group

    def _ask(self, what: str, call: Callable[..., Any], *where: str, **how: Any) -> Any:
        from kubernetes.client import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            return call(*where, **how, _request_timeout=_TIMEOUT_S)
        except ApiException as error:
            raise self._refused(what, error.status, str(error.body or error.reason)) from error
        except (HTTPError, OSError) as error:
            server = self._connected().configuration.host
            cause = getattr(error, "reason", None) or error
            raise CommandError(
                f"cannot {what}: no answer from {server} ({cause}); is the cluster up, and is the "
                "context the right one?"
            ) from error

    def _refused(self, what: str, status: int, said: str) -> CommandError:
        if status == 404 and "page not found" in said:
            return CommandError(
                f"cannot {what}: the cluster does not know {API_VERSION}; install Tierline there "
                "(helm install), or choose another cluster with --context"
            )
        if status == 404:
            return NotThere(f"cannot {what}: there is none", EXIT_BAD_INPUT)
        if status == 403:
            return NotAllowed(
                f"cannot {what}: you may not; ask for the ClusterRole tierline-view"
                f"{'' if self.scope.everywhere else ' in the namespace'}"
            )
        if status == 401:
            return CommandError(f"cannot {what}: the cluster does not know you; log in again")
        return CommandError(f"cannot {what}: {status} {said[:300]}", EXIT_FAILED)


def _written(number: int, name: str) -> str:
    """A name in one of its spellings in small and capital letters, which all mean the same."""
    return "".join(
        letter.upper() if number >> index & 1 else letter for index, letter in enumerate(name)
    )


def _in(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else " in all namespaces"


def _no_cluster(error: Exception) -> CommandError:
    return CommandError(
        f"cannot find a cluster: {error}; set KUBECONFIG or --kubeconfig", EXIT_BAD_INPUT
    )
