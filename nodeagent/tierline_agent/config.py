"""The agent's settings: one JSON file, typed; what is unknown or contradictory fails loudly.

It reads one file and touches nothing else: whether paths exist or are writable is found out by
those that use them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tierline_agent.errors import ConfigError
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.extents import EXTENT_SIZES, USUAL_EXTENT_BYTES
from tierline_api.devices.margins import MARGINS
from tierline_api.manifests.mistakes import first_mistake

TierName = Literal["dram", "pmem", "nvme"]


class _Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class DeviceSettings(_Settings):
    """The device of this agent."""

    kind: Literal["cpu", "cuda"] = "cpu"
    """Kind of device."""
    index: Annotated[int | None, Field(ge=0)] = None
    """The CUDA driver's number of the GPU; 0 if neither this nor uuid is given."""
    uuid: Annotated[str | None, Field(pattern=r"^(GPU|MIG)-")] = None
    """The GPU as NVML names it, instead of its number."""
    fast_bytes: Annotated[int, Field(ge=EXTENT_SIZES[0])]
    """Fast memory that tasks may use together, extents and workspaces, bytes."""
    extent_bytes: Annotated[int, Field(ge=EXTENT_SIZES[0], le=EXTENT_SIZES[-1])] = Field(
        default_factory=lambda others: USUAL_EXTENT_BYTES[others.get("kind", "cpu")]
    )
    """Size of an extent, bytes; a power of two. Default 4 MiB on cpu, 32 MiB on cuda."""
    margin: Annotated[float | None, Field(ge=1)] = None
    """The margin with which plans for it are made: a link that does less than so much slower than
    it was measured has drifted. Default 1.3 on cpu, 1.1 on cuda."""

    @property
    def plan_margin(self) -> float:
        """The margin, chosen or usual."""
        return MARGINS[DeviceKind(self.kind)] if self.margin is None else self.margin

    @model_validator(mode="after")
    def _check_sizes(self) -> DeviceSettings:
        if self.kind == "cpu" and (self.index is not None or self.uuid is not None):
            raise ValueError("index and uuid name a GPU, and kind is cpu")
        if self.index is not None and self.uuid is not None:
            raise ValueError("index and uuid both name a GPU; give one")
        if self.extent_bytes & (self.extent_bytes - 1):
            raise ValueError(f"extent_bytes {self.extent_bytes} is not a power of two")
        if self.extent_bytes > self.fast_bytes:
            raise ValueError(
                f"extent_bytes {self.extent_bytes} is more than fast_bytes {self.fast_bytes}"
            )
        return self


class TierSettings(_Settings):
    """A lower tier."""

    name: TierName
    """The medium's kind, and the tier's name: there is at most one tier of a kind."""
    path: Annotated[str, Field(min_length=1)]
    """File or device that holds it."""
    size_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes to use; 0 for all of an existing file or device."""


class Limits(_Settings):
    """Bounds on what clients can make the agent hold."""

    tasks: Annotated[int, Field(ge=1, le=4096)] = 256
    """Registered tasks."""
    clients: Annotated[int, Field(ge=1, le=4096)] = 256
    """Connections of all tasks together."""
    clients_per_task: Annotated[int, Field(ge=1, le=256)] = 8
    """Connections of one task."""
    arenas: Annotated[int, Field(ge=1, le=16)] = 16
    """Arenas of one client."""
    staging_slots: Annotated[int, Field(ge=1, le=64)] = 4
    """Extents of staging memory of one client (host memory, outside fast_bytes)."""
    outstanding_requests: Annotated[int, Field(ge=2, le=256)] = 16
    """Requests of one client that may be unanswered; reading pauses beyond it."""
    outgoing_bytes: Annotated[int, Field(ge=1 << 17)] = 4 << 20
    """Unsent bytes at which a client that does not read is closed."""
    queued_transfers: Annotated[int, Field(ge=16)] = 16384
    """Transfers waiting at one link."""
    job_records: Annotated[int, Field(ge=16)] = 65536
    """Job records kept for the administrator; older ones are dropped."""
    admin_line_bytes: Annotated[int, Field(ge=4096)] = 8 << 20
    """Longest admin request."""


class KubernetesSettings(_Settings):
    """The agent as the DRA driver of a Kubernetes node; `{}` is right in the chart's pod."""

    plugin_dir: Annotated[str, Field(min_length=1)] = "/var/lib/kubelet/plugins/tierline.io"
    """Folder of the socket that the kubelet calls."""
    registry_dir: Annotated[str, Field(min_length=1)] = "/var/lib/kubelet/plugins_registry"
    """Folder in which the kubelet looks for plugins."""
    cdi_dir: Annotated[str, Field(min_length=1)] = "/var/run/cdi"
    """Folder in which the container runtime looks for descriptions of devices."""
    pods_dir: Annotated[str, Field(min_length=1)] = "/var/lib/tierline/pods"
    """Folder of the pods' own folders; at the same path for the container runtime."""
    library_dir: Annotated[str, Field(min_length=1)] = "/var/lib/tierline/lib"
    """Folder of the versions of library and plugin that pods use; in one file system with pods_dir,
    and at the same path for the container runtime."""
    bundle_dir: Annotated[str, Field(min_length=1)] = "/opt/tierline"
    """Library and plugin as the agent's image brings them: VERSION/libtierline.so and
    VERSION/python."""
    report_period_s: Annotated[float, Field(gt=0, le=3600, strict=False)] = 30.0
    """Least time between two reports of one claim or of the node, seconds."""
    reconnect_s: Annotated[float, Field(gt=0, le=86_400, strict=False)] = 900.0
    """For so long programs in pods wait for an agent that is away; then their requests fail."""
    hand_over: Annotated[bool, Field(strict=True)] = False
    """Whether to wait, as ready, for the end of an agent that serves this node, rather than refuse
    to start: where the next agent is started before that one is ended."""


