"""MemProfile: a model as it was measured: layers, workspace and digest, on one device product."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from tierline_api.devices.device import DeviceKind
from tierline_api.schema.base import API_VERSION, ApiModel, Check, Rule
from tierline_api.schema.checks import Holds, at_least, at_most
from tierline_api.schema.fields import Bytes, Count, Digest, Flag, Seconds, Text, guarded
from tierline_api.schema.metadata import LABEL_NAME, ObjectMeta
from tierline_api.schema.quantities import size_for_people, time_for_people

MAX_LAYERS: Final = 4096
"""Most layers of a profile; keeps the object below etcd's limit, if long names are of ASCII."""
MAX_ARENAS: Final = 16
"""Most arenas of a task."""
MAX_CALLS: Final = 65_536
"""Most jobs of an arena in one release."""
_ARENAS: Final = f"{list(range(MAX_ARENAS))}"
_JOBS: Final = (
    f"self.calls.sum() + {_ARENAS}.filter(n, n >= self.calls.size() && "
    "self.layers.exists(l, l.arena == n)).size()"
)
"""The jobs of a release, in CEL: see `release_jobs`."""
_AGAIN: Final = "measure the model again, or write one that is not"


class ProfiledDevice(ApiModel):
    """The device on which the model was measured."""

    kind: DeviceKind
    """cpu or cuda."""
    product: Annotated[str, Field(min_length=1, max_length=128)]
    """The product name as MemNode reports it."""


class Layer(ApiModel):
    """One layer, in the order in which a job runs them."""

    checks: ClassVar[tuple[Check, ...]] = (
        at_most("mean_compute_time_s", "compute_time_s", _AGAIN),
        at_least("longest_compute_time_s", "compute_time_s", _AGAIN),
    )

    name: Annotated[str, Field(max_length=253)]
    """Name of the module, or of the launch."""
    bytes: Count
    """Bytes of weights that this layer reads and no earlier one, padding included."""
    compute_time_s: Seconds
    """The worst measured compute time of the layer with its weights in fast memory."""
    mean_compute_time_s: Seconds | None = None
    """The mean of it, by which Soft tasks are admitted."""
    longest_compute_time_s: Seconds | None = None
    """The longest time of this layer in any job; `computeTime` is its part of the longest job."""
    pinned: Flag = False
    """Whether the weights must stay resident."""
    arena: Annotated[Count, Field(le=MAX_ARENAS - 1)] = 0
    """The arena that holds the weights: one for each model of the process."""


