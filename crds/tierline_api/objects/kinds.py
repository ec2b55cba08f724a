"""The kinds of the API: their names, scope, and the columns that `kubectl get` shows of them."""

from typing import Final, NamedTuple

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_api.schema.base import API_GROUP, ApiModel


class Column(NamedTuple):
    """A column of `kubectl get`; priority 1 shows it in wide output only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0


class Kind(NamedTuple):
    """What a CRD says in addition to its schema."""

    model: type[ApiModel]
    plural: str
    short: str
    scope: str
    columns: tuple[Column, ...]
    scaled: bool = False
    """Whether it has replicas, by which autoscalers and `kubectl scale` change it."""

    @property
    def name(self) -> str:
        """The kind, as in `kind: MemTask`."""
        return self.model.__name__

    @property
    def file_name(self) -> str:
        """The file that holds the CRD."""
        return f"{API_GROUP}_{self.plural}.yaml"


def _of_tier(tier: Tier) -> tuple[Column, Column]:
    """What is used of a tier, and how much may be."""
    name = tier.value.capitalize()
    path = f".tiers[?(@.tier=='{tier.value}')].capacity"
    return (
        Column(f"{name}-Used", "string", f".status.used{path}", "Bytes of weights in it.", 1),
        Column(f"{name}-Limit", "string", f".status.limit{path}", "Bytes allowed in it.", 1),
    )


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
            Column("Steps", "integer", ".status.observed.steps", "Steps of one that trains.", 1),
            Column("Step", "string", ".status.shown.step", "What half of them took at most.", 1),
            Column(
                "Predicted",
                "string",
                ".status.shown.predicted",
                "The worst response time that was proved.",
                1,
            ),
            Column(
                "Worst",
                "string",
                ".status.shown.worst",
                "The worst response time that was measured.",
                1,
            ),
            Column("Fast-Memory", "string", ".status.shown.fastMemory", "What the plan takes."),
            Column("Streamed", "string", ".status.shown.streamed", "What is streamed in a job."),
            Column("Reason", "string", ".status.reason", "Why it is in this phase."),
            _AGE,
        ),
        scaled=True,
    ),
    Kind(
        MemProfile,
        "memprofiles",
        "mp",
        "Namespaced",
        (
            Column("Device", "string", ".spec.device.product", "The device it was measured on."),
            Column("Weights", "string", ".status.weights", "Bytes of all layers."),
            Column("Workspace", "string", ".status.workspace", "Peak of all else."),
            Column("Compute", "string", ".status.computeTime", "The worst time of a job."),
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
            Column(
                "Ready",
                "string",
                ".status.conditions[?(@.type=='Ready')].status",
                "Whether pods can start there.",
            ),
            Column("Health", "string", ".status.health", "The worst health of its parts."),
            Column("Devices", "string", ".status.shown.devices", "How many of which."),
            Column("Fast-Memory", "string", ".status.shown.fastMemory", "Of all devices."),
            Column("Used", "string", ".status.shown.used", "What plans take of it."),
            Column("Tiers", "string", ".status.shown.tiers", "What they hold, of how much.", 1),
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
            Column("Fast-Used", "string", ".status.used.fastMemory", "Fast memory that is taken."),
            Column("Fast-Limit", "string", ".status.limit.fastMemory", "Fast memory allowed."),
            *(column for tier in Tier for column in _of_tier(tier)),
            Column(
                "Link-Used", "integer", ".status.used.linkPercent", "Of the busiest link, in %."
            ),
            Column("Link-Limit", "integer", ".status.limit.linkPercent", "Of each link, in %."),
            _AGE,
        ),
    ),
)
