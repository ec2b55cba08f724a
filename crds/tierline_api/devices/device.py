"""The kinds of devices, and which of them a task may run on."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from tierline_api.schema.base import ApiModel, Rule


class DeviceKind(StrEnum):
    """The kind of a device."""

    CPU = "cpu"
    CUDA = "cuda"


class Execution(StrEnum):
    """How a model's kernels are launched."""

    DIRECT = "Direct"
    CAPTURED_GRAPH = "CapturedGraph"


class DeviceSelector(ApiModel):
    """Which devices the task may run on, and how."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.execution == 'Direct' || self.kind == 'cuda'",
            "execution CapturedGraph needs a GPU: write kind cuda",
            ".execution",
        ),
    )

    kind: DeviceKind
    """cpu or cuda."""
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """A part of the device's product name, such as H200; any device of the kind if absent."""
    execution: Execution = Execution.DIRECT
    """CapturedGraph runs a static PyTorch model as one CUDA graph: shorter and steadier jobs."""

    @model_validator(mode="after")
    def _graphs_need_a_gpu(self) -> Self:
        if self.execution != Execution.DIRECT and self.kind != DeviceKind.CUDA:
            raise ValueError("execution CapturedGraph needs a GPU: write kind cuda")
        return self

    def matches(self, kind: DeviceKind, product: str) -> bool:
        """Say whether a device of `kind` whose product name is `product` will do."""
        return kind == self.kind and (self.model or "").lower() in product.lower()
