"""MemProfile: a model as it was measured: layers, workspace and digest, on one device product."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator

from .base import API_VERSION, ApiModel, Rule
from .device import DeviceKind
from .fields import Bytes, Count, Digest, Flag, PositiveCount, Seconds
from .metadata import LABEL_NAME, ObjectMeta

MAX_LAYERS: Final = 4096
"""Most layers of a profile; keeps the object below etcd's limit, if long names are of ASCII."""
MAX_ARENAS: Final = 16
"""Most arenas of a task."""
EXTENT_SIZES: Final = tuple(2**power for power in range(16, 31))
"""Sizes that an extent may have: 64 KiB to 1 GiB, in bytes."""


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
    pinned: Flag = False
    """Whether the weights must stay resident."""
    arena: Annotated[Count, Field(le=MAX_ARENAS - 1)] = 0
    """The arena that holds the weights: one for each model of the process."""


class MemProfileSpec(ApiModel):
    """The measurement."""

    device: ProfiledDevice
    """The device on which the model was measured."""
    extent_bytes: (
        Annotated[PositiveCount, Field(json_schema_extra={"enum": list(EXTENT_SIZES)})] | None
    ) = None
    """Extent size of that device in bytes, a power of two; layers are independent of it."""
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """The layers in the order in which a job runs them."""
    workspace_bytes: Annotated[
        Bytes, Field(validation_alias="workspace", serialization_alias="workspace")
    ]
    """The peak of everything that is not weights."""
    digest: Digest | None = None
    """BLAKE3 digest of the weights: 64 hexadecimal digits."""

    @field_validator("extent_bytes")
    @classmethod
    def _power_of_two(cls, extent_bytes: int | None) -> int | None:
        if extent_bytes is not None and extent_bytes not in EXTENT_SIZES:
            raise ValueError(
                f"{extent_bytes} bytes is no extent size; write a power of two"
                " from 65536 (64 KiB) to 1073741824 (1 GiB)"
            )
        return extent_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def compute_s(self) -> float:
        """The compute time of a job in seconds, all weights resident."""
        return sum(layer.compute_time_s for layer in self.layers)


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

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.metadata.name
