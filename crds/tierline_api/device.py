"""The kinds of devices, and which of them a task may run on."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel


class DeviceKind(StrEnum):
    """The kind of a device."""

    CPU = "cpu"
    CUDA = "cuda"


class DeviceSelector(ApiModel):
    """Which devices the task may run on."""

    kind: DeviceKind
    """cpu or cuda."""
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """A part of the device's product name, such as H200; any device of the kind if absent."""

    def matches(self, kind: DeviceKind, product: str) -> bool:
        """Say whether a device of `kind` whose product name is `product` will do."""
        return kind == self.kind and (self.model or "").lower() in product.lower()
