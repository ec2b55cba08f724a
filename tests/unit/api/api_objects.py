"""Objects as a user writes them, and the same with one mistake: the table that all levels share.

A case says which field is edited, where the mistake is reported, what the sentence holds, and what
else refuses it: the API server by the CRD (`CLUSTER`), or only the reader of manifests (`LOCAL`).
"""

from typing import Any, Final, NamedTuple

from tests.unit.api.contradictions import pairs
from tests.unit.api.editing import REMOVED, edited

CLUSTER, LOCAL = "cluster", "local"

_TASK: Final[dict[str, Any]] = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemTask",
    "metadata": {"name": "camera", "namespace": "robot"},
    "spec": {
        "realtime": {"period": "100ms", "deadline": "80ms"},
        "memory": {"budget": "1Gi", "reserved": "64Mi"},
        "swap": {"tiers": ["dram", "nvme"]},
        "device": {"kind": "cpu"},
        "template": {
            "spec": {
                "containers": [
                    {"name": "app", "image": "camera:1", "command": ["python", "camera.py"]}
                ]
            }
        },
    },
}
_PROFILE: Final[dict[str, Any]] = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemProfile",
    "metadata": {"name": "camera", "namespace": "robot"},
    "spec": {
        "device": {"kind": "cpu", "product": "AMD EPYC"},
        "layers": [
            {"name": "embed", "bytes": 1024, "computeTime": "1ms", "pinned": True},
            {"name": "head", "bytes": 4096, "computeTime": "2.5ms", "arena": 1},
        ],
        "workspace": "12Mi",
        "digest": "0123456789abcdef" * 4,
    },
}
_PINNED: Final = {"name": "head", "bytes": 4096, "computeTime": "2.5ms", "pinned": True, "arena": 1}
_NODE: Final[dict[str, Any]] = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemNode",
    "metadata": {"name": "node-1.example"},
    "status": {
        "devices": [
            {
                "name": "cpu",
                "kind": "cpu",
                "product": "AMD EPYC",
                "fastBytes": 268435456,
                "extentBytes": 4194304,
            }
        ],
        "tiers": [{"name": "dram", "capacityBytes": 2147483648, "durability": "Agent"}],
        "links": [{"name": "h2d", "device": "cpu", "bandwidth": 3000000000, "overhead": "40us"}],
        "agentVersion": "0.1.0",
    },
}
_PLAN: Final[dict[str, Any]] = {
    "extentBytes": 4194304,
    "extentCount": 5,
    "residentExtents": [0, 2],
    "ringExtents": 2,
    "workspaceBytes": 1048576,
    "homes": [{"tier": "dram", "extents": 3}, {"tier": "nvme", "extents": 2}],
    "predictedJobTime": "41.5ms",
    "predictedResponseTime": "63ms",
}


def task(**edits: Any) -> dict[str, Any]:
    """Return a good MemTask with fields edited: ``task(spec__replicas=2)``."""
    return edited(_TASK, edits)


def profile(**edits: Any) -> dict[str, Any]:
    """Return a good MemProfile with fields edited."""
    return edited(_PROFILE, edits)


def node(**edits: Any) -> dict[str, Any]:
    """Return a good MemNode with fields edited."""
    return edited(_NODE, edits)


def plan(**edits: Any) -> dict[str, Any]:
    """Return a good plan with fields edited."""
    return edited(_PLAN, edits)


class Wrong(NamedTuple):
    """An object with one mistake."""

    id: str
    object: dict[str, Any]
    field: str
    says: str
    refused_by: str


