"""Object metadata: what Tierline reads of it, and the rest of what the API server adds.

Unlike the other models this one knows fields that Tierline never looks at, because objects read
from a cluster carry them; still nothing unknown is taken.
"""

import hashlib
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from tierline_api.schema.base import ApiModel, Rule
from tierline_api.schema.fields import MAX_LABEL, Count, Label, Subdomain

LABEL_NAME: Final = Rule(
    "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
    "metadata.name must be a DNS label: at most 63 lower-case letters, digits and '-'",
)
"""For the root of a kind whose name becomes a path and a pod's name."""

_DIGITS: Final = 16
"""Of a digest, at the end of a name that is too long."""


def label_value(name: str) -> str:
    """Return what stands for the name of an object in a label: the name, if a label can hold it.

    Names have up to 253 characters, values of labels 63. A label only selects: what it selects says
    the name in full elsewhere, and whoever reads it looks there.
    """
    if len(name) <= MAX_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: MAX_LABEL - _DIGITS - 1]}-{digest}"


TextMap = Annotated[dict[str, str], Field(max_length=1024)]


class _ServerFields(ApiModel):
    """Metadata that is the same for objects in namespaces and outside."""

    labels: TextMap = Field(default_factory=dict)
    """Labels of the object."""
    annotations: TextMap = Field(default_factory=dict)
    """Annotations of the object."""
    generate_name: str | None = None
    """A prefix from which the API server made the name."""
    uid: str | None = None
    """The identity of the object in its cluster."""
    resource_version: str | None = None
    """The version of the object in its cluster, for comparison only."""
    generation: Count | None = None
    """Counts changes of the spec."""
    creation_timestamp: AwareDatetime | None = None
    """When the object was made."""
    deletion_timestamp: AwareDatetime | None = None
    """When the object will go, if it is going."""
    deletion_grace_period_seconds: Count | None = None
    """Seconds until it goes."""
    finalizers: tuple[str, ...] = ()
    """The controllers that must agree before the object goes."""
    owner_references: tuple[dict[str, Any], ...] = ()
    """Objects whose going takes this one along."""
    managed_fields: tuple[dict[str, Any], ...] = ()
    """Which field was set by which manager."""
    self_link: str | None = None
    """Unused by Kubernetes since 1.20."""

    @model_serializer(mode="wrap")
    def _without_empties(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {key: value for key, value in written.items() if value}


class ObjectMeta(_ServerFields):
    """Metadata of an object in a namespace."""

    name: Label
    """The name, unique in the namespace."""
    namespace: Label = "default"
    """The namespace, which is also the trust domain."""


class ClusterObjectMeta(_ServerFields):
    """Metadata of an object outside namespaces."""

    name: Subdomain
    """The name, unique in the cluster."""
