"""The part of an agent's start that waits for nobody: contexts, mappings of tiers, their pins.

It is done before devices and tiers are this agent's, and taken over by what opens them
(`open_devices`, `Storage.open`). What cannot be prepared is left to that, which says why. An agent
that starts alone goes the same way, without waiting in between.

Invariant: whatever is here belongs to this process and ends with it. No byte of a tier is written
or read, no extent is made. While another agent serves, a context is made and kept only where its
admission has room for one: what it promised to tasks is theirs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tierline_agent.config import AgentConfig, DeviceSettings
from tierline_agent.devices.opening import Named, prepare_devices
from tierline_agent.tiers import MappedMedium, TierError, content_offset, map_early
from tierline_api.devices.fast_memory import Contexts

_log = logging.getLogger(__name__)

Room = Mapping[str, int]
"""By their uuids the GPUs that have room for one more context, and what that takes, bytes."""


@dataclass(frozen=True)
class Prepared:
    """The parts that were prepared."""

    devices: dict[DeviceSettings, Named]
    media: Mapping[MappedMedium, int]
    """Tiers in memory, not claimed, and where on each the content begins, bytes."""

    def attach(self) -> None:
        """Pin the tiers for the devices; for seconds, in pieces."""
        began_s = time.monotonic()
        for name, device in [*self.devices.values()]:
            try:
                device.attach_media(self.media)
            except (TierError, OSError) as error:
                _log.warning("tiers are prepared for %s when it is opened: %s", name, error)
        _log.info("pinned tiers in %.2f s", time.monotonic() - began_s)

    def keep_to(self, room: Room) -> None:
        """Give back the devices that have no room any more, also during `attach`. Blocks."""
        for settings, (name, device) in [*self.devices.items()]:
            if device.uuid and device.uuid not in room:
                del self.devices[settings]
                device.give_back()
                _log.info("%s is left to the tasks until the agent that serves has ended", name)


def room_for_contexts(snapshot: Mapping[str, Any]) -> Room:
    """Where the agent that said so of itself leaves room for the context of another one."""
    tasks = Counter(task.get("device") for task in snapshot.get("tasks", ()))
    room = {}
    for device in snapshot.get("devices", ()):
        each, all_bytes = device.get("context_bytes", 0), device.get("memory_bytes") or 0
        contexts = Contexts(each, all_bytes - device.get("fast_limit_bytes", all_bytes))
        uuid, of = device.get("uuid"), tasks[device.get("name")]
        if uuid and all_bytes and not contexts.missing_bytes(of + 1):
            room[str(uuid)] = int(each)
    return room


def prepare(config: AgentConfig, room: Room | None = None) -> Prepared:
    """Make contexts and map tiers; `attach` is left to do.

    `room` is what the agent that serves leaves, None if there is none.

    Raises:
        ConfigError: there is no such device, or it has less memory.
        OSError: a driver does not start.
    """
    began_s = time.monotonic()
    media = _map(config)
    tiers_s = time.monotonic() - began_s
    devices = prepare_devices(config.all_devices, room)
    devices_s = time.monotonic() - began_s - tiers_s
    _log.info(
        "mapped %d bytes of tiers in %.2f s, made %d of %d devices in %.2f s",
        sum(medium.size_bytes for medium in media),
        *(tiers_s, len(devices), len(config.all_devices), devices_s),
    )
    return Prepared(devices, media)


def _map(config: AgentConfig) -> dict[MappedMedium, int]:
    media = {}
    for tier in config.tiers:
        medium = map_early(tier.name, tier.path, tier.size_bytes)
        if medium is None:
            continue
        offset = content_offset(config.extent_bytes, medium.size_bytes)
        if offset is None:
            medium.close()
        else:
            media[medium] = offset
    return media
