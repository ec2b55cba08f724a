"""MemProfile: a model as it was measured: layers, workspace and digest, on one device product."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from tierline_api.devices.device import DeviceKind
from tierline_api.schema.base import API_VERSION, ApiModel, Rule
from tierline_api.schema.fields import Bytes, Count, Digest, Flag, Seconds, Text
from tierline_api.schema.metadata import LABEL_NAME, ObjectMeta
from tierline_api.schema.quantities import format_duration, size_for_people, time_for_people

MAX_LAYERS: Final = 4096
"""Most layers of a profile; keeps the object below etcd's limit, if long names are of ASCII."""
MAX_ARENAS: Final = 16
"""Most arenas of a task."""
MAX_CALLS: Final = 65_536
"""Most jobs of an arena in one release."""
EXTENT_SIZES: Final = tuple(2**power for power in range(16, 31))
"""Sizes that an extent may have: 64 KiB to 1 GiB, in bytes."""

_ROUNDED: Final = 1 + 1e-6
_WRITTEN_S: Final = 1e-9
"""Equal times may be so far from each other, as they were computed and as they are written."""


class ProfiledDevice(ApiModel):
    """The device on which the model was measured."""

    kind: DeviceKind
    """cpu or cuda."""
    product: Annotated[str, Field(min_length=1, max_length=128)]
    """The product name as MemNode reports it."""


class Layer(ApiModel):
    """One layer, in the order in which a job runs them."""

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

    @field_validator("mean_compute_time_s")
    @classmethod
    def _is_no_longer_than_the_worst(
        cls, mean_s: float | None, info: ValidationInfo
    ) -> float | None:
        worst_s: float | None = info.data.get("compute_time_s")
        if mean_s is None or worst_s is None:
            return mean_s
        if mean_s > worst_s * _ROUNDED + _WRITTEN_S:
            raise ValueError(
                f"the mean {format_duration(mean_s)} is longer than computeTime, the worst "
                f"{format_duration(worst_s)}; measure the model again, or write one that is not"
            )
        return mean_s


class MemProfileSpec(ApiModel):
    """The measurement."""

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
