"""The kinds of the API: their names, scope, and the columns that `kubectl get` shows of them."""

from typing import Final, NamedTuple

from .base import API_GROUP, ApiModel
from .memnode import MemNode
from .memprofile import MemProfile
from .memquota import MemQuota
from .memtask import MemTask


class Column(NamedTuple):
    """A column of `kubectl get`; priority 1 shows it in wide output only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0


class Kind(NamedTuple):
    """What a CRD says beside its schema."""

    model: type[ApiModel]
    plural: str
    short: str
    scope: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """The kind, as in `kind: MemTask`."""
        return self.model.__name__

    @property
    def file_name(self) -> str:
        """The file that holds the CRD."""
        return f"{API_GROUP}_{self.plural}.yaml"


_AGE: Final = Column("Age", "date", ".metadata.creationTimestamp", "Time since it was made.")
KINDS: Final = (
    Kind(
        MemTask,
        "memtasks",
        "mt",
        "Namespaced",
        (
            Column("Phase", "string", ".status.phase", "A summary of the conditions."),
            Column("Node", "string", ".status.node", "The node it was placed on."),
            Column("Period", "string", ".spec.realtime.period", "Time between releases."),
            Column("Deadline", "string", ".spec.realtime.deadline", "Latest end of a job.", 1),
            Column("Misses", "integer", ".status.observed.misses", "Jobs that ended too late."),
            Column(
                "Predicted",
                "string",
                ".status.predicted.responseTime",
                "The worst response time that was proved.",
                1,
            ),
            Column(
                "Worst",
                "string",
                ".status.observed.responseTimeWorst",
                "The worst response time that was measured.",
                1,
            ),
            Column(
                "Fast-Memory", "integer", ".status.fastMemoryBytes", "Bytes that the plan takes."
            ),
            Column(
                "Streamed",
                "integer",
                ".status.observed.streamedBytesPerJob",
                "Bytes streamed in a job.",
            ),
            Column("Reason", "string", ".status.reason", "Why it is in this phase."),
            _AGE,
        ),
    ),
    Kind(
        MemProfile,
        "memprofiles",
        "mp",
        "Namespaced",
        (
            Column("Device", "string", ".spec.device.product", "The device it was measured on."),
            Column("Workspace", "string", ".spec.workspace", "Peak beside the weights."),
            Column("Digest", "string", ".spec.digest", "Digest of the weights.", 1),
            _AGE,
        ),
    ),
    Kind(
        MemNode,
        "memnodes",
        "mn",
        "Cluster",
        (
            Column("Health", "string", ".status.health", "The worst health of its parts."),
            # A column shows one value, so of several devices the first.
            Column("Device", "string", ".status.devices[0].product", "Its first device."),
            Column("Fast-Memory", "integer", ".status.devices[0].fastBytes", "Its bytes."),
            Column("Used", "integer", ".status.devices[0].usedBytes", "Bytes that plans take."),
            Column("Agent", "string", ".status.agentVersion", "Version of its agent."),
            _AGE,
        ),
    ),
    Kind(
        MemQuota,
        "memquotas",
        "mq",
        "Namespaced",
        (
            Column("Fast-Memory", "string", ".spec.fastMemory", "Fast memory of all devices."),
            Column("Link-Percent", "integer", ".spec.linkPercent", "Share of each link's time."),
            _AGE,
        ),
    ),
)
