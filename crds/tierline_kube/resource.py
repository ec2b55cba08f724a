"""How a kind is addressed, and the kinds that Tierline reads or writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from tierline_api.schema.base import API_VERSION

Json = dict[str, Any]
"""An object, or a part of one, as the API server sends it."""


@dataclass(frozen=True)
class Resource:
    """A kind as addresses name it."""

    group_version: str
    kind: str
    plural: str
    selector: str = ""
    """A label selector: only such objects are listed and watched."""

    def selected(self, selector: str) -> Resource:
        """The same kind, of which only what `selector` names is listed and watched."""
        return replace(self, selector=selector)

    def address(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of a collection."""
        root = "apis" if "/" in self.group_version else "api"
        parts = [root, self.group_version]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts.append(self.plural)
        parts += [quote(name, safe="")] if name else []
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)

    def reference(self, metadata: Mapping[str, Any]) -> Json:
        """What names the object with this metadata in other objects."""
        named = {part: metadata[part] for part in ("namespace", "name", "uid") if part in metadata}
        return {"apiVersion": self.group_version, "kind": self.kind, **named}


MEMTASK: Final = Resource(API_VERSION, "MemTask", "memtasks")
MEMPROFILE: Final = Resource(API_VERSION, "MemProfile", "memprofiles")
MEMNODE: Final = Resource(API_VERSION, "MemNode", "memnodes")
MEMQUOTA: Final = Resource(API_VERSION, "MemQuota", "memquotas")
NODE: Final = Resource("v1", "Node", "nodes")
POD: Final = Resource("v1", "Pod", "pods")
DEPLOYMENT: Final = Resource("apps/v1", "Deployment", "deployments")
REPLICASET: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
CLAIM: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
TEMPLATE: Final = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
SLICE: Final = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices")
LEASE: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENT: Final = Resource("events.k8s.io/v1", "Event", "events")