WRONG: Final = (
    Wrong(
        "a deadline after the next release",
        task(spec__realtime__deadline="101ms"),
        "spec.realtime.deadline",
        "deadline 101ms is longer than period 100ms; write a deadline of at most the period",
        CLUSTER,
    ),
    Wrong(
        "a deadline longer than the period in another unit",
        task(spec__realtime__deadline="0.2s"),
        "spec.realtime.deadline",
        "longer than period 100ms",
        CLUSTER,
    ),
    Wrong(
        "a period that is a bare number",
        task(spec__realtime__period=100),
        "spec.realtime.period",
        "write 100ms or 100s",
        CLUSTER,
    ),
    Wrong(
        "a period in quotes without unit",
        task(spec__realtime__period="100"),
        "spec.realtime.period",
        "write 100ms or 100s",
        CLUSTER,
    ),
    Wrong(
        "a period of zero",
        task(spec__realtime__period="0s"),
        "spec.realtime.period",
        "from 1us to 24h",
        CLUSTER,
    ),
    Wrong(
        "a period of two days",
        task(spec__realtime__period="48h"),
        "spec.realtime.period",
        "from 1us to 24h",
        CLUSTER,
    ),
    Wrong(
        "a period longer than the world",
        task(spec__realtime={"period": "99999999999999h", "deadline": "9223372036854775808ns"}),
        "spec.realtime.period",
        "from 1us to 24h",
        CLUSTER,
    ),
    Wrong(
        "a period in days",
        task(spec__realtime__period="1d"),
        "spec.realtime.period",
        "write for example 50ms",
        CLUSTER,
    ),
    Wrong(
        "no period",
        task(spec__realtime={"deadline": "5ms"}),
        "spec.realtime.period",
        "is missing; write period (time between two releases",
        CLUSTER,
    ),
    Wrong(
        "more execution time than the deadline has",
        task(spec__realtime__executionTime="90ms"),
        "spec.realtime.executionTime",
        "longer than deadline 80ms",
        CLUSTER,
    ),
    Wrong(
        "a criticality in small letters",
        task(spec__realtime__criticality="hard"),
        "spec.realtime.criticality",
        "did you mean Hard?",
        CLUSTER,
    ),
    Wrong(
        "a criticality nobody knows",
        task(spec__realtime__criticality="vital"),
        "spec.realtime.criticality",
        "write one of BestEffort, Hard, Soft",
        CLUSTER,
    ),
    Wrong(
        "reserved above the budget",
        task(spec__memory__reserved="2Gi"),
        "spec.memory.reserved",
        "reserved 2Gi is more than budget 1Gi",
        CLUSTER,
    ),
    Wrong(
        "reserved above the budget in another unit",
        task(spec__memory__reserved="1100M"),
        "spec.memory.reserved",
        "more than budget 1Gi",
        CLUSTER,
    ),
    Wrong(
        "a budget that is missing",
        task(spec__memory__budget=REMOVED),
        "spec.memory.budget",
        "is missing; write budget",
        CLUSTER,
    ),
    Wrong(
        "a budget in GB",
        task(spec__memory__budget="2GB"),
        "spec.memory.budget",
        "write 2G",
        CLUSTER,
    ),
    Wrong(
        "a budget in thousandths of a byte",
        task(spec__memory__budget="512m"),
        "spec.memory.budget",
        "write 512M or 512Mi",
        CLUSTER,
    ),
    *(
        Wrong(
            f"a budget of {less} bytes",
            task(spec__memory__budget=less, spec__memory__reserved="0"),
            "spec.memory.budget",
            "less than a byte",
            CLUSTER,
        )
        for less in ("0.5", "0.1", "0.00001Ki")
    ),
    Wrong(
        "reserved less than a byte",
        task(spec__memory__reserved="0.5"),
        "spec.memory.reserved",
        "less than a byte",
        CLUSTER,
    ),
    Wrong(
        "a budget of nothing",
        task(spec__memory__budget="0", spec__memory__reserved="0"),
        "spec.memory.budget",
        "from 1 to 1Ei",
        CLUSTER,
    ),
    Wrong(
        "a negative budget",
        task(spec__memory__budget=-5, spec__memory__reserved=REMOVED),
        "spec.memory.budget",
        "from 1 to 1Ei",
        CLUSTER,
    ),
    Wrong(
        "a budget that is no whole number",
        task(spec__memory__budget=1.5),
        "spec.memory.budget",
        "not a quantity of bytes",
        CLUSTER,
    ),
    Wrong(
        "a budget that is a truth value",
        task(spec__memory__budget=True),
        "spec.memory.budget",
        "not a quantity of bytes",
        CLUSTER,
    ),
    Wrong(
        "weights and workspace beyond the budget",
        task(spec__memory__weights="1000Mi", spec__memory__workspace="100Mi"),
        "spec",
        "a budget of at least 1100Mi, or swap.onBudgetExceeded Spill",
        CLUSTER,
    ),
    Wrong(
        "weights alone beyond the budget",
        task(spec__memory__weights="2Gi"),
        "spec",
        "a budget of at least 2Gi",
        CLUSTER,
    ),
    Wrong(
        "no tier",
        task(spec__swap__tiers=[]),
        "spec.swap.tiers",
        "at least 1 of them",
        CLUSTER,
    ),
    Wrong(
        "a tier twice",
        task(spec__swap__tiers=["dram", "dram"]),
        "spec.swap.tiers",
        "the tier dram is named twice",
        CLUSTER,
    ),
    Wrong(
        "a tier nobody knows",
        task(spec__swap__tiers=["dram", "nvm"]),
        "spec.swap.tiers[1]",
        "did you mean nvme?",
        CLUSTER,
    ),
    Wrong(
        "a tier that is not in a list",
        task(spec__swap__tiers="dram"),
        "spec.swap.tiers",
        "write a list",
        CLUSTER,
    ),
    Wrong(
        "a swap policy in capitals",
        task(spec__swap__policy="STREAM"),
        "spec.swap.policy",
        "did you mean Stream?",
        CLUSTER,
    ),
    Wrong(
        "an object named twice",
        task(
            spec__swap__policy="Swap", spec__swap__objects=[{"name": "#0", "policy": "Stream"}] * 2
        ),
        "spec.swap.objects",
        "the object '#0' is named twice",
        CLUSTER,
    ),
    Wrong(
        "allocations of a program with layers",
        task(spec__swap__objects=[{"name": "#0", "policy": "Stream"}]),
        "spec.swap.objects",
        "swapped with policy Swap; write that policy, or names of layers",
        CLUSTER,
    ),
    Wrong(
        "layers of a program that is swapped whole",
        task(spec__swap__policy="Swap", spec__swap__objects=[{"name": "head", "policy": "Stream"}]),
        "spec.swap.objects",
        "write numbers, such as #0, #3-7 or #3-, or another policy",
        CLUSTER,
    ),
    Wrong(
        "a tier for allocations",
        task(
            spec__swap__policy="Swap",
            spec__swap__objects=[{"name": "#0", "policy": "Stream", "tier": "dram"}],
        ),
        "spec.swap.objects",
        "write its policy, and leave tier out",
        CLUSTER,
    ),
    Wrong(
        "an object with a number that is none",
        task(spec__swap__policy="Swap", spec__swap__objects=[{"name": "#a", "policy": "Stream"}]),
        "spec.swap.objects[0].name",
        "numbers of allocations, such as #0, #3-7 or #3-",
        CLUSTER,
    ),
    Wrong(
        "an object in a tier that the task does not name",
        task(
            spec__swap__tiers=["dram", "nvme"],
            spec__swap__objects=[{"name": "embed.*", "tier": "pmem"}],
        ),
        "spec.swap.objects",
        "has the tier pmem, which is not one of tiers; add it there, or write dram or nvme",
        CLUSTER,
    ),
    Wrong(
        "an object that streams where all stays resident",
        task(
            spec__swap__policy="Resident",
            spec__swap__objects=[{"name": "embed.*", "policy": "Stream"}],
        ),
        "spec.swap.objects",
        "policy Resident keeps all weights; write policy Auto or Stream",
        CLUSTER,
    ),
    Wrong(
        "an object that wishes nothing",
        task(spec__swap__objects=[{"name": "embed.*"}]),
        "spec.swap.objects[0]",
        "wishes nothing; write a policy, a tier or both",
        CLUSTER,
    ),
    Wrong(
        "containers that are no list",
        task(spec__template={"spec": {"containers": {"name": "a", "command": ["x"]}}}),
        "spec.template.spec.containers",
        "write a list",
        CLUSTER,
    ),
    Wrong(
        "no device",
        task(spec__device=REMOVED),
        "spec.device",
        "is missing; write device",
        CLUSTER,
    ),
    Wrong(
        "a gpu by another name",
        task(spec__device__kind="gpu"),
        "spec.device.kind",
        "write one of cpu, cuda",
        CLUSTER,
    ),
    Wrong(
        "neither releases nor training",
        task(spec__realtime=REMOVED),
        "spec",
        "realtime is missing; write it, or training: {} for a task that trains",
        CLUSTER,
    ),
    Wrong(
        "training with a deadline",
        task(spec__training={}),
        "spec",
        "the criticality of a task with training is BestEffort",
        CLUSTER,
    ),
    Wrong(
        "training on a gpu",
        task(spec__training={}, spec__realtime=REMOVED, spec__device__kind="cuda"),
        "spec",
        "a task with training runs on a cpu device",
        CLUSTER,
    ),
    Wrong(
        "training for no step",
        task(spec__training={"steps": 0}, spec__realtime=REMOVED),
        "spec.training.steps",
        "it must be greater than or equal to 1",
        CLUSTER,
    ),
    Wrong(
        "a captured graph on the cpu",
        task(spec__device__execution="CapturedGraph"),
        "spec.device",
        "execution CapturedGraph needs a GPU: write kind cuda",
        CLUSTER,
    ),
    Wrong(
        "a misspelt field",
        task(spec__realtime__deadine="80ms"),
        "spec.realtime.deadine",
        "did you mean deadline?",
        CLUSTER,
    ),
    Wrong(
        "a misspelt field that leaves the right one missing",
        task(spec__realtime={"perod": "80ms"}),
        "spec.realtime.perod",
        "did you mean period?",
        CLUSTER,
    ),
    Wrong(
        "the name of a field in Python",
        task(spec__realtime__period_s="80ms"),
        "spec.realtime.period_s",
        "did you mean period?",
        CLUSTER,
    ),
    Wrong(
        "a field that belongs one level up",
        task(spec__realtime__memory={"budget": "1Gi"}),
        "spec.realtime.memory",
        "write one of criticality, deadline, executionTime, measuringLimit, period",
        CLUSTER,
    ),
    Wrong(
        "negative replicas",
        task(spec__replicas=-1),
        "spec.replicas",
        "greater than or equal to 0",
        CLUSTER,
    ),
    Wrong(
        "replicas in quotes",
        task(spec__replicas="2"),
        "spec.replicas",
        "a whole number without quotes",
        CLUSTER,
    ),
    Wrong(
        "a thousand and one replicas",
        task(spec__replicas=1001),
        "spec.replicas",
        "less than or equal to 1000",
        CLUSTER,
    ),
    Wrong(
        "a profile that is no object's name",
        task(spec__profile="My Profile"),
        "spec.profile",
        "with a letter or digit at both ends",
        CLUSTER,
    ),
    Wrong(
        "a profile with a point, which no MemProfile has in its name",
        task(spec__profile="camera.v2"),
        "spec.profile",
        "lower-case letters, digits and '-'",
        CLUSTER,
    ),
    Wrong(
        "a spec that is a list",
        task(spec=[]),
        "spec",
        "write a mapping of fields",
        CLUSTER,
    ),
    Wrong(
        "no spec",
        task(spec=REMOVED),
        "spec",
        "is missing; write spec (what the task needs)",
        CLUSTER,
    ),
    Wrong(
        "a name with a point",
        task(metadata__name="camera.front"),
        "metadata.name",
        "lower-case letters, digits and '-'",
        CLUSTER,
    ),
    Wrong(
        "a name of 64 characters",
        task(metadata__name="a" * 64),
        "metadata.name",
        "at most 63 characters",
        CLUSTER,
    ),
    Wrong(
        "a name that leaves its folder",
        task(metadata__name="../etc"),
        "metadata.name",
        "lower-case letters, digits and '-'",
        LOCAL,
    ),
    Wrong(
        "no name",
        task(metadata__name=REMOVED),
        "metadata.name",
        "is missing; write name",
        LOCAL,
    ),
    Wrong(
        "a field of metadata nobody knows",
        task(metadata__label={"a": "b"}),
        "metadata.label",
        "did you mean labels?",
        LOCAL,
    ),
    Wrong(
        "a label that YAML reads as a truth value",
        task(metadata__labels={"gpu": True}),
        "metadata.labels.gpu",
        "a text; put it in quotes",
        LOCAL,
    ),
    Wrong(
        "a template without containers",
        task(spec__template__spec__containers=[]),
        "spec.template.spec.containers",
        "at least 1 of them",
        LOCAL,
    ),
    Wrong(
        "a template whose containers have no command",
        task(spec__template__spec__containers=[{"name": "app", "image": "x"}]),
        "spec.template.spec.containers[0].command",
        "no container has a command; write the program",
        LOCAL,
    ),
    Wrong(
        "a command that is one text",
        task(spec__template__spec__containers__0__command="python camera.py"),
        "spec.template.spec.containers[0].command",
        "write a list",
        LOCAL,
    ),
    Wrong(
        "a command with a number",
        task(spec__template__spec__containers__0__command=["sleep", 5]),
        "spec.template.spec.containers[0].command[1]",
        "a text; put it in quotes",
        LOCAL,
    ),
    Wrong(
        "a container without a name",
        task(spec__template__spec__containers=[{"command": ["x"]}]),
        "spec.template.spec.containers[0].name",
        "is missing",
        LOCAL,
    ),
    Wrong(
        "another version",
        task(apiVersion="tierline.io/v1"),
        "apiVersion",
        "write tierline.io/v1alpha1",
        LOCAL,
    ),
    Wrong(
        "a kind in small letters",
        task(kind="memtask"),
        "kind",
        "did you mean MemTask?",
        LOCAL,
    ),
    Wrong(
        "a kind of Kubernetes",
        task(kind="Deployment", apiVersion="apps/v1"),
        "kind",
        "write one of MemNode, MemProfile, MemTask",
        LOCAL,
    ),
    Wrong(
        "a kind that is a list",
        task(kind=["MemTask"]),
        "kind",
        "is no kind of Tierline",
        LOCAL,
    ),
    Wrong(
        "a profile without layers",
        profile(spec__layers=[]),
        "spec.layers",
        "at least 1 of them",
        CLUSTER,
    ),
    Wrong(
        "a layer of negative size",
        profile(spec__layers__1__bytes=-1),
        "spec.layers[1].bytes",
        "greater than or equal to 0",
        CLUSTER,
    ),
    Wrong(
        "a compute time without unit",
        profile(spec__layers__0__computeTime="12"),
        "spec.layers[0].computeTime",
        "write 12ms or 12s",
        CLUSTER,
    ),
    Wrong(
        "an arena beyond the last",
        profile(spec__layers__0__arena=16),
        "spec.layers[0].arena",
        "less than or equal to 15",
        CLUSTER,
    ),
    Wrong(
        "a workspace alone beyond the budget",
        task(spec__memory__workspace="2Gi"),
        "spec",
        "write a budget of at least 2Gi",
        CLUSTER,
    ),
    Wrong(
        "jobs of an arena without layers",
        profile(spec__calls=[1, 1, 3]),
        "spec.calls",
        "must not name jobs of an arena without layers; write one number for each arena",
        CLUSTER,
    ),
    Wrong(
        "no job of an arena with layers that stream",
        profile(spec__calls=[1, 0]),
        "spec.calls",
        "must not be 0 of an arena with layers that are not pinned",
        CLUSTER,
    ),
    Wrong(
        "a release without jobs",
        profile(spec__layers__1=_PINNED, spec__calls=[0, 0]),
        "spec.calls",
        "must not be 0 of all arenas; write how many jobs a release has",
        CLUSTER,
    ),
    Wrong(
        "time between the jobs of a release that has one",
        profile(spec__layers__1__arena=0, spec__between="1ms"),
        "spec.between",
        "must be 0 where a release has one job; leave it out, or write calls",
        CLUSTER,
    ),
    Wrong(
        "a longer first job without its section",
        profile(spec__firstExtra="1ms"),
        "spec.firstExtra",
        "counts with firstSection, which is missing; write it too",
        CLUSTER,
    ),
    Wrong(
        "a step that trains with layers",
        profile(spec__state="1Mi"),
        "spec.state",
        "one layer of 0 bytes, a step; write that, or leave state out",
        CLUSTER,
    ),
    Wrong(
        "a context on a device of unknown memory",
        node(status__devices__0__contextBytes=1),
        "status.devices[0].contextBytes",
        "which is absent; write it too",
        CLUSTER,
    ),
    Wrong(
        "a device twice",
        node(status__devices=_NODE["status"]["devices"] * 2),
        "status.devices",
        "must not repeat a name; name each device once",
        CLUSTER,
    ),
    Wrong(
        "a tier twice on a node",
        node(status__tiers=_NODE["status"]["tiers"] * 2),
        "status.tiers",
        "must not repeat a name; name each tier once",
        CLUSTER,
    ),
    Wrong(
        "a link twice",
        node(status__links=_NODE["status"]["links"] * 2),
        "status.links",
        "must not repeat a path of a device; name each once",
        CLUSTER,
    ),
    *(
        Wrong(pair.id, pair.wrong, pair.field, pair.says, CLUSTER)
        for pair in pairs({"MemTask": task(), "MemProfile": profile(), "MemNode": node()})
    ),
    Wrong(
        "an extent size that is no power of two",
        node(status__devices__0__extentBytes=4000000),
        "status.devices[0].extentBytes",
        "write a power of two from 65536 (64 KiB)",
        CLUSTER,
    ),
    Wrong(
        "a digest that is cut off",
        profile(spec__digest="0123"),
        "spec.digest",
        "at least 64 characters",
        CLUSTER,
    ),
    Wrong(
        "a truth value in quotes",
        profile(spec__layers__0__pinned="yes"),
        "spec.layers[0].pinned",
        "write true or false",
        CLUSTER,
    ),
    Wrong(
        "a node in a namespace",
        node(metadata__namespace="robot"),
        "metadata.namespace",
        "there is no such field",
        LOCAL,
    ),
    Wrong(
        "a device whose name is no label",
        node(status__devices__0__name="a/b c\n"),
        "status.devices[0].name",
        "lower-case",
        CLUSTER,
    ),
    Wrong(
        "a link to a device whose name is no label",
        node(status__links__0__device="GPU 0"),
        "status.links[0].device",
        "lower-case",
        CLUSTER,
    ),
    Wrong(
        "a link that stands still",
        node(status__links__0__bandwidth=0),
        "status.links[0].bandwidth",
        "greater than or equal to 1",
        CLUSTER,
    ),
    Wrong(
        "a link nobody knows",
        node(status__links__0__name="dram-read"),
        "status.links[0].name",
        "pmem-read",
        CLUSTER,
    ),
    Wrong(
        "a plan whose homes do not add up",
        task(status__plan=plan(homes=[{"tier": "dram", "extents": 4}])),
        "status.plan",
        "homes name tiers for 4 extents; extentCount is 5",
        CLUSTER,
    ),
    Wrong(
        "a plan that streams without a ring",
        task(status__plan=plan(ringExtents=0)),
        "status.plan",
        "ringExtents must be at least 1",
        CLUSTER,
    ),
    Wrong(
        "a plan that names an extent beyond its last",
        task(status__plan=plan(residentExtents=[0, 5])),
        "status.plan",
        "residentExtents names extent 5 of 5",
        CLUSTER,
    ),
    Wrong(
        "a plan whose resident extents are not in order",
        task(status__plan=plan(residentExtents=[2, 0])),
        "status.plan",
        "ascending without repetition",
        LOCAL,
    ),
)