class MemProfileSpec(ApiModel):
    """The measurement."""

    checks: ClassVar[tuple[Check, ...]] = (
        Holds["MemProfileSpec"](
            "calls",
            lambda spec: spec.arenas >= {n for n, jobs in enumerate(spec.calls) if jobs},
            f"{_ARENAS}.all(n, n >= self.calls.size() || self.calls[n] == 0 || "
            "self.layers.exists(l, l.arena == n))",
            "calls must not name jobs of an arena without layers; write one number for each arena, "
            "or leave calls out for one job of each",
        ),
        Holds["MemProfileSpec"](
            "calls",
            lambda spec: all(
                layer.pinned or layer.arena >= len(spec.calls) or spec.calls[layer.arena]
                for layer in spec.layers
            ),
            "self.layers.all(l, l.pinned || l.arena >= self.calls.size() || "
            "self.calls[l.arena] > 0)",
            "calls must not be 0 of an arena with layers that are not pinned; write how many jobs "
            "of it a release has",
        ),
        Holds["MemProfileSpec"](
            "calls",
            lambda spec: not spec.calls or spec.release_jobs > 0,
            f"self.calls.size() == 0 || {_JOBS} > 0",
            "calls must not be 0 of all arenas; write how many jobs a release has",
        ),
        Holds["MemProfileSpec"](
            "between_s",
            lambda spec: spec.between_s == 0 or spec.release_jobs > 1,
            guarded(
                f"duration(self.between) == duration('0s') || {_JOBS} > 1",
                durations=("self.between",),
            ),
            "between must be 0 where a release has one job; leave it out, or write calls",
        ),
        Holds["MemProfileSpec"](
            "first_extra_s",
            lambda spec: spec.first_extra_s == 0 or spec.first_section_s is not None,
            "has(self.firstSection) || "
            + guarded(
                "duration(self.firstExtra) == duration('0s')", durations=("self.firstExtra",)
            ),
            "firstExtra counts with firstSection, which is missing; write it too",
        ),
        Holds["MemProfileSpec"](
            "state_bytes",
            lambda spec: (
                spec.state_bytes is None
                or (len(spec.layers) == 1 and spec.weight_bytes == 0 and spec.release_jobs == 1)
            ),
            "!has(self.state) || (self.layers.size() == 1 && self.layers[0].bytes == 0 && "
            f"{_JOBS} == 1)",
            "state is of a program that trains: one layer of 0 bytes, a step; write that, or leave "
            "state out",
        ),
    )

    device: ProfiledDevice
    """The device on which the model was measured."""
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """The layers in the order in which a job runs them."""
    workspace_bytes: Annotated[
        Bytes, Field(validation_alias="workspace", serialization_alias="workspace")
    ]
    """The peak of everything that is not weights."""
    workspace_known: Flag = True
    """Whether that peak was seen; if not, workspace is what inputs and buffers take."""
    state_bytes: Annotated[
        Bytes | None, Field(validation_alias="state", serialization_alias="state")
    ] = None
    """Of a program that trains: bytes of parameters, gradients and optimizer state, which stay in
    fast memory between its steps. Its one layer is a step, and firstSection the longest time from
    one moment at which it can give the device away to the next."""
    calls: Annotated[
        tuple[Annotated[Count, Field(le=MAX_CALLS)], ...], Field(max_length=MAX_ARENAS)
    ] = ()
    """How many jobs of each arena one release has, at most; absent: one of each."""
    between_s: Seconds = 0.0
    """What a release takes between its jobs, in all, at most."""
    jitter_s: Seconds = 0.0
    """The longest time from a release to the begin of its first job."""
    first_section_s: Seconds | None = None
    """The longest time for which a program's first jobs, in which it initialises and learns, have
    the device before they can give it away; absent if that was not measured."""
    first_extra_s: Seconds = 0.0
    """How much longer than its worst later one a first job takes."""
    digest: Digest | None = None
    """SHA-256 digest of the weights as they lie in their arenas: 64 hexadecimal digits."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def arenas(self) -> frozenset[int]:
        """The arenas that layers name."""
        return frozenset(layer.arena for layer in self.layers)

    @property
    def release_jobs(self) -> int:
        """How many jobs a release has: one of each arena that `calls` do not name."""
        return sum(self.calls) + sum(arena >= len(self.calls) for arena in self.arenas)

    @property
    def compute_s(self) -> float:
        """The compute time of a job in seconds, all weights resident."""
        return sum(layer.compute_time_s for layer in self.layers)


class MemProfileStatus(ApiModel):
    """The measurement as people read it: whole Mi, and ms, rounded up."""

    weights: Text | None = None
    """Bytes of all layers."""
    workspace: Text | None = None
    """The peak of everything else."""
    compute_time: Text | None = None
    """How long a job computes at worst, all weights resident."""


class MemProfile(ApiModel):
    """A measured model: layers, workspace peak, digest of the weights."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (LABEL_NAME,)

    api_version: Literal["tierline.io/v1alpha1"] = API_VERSION
    """tierline.io/v1alpha1."""
    kind: Literal["MemProfile"] = "MemProfile"
    """MemProfile."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: MemProfileSpec
    """The measurement."""
    status: MemProfileStatus | None = None
    """For people; written by the operator."""

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.metadata.name

    @property
    def shown(self) -> MemProfileStatus:
        """What its status is to say."""
        return MemProfileStatus(
            weights=size_for_people(self.spec.weight_bytes),
            workspace=size_for_people(self.spec.workspace_bytes),
            compute_time=time_for_people(self.spec.compute_s),
        )
