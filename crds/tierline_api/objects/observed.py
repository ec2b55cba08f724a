"""The profile that an observed program writes of itself, and the MemProfile made of it. Pure.

The program writes lines of JSON (`tierline_torch.backends.observed`): first the number of its
process, then one for the output of each job, and when it was measured one that begins with
`{"profile"`; of several the last holds. That is its word and no more, so nothing is believed here
but what the API takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tierline_api.objects.memprofile import Layer, MemProfile, MemProfileSpec, ProfiledDevice
from tierline_api.schema.metadata import ObjectMeta

PROFILE_LINE: Final = '{"profile"'
"""How the line of the profile begins."""
BEGAN: Final = "began"
"""The key of the first line: the number of the process that began to write."""


@dataclass
class ObservedLayer:
    """One layer as it was seen; times in seconds, sizes in bytes."""

    name: str
    bytes: int
    compute_s: float
    pinned: bool
    arena: int
    longest_compute_s: float | None = None
    """In any job; None if layers were not timed."""
    mean_compute_s: float | None = None
    """None if it was not measured often enough to have one."""


@dataclass
class ObservedProfile:
    """What a program saw of its model."""

    layers: Sequence[ObservedLayer]
    workspace_bytes: int
    weights_digest: str
    """Empty if it is not known."""
    weights_digests: Sequence[str] = ()
    """Those of the arenas, if they are known."""
    calls: Sequence[int] = ()
    """By arena, the most jobs in one release."""
    between_s: float = 0.0
    """The most that a release took between its jobs."""
    jitter_s: float = 0.0
    """The longest time from a release to its first job."""
    first_section_s: float | None = None
    """How long a first job has the device at once, at most; None if that was not measured."""
    first_extra_s: float = 0.0
    """How much longer than its worst a first job takes."""
    workspace_known: bool = True
    """Whether the peak was seen; if not, the workspace is that of inputs and buffers alone."""
    state_bytes: int | None = None
    """Of one that trains: parameters, gradients and optimizer state."""

    @classmethod
    def written(cls, text: str) -> Self | None:
        """The profile in what a program wrote; None while it has written none.

        Raises:
            ValueError: the line of the profile is not as programs write it.
        """
        lines = (line for line in reversed(text.splitlines()) if line.startswith(PROFILE_LINE))
        line = next(lines, None)
        return None if line is None else cls.of_line(line)

    @classmethod
    def of_line(cls, line: str) -> Self:
        """The profile in the line of it.

        Raises:
            ValueError: it is not as programs write it.
        """
        try:
            seen: Mapping[str, Any] = json.loads(line)["profile"]
            return cls(
                layers=[_layer(layer) for layer in seen["layers"]],
                workspace_bytes=seen["workspace_bytes"],
                workspace_known=seen.get("workspace_known", True),
                weights_digest=seen["weights_digest"],
                weights_digests=tuple(seen.get("weights_digests", ())),
                calls=tuple(seen.get("calls", ())),
                between_s=seen.get("between_s", 0.0),
                jitter_s=seen.get("jitter_s", 0.0),
                first_section_s=seen.get("first_section_s"),
                first_extra_s=seen.get("first_extra_s", 0.0),
                state_bytes=seen.get("state_bytes"),
            )
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"it is written in another way: {error!r}") from error

    @property
    def weights_bytes(self) -> int:
        """All weights, streamed and pinned."""
        return sum(layer.bytes for layer in self.layers)

    def memprofile(self, metadata: ObjectMeta, device: ProfiledDevice) -> MemProfile:
        """The API's object, of a measurement on `device`.

        Raises:
            ValueError: it is not what the API takes.
        """
        layers = tuple(
            Layer(
                name=layer.name,
                bytes=layer.bytes,
                compute_time_s=layer.compute_s,
                mean_compute_time_s=layer.mean_compute_s,
                longest_compute_time_s=layer.longest_compute_s,
                pinned=layer.pinned,
                arena=layer.arena,
            )
            for layer in self.layers
        )
        return MemProfile(
            metadata=metadata,
            spec=MemProfileSpec(
                device=device,
                layers=layers,
                workspace_bytes=self.workspace_bytes,
                workspace_known=self.workspace_known,
                state_bytes=self.state_bytes,
                calls=tuple(self.calls),
                between_s=self.between_s,
                jitter_s=self.jitter_s,
                first_section_s=self.first_section_s,
                first_extra_s=self.first_extra_s,
                digest=self.weights_digest or None,
            ),
        )


def _layer(seen: Mapping[str, Any]) -> ObservedLayer:
    return ObservedLayer(
        name=seen["name"],
        bytes=seen["bytes"],
        compute_s=seen["compute_s"],
        pinned=seen["pinned"],
        arena=seen["arena"],
        mean_compute_s=seen.get("mean_compute_s"),
        longest_compute_s=seen.get("longest_compute_s"),
    )