class AgentConfig(_Settings):
    """Everything that `python -m tierline_agent --config FILE` reads."""

    state_dir: Annotated[str, Field(min_length=1)]
    """Folder whose content survives a restart: registered tasks, measured links."""
    run_dir: Annotated[str, Field(min_length=1)]
    """Folder of the sockets."""
    device: DeviceSettings | None = None
    """The device, if there is one."""
    devices: Annotated[tuple[DeviceSettings, ...], Field(max_length=64, strict=False)] = ()
    """The devices, instead of device, if there are several; their extents have one size."""
    tiers: Annotated[tuple[TierSettings, ...], Field(min_length=1, strict=False)]
    """The tiers, at least one."""
    metrics_port: Annotated[int | None, Field(ge=0, le=65535)] = None
    """TCP port of the Prometheus endpoint; none if null, any free one if 0."""
    metrics_address: str = "127.0.0.1"
    """Address the Prometheus endpoint binds to."""
    node_name: str = ""
    """Name of the node; the environment's NODE_NAME if empty, and without that the host's name."""
    kubernetes: KubernetesSettings | None = None
    """Serve a node of Kubernetes; none if null."""
    recovery_s: Annotated[float, Field(ge=0, le=60, strict=False)] = 2.0
    """After a restart, how long leases wait for the clients known before, seconds."""
    holder_grace_s: Annotated[float, Field(ge=0, le=600, strict=False)] = 10.0
    """After a restart, how long a live process that was inside a job may take to come back before
    it is killed, seconds: until then no job of its trust domain may touch the ring that it computes
    from, and after recovery_s all others go on. As long
    may one live that left in the middle of a job, where others share its workspace."""
    revoke_grace_s: Annotated[float, Field(gt=0, le=600, strict=False)] = 5.0
    """How long a client may take to acknowledge a REVOKE before it is killed, seconds."""
    job_limit_s: Annotated[float, Field(gt=0, le=86400, strict=False)] = 30.0
    """How long a job may have the device before it counts as stuck, seconds; where its plan has it
    take more than a tenth of that, ten times as long as planned, and where it is no counted job
    (warm-up) ten times this. As soon as others wait it is then revoked, and its program killed if
    it does not acknowledge that."""
    limits: Limits = Limits()

    @property
    def all_devices(self) -> tuple[DeviceSettings, ...]:
        """The devices, however they are written."""
        return self.devices if self.device is None else (self.device,)

    @property
    def extent_bytes(self) -> int:
        """Size of every device's extents, bytes."""
        return self.all_devices[0].extent_bytes

    @property
    def tasks_dir(self) -> Path:
        """Folder of the tasks' own folders, in each of which is a socket."""
        where = self.kubernetes.pods_dir if self.kubernetes else None
        return Path(where) if where else Path(self.run_dir) / "tasks"

    @model_validator(mode="after")
    def _check_devices(self) -> AgentConfig:
        if (self.device is None) == (not self.devices):
            raise ValueError("give either device or devices")
        if len({device.extent_bytes for device in self.devices}) > 1:
            raise ValueError("devices: all must have the same extent_bytes")
        which = [(one.kind, one.uuid or one.index or 0) for one in self.devices]
        if len(set(which)) < len(which):
            raise ValueError("devices: one is named twice")
        return self

    @model_validator(mode="after")
    def _check_tiers(self) -> AgentConfig:
        names: list[str] = [tier.name for tier in self.tiers]
        paths = [tier.path for tier in self.tiers]
        for what, values in (("name", names), ("path", paths)):
            twice = {value for value in values if values.count(value) > 1}
            if twice:
                raise ValueError(f"tiers: two tiers have the {what} {sorted(twice)[0]!r}")
        for tier in self.tiers:
            if 0 < tier.size_bytes < self.extent_bytes:
                raise ValueError(
                    f"tiers: {tier.name} has size_bytes {tier.size_bytes}, "
                    f"less than one extent (device.extent_bytes {self.extent_bytes})"
                )
        return self


def parse_config(text: str, source: str) -> AgentConfig:
    """Read settings from JSON `text`; `source` is named in errors.

    Raises:
        ConfigError: not JSON, or a field is unknown, missing, of the wrong type or contradictory.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"cannot read the settings in {source}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"cannot use the settings in {source}: they are no JSON object; write one with the "
            "fields device, tiers, state_dir and run_dir"
        )
    try:
        return AgentConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            f"cannot use the settings in {source}: {describe(AgentConfig, error)}"
        ) from error


def load_config(path: Path) -> AgentConfig:
    """Read the settings in the file at `path`.

    Raises:
        ConfigError: it cannot be read, or see `parse_config`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error
    return parse_config(text, str(path))


def describe(model: type[BaseModel], error: ValidationError) -> str:
    """The fault in a `model`, and what to write instead, as for manifests."""
    mistake = first_mistake(model, error)
    return f"{mistake.field}: {mistake.problem}" if mistake.field else mistake.problem
