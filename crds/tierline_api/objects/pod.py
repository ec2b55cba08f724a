"""What is read of a pod: its annotations, its containers, and which of these are meant.

Manifests come from people, and the API server checks their form later: whatever is not of the
expected shape reads as absent here.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tierline_api.objects.optin import TASK

Manifest = dict[str, Any]

CONTAINERS: Final = "tierline.io/containers"
"""Annotation of a pod: the containers that are meant, by name, separated by commas; default all."""
LISTS: Final = ("containers", "initContainers")
"""Where a pod has its containers. Ephemeral ones come later, and are never meant."""
LIBRARY: Final = "/run/tierline/libtierline.so"
"""The client library as a container sees it."""
FOLDER: Final = "/run/tierline"
"""The folder that the agent mounts into each meant container."""
PRELOAD: Final = "LD_PRELOAD"

ALL_CONTAINERS_CEL: Final = (
    "(variables.spec.containers + variables.spec.?initContainers.orValue([]))"
)
ANNOTATIONS_CEL: Final = "variables.metadata.?annotations.orValue({})"
MEANT_CEL: Final = (
    f"'{CONTAINERS}' in variables.annotations"
    f" ? variables.annotations['{CONTAINERS}'].split(',').map(n, n.trim())"
    f" : {ALL_CONTAINERS_CEL}.map(c, c.name)"
)
"""The names of the containers that are meant."""


class Placed(NamedTuple):
    """A container and where it stands."""

    list: str
    container: Manifest

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.container.get("name", ""))


def mapping(value: object) -> Manifest:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Manifest]:
    """Return the mappings in `value` if it is a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class Pod:
    """A pod, or the template of pods."""

    def __init__(self, manifest: Manifest) -> None:
        """Read `manifest`: a mapping of metadata and spec. Changes are written into it."""
        self.manifest = manifest

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        found = mapping(mapping(self.manifest.get("metadata")).get("annotations"))
        return {key: value for key, value in found.items() if isinstance(value, str)}

    @property
    def unquoted(self) -> list[str]:
        """Annotations of Tierline whose value is no text: a number or a truth value."""
        found = mapping(mapping(self.manifest.get("metadata")).get("annotations"))
        return [
            str(key)
            for key, value in found.items()
            if str(key).startswith("tierline.io/") and not isinstance(value, str)
        ]

    @property
    def spec(self) -> Manifest:
        """Its spec."""
        return mapping(self.manifest.get("spec"))

    @property
    def opted_in(self) -> bool:
        """Say whether it names a task."""
        return TASK in self.annotations

    @property
    def task(self) -> str:
        """The task that it names."""
        return self.annotations[TASK]

    def containers(self) -> Iterator[Placed]:
        """Yield every container."""
        for name in LISTS:
            for container in items(self.spec.get(name)):
                yield Placed(name, container)

    @property
    def meant_names(self) -> list[str]:
        """The names of the containers that are meant."""
        if CONTAINERS in self.annotations:
            return [name.strip() for name in self.annotations[CONTAINERS].split(",")]
        return [placed.name for placed in self.containers()]

    def meant(self) -> list[Placed]:
        """Return the containers that are meant."""
        names = self.meant_names
        return [placed for placed in self.containers() if placed.name in names]


def is_preload(entry: Manifest) -> bool:
    """Say whether `entry` of a container's environment is LD_PRELOAD."""
    return entry.get("name") == PRELOAD
