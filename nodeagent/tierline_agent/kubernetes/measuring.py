"""Profiles of tasks that run alone to be measured: what the pod wrote becomes its MemProfile.

The pod writes lines of JSON into a folder of its own (`tierline_torch.observe`); they are no more
than its word, about itself: a profile that is wrong makes a plan that its own jobs do not keep.
What is read is bounded, must be a plain file, and must be what the API takes.

Invariant: a profile that exists is never changed here.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tierline_agent.errors import AgentError
from tierline_agent.kubernetes.description import MEASURED, PROFILE
from tierline_agent.kubernetes.folders import PodFolders
from tierline_agent.kubernetes.grants import Grant, Standing
from tierline_api.memnode import Device
from tierline_api.memprofile import MemProfile, ProfiledDevice
from tierline_api.metadata import ObjectMeta
from tierline_api.observed import ObservedProfile
from tierline_kube.client import Kube
from tierline_kube.errors import Conflict
from tierline_kube.resource import MEMPROFILE

_log = logging.getLogger(__name__)
_MOST_BYTES: Final = 4 << 20
"""A profile of the most layers has less."""


class Unusable(AgentError):  # noqa: N818 - what it is
    """What a pod wrote is no profile; the sentence says why."""


def profile_of(text: str, grant: Grant, device: Device) -> MemProfile | None:
    """The profile in what a pod wrote; None while it has written none.

    Raises:
        Unusable: it is not what the API takes.
    """
    try:
        seen = ObservedProfile.written(text)
        if seen is None:
            return None
        return seen.memprofile(
            ObjectMeta(name=grant.terms.profile or grant.task, namespace=grant.namespace),
            ProfiledDevice(kind=device.kind, product=device.product),
            device.extent_bytes,
        )
    except ValueError as error:
        raise Unusable(
            f"the pod of claim {grant.namespace}/{grant.claim} wrote a profile that cannot be "
            f"used: {error}"
        ) from error


class Measuring:
    """Looks after the pods that are measured."""

    def __init__(self, kube: Kube, folders: PodFolders) -> None:
        self._kube = kube
        self._folders = folders
        self._done: set[str] = set()
        self._said: dict[str, str] = {}

    def awaits(self, grants: Iterable[Grant | None]) -> bool:
        """Whether a pod has still to write its profile, for which other tasks may be waiting."""
        return any(
            grant.standing is Standing.PROFILING and grant.uid not in self._done
            for grant in grants
            if grant is not None
        )

    async def look(self, grants: Iterable[Grant | None], devices: Iterable[Device]) -> None:
        """Create the profiles that pods have written. Raises KubeError."""
        by_name = {device.name: device for device in devices}
        for grant in grants:
            if grant is None or grant.standing is not Standing.PROFILING:
                continue
            device = by_name.get(grant.device)
            if device is None or grant.uid in self._done:
                continue
            try:
                text = _read(self._folders.path(grant.uid) / MEASURED / PROFILE)
                profile = profile_of(text, grant, device)
            except (Unusable, OSError) as error:
                if self._said.get(grant.uid) != str(error):
                    _log.warning("cannot measure MemTask/%s: %s", grant.task, error)
                self._said[grant.uid] = str(error)
                continue
            if profile is not None:
                await self._create(profile)
                self._done.add(grant.uid)

    async def _create(self, profile: MemProfile) -> None:
        where = f"{profile.metadata.namespace}/{profile.name}"
        try:
            await self._kube.create(MEMPROFILE, profile.to_api())
        except Conflict:
            _log.info("there is a MemProfile %s already; what was measured is left out", where)
        else:
            _log.info("measured MemProfile %s: %d layers", where, len(profile.spec.layers))


def _read(path: Path) -> str:
    """The text of a file that somebody else writes; empty if there is none. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no plain file")
        return file.read(_MOST_BYTES).decode(errors="replace")
