"""Profiles of tasks that run alone to be measured: what the pod wrote becomes its MemProfile.

The pod writes lines of JSON into a folder of its own (`tierline_torch.backends.observed`); they are
no more than its word, about itself: a profile that is wrong makes a plan that its own jobs do not
keep. What is read is bounded, must be a plain file, and must be what the API takes. The agent's own
process only looks for the line of the profile, once in each state of the file; another one parses
it (`judging`).

Invariant: a profile that exists is never changed here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tierline_agent.errors import AgentError
from tierline_agent.kubernetes import judging
from tierline_agent.kubernetes.description import MEASURED, PROFILE
from tierline_agent.kubernetes.folders import PodFolders
from tierline_agent.kubernetes.grants import Grant
from tierline_agent.kubernetes.judging import Subject
from tierline_api.objects.memnode import Device
from tierline_api.objects.memprofile import MAX_LAYERS
from tierline_api.objects.observed import PROFILE_LINE
from tierline_api.objects.optin import NODE_LABEL, Standing
from tierline_kube.client import Kube
from tierline_kube.errors import Conflict, KubeError
from tierline_kube.resource import MEMPROFILE, Json

_log = logging.getLogger(__name__)
_MOST_LINE_BYTES: Final = 512 * MAX_LAYERS
"""2 MiB. The line of a profile has at most 408 bytes for a layer: 253 of the longest name, 19 of
its bytes, 24 of each of two times, and 88 of everything else. What is left has room for the times
of 18,000 jobs. Names that are not of ASCII take more, which is there where layers are fewer."""
_MOST_BYTES: Final = 2 * _MOST_LINE_BYTES
"""Before the profile stand what each job gave and what was learned of launches, which names the
same weights once more; both together have as much room as the profile."""
_JUDGING_S: Final = 10.0
"""The worst line takes a second, and the interpreter on a busy node some to start."""
_MOST_UNUSABLE: Final = 3
"""After so many contents that are no profile, or were not judged in time, a pod is given up."""

_Stamp = tuple[int, int, int]
"""A state of a file: inode, size and time of its last change."""


class Unusable(AgentError):  # noqa: N818 - what it is
    """A pod's file is no profile; the sentence says why."""


class NotJudged(AgentError):  # noqa: N818 - what is the case
    """A pod's file may be a profile; it could not be found out, and is to be tried again."""


@dataclass
class _Pod:
    """The measuring of a pod, as far as it is known."""

    stamp: _Stamp | None = None
    """The state of its file that was read."""
    profile: Json | None = None
    """The profile that it wrote, until the API server has it."""
    unusable: int = 0
    said: str = ""
    """The last cause that was logged."""
    done: bool = False


class Measuring:
    """Looks after the pods that are measured."""

    def __init__(self, kube: Kube, folders: PodFolders) -> None:
        self._kube = kube
        self._folders = folders
        self._pods: dict[str, _Pod] = {}

    def awaits(self, grants: Iterable[Grant | None]) -> bool:
        """Whether a pod has still to write its profile, for which other tasks may be waiting."""
        return any(
            grant is not None
            and grant.standing is Standing.PROFILING
            and not self._pods.get(grant.uid, _Pod()).done
            for grant in grants
        )

    async def look(self, grants: Iterable[Grant | None], devices: Iterable[Device]) -> None:
        """Create the profiles that pods have written; a failure holds up only its own pod."""
        by_name = {device.name: device for device in devices}
        granted = [grant for grant in grants if grant is not None]
        self._pods = {grant.uid: self._pods.get(grant.uid, _Pod()) for grant in granted}
        for grant in granted:
            device, pod = by_name.get(grant.device), self._pods[grant.uid]
            measured = grant.standing is Standing.PROFILING
            try:
                await self._bound(grant, pod, measured=measured)
                if measured and device is not None and not pod.done:
                    await self._look_at(grant, device, pod)
            except (AgentError, KubeError, OSError) as error:
                if pod.said != str(error):
                    _log.warning("cannot measure MemTask/%s: %s", grant.task, error)
                pod.said = str(error)

    async def _bound(self, grant: Grant, pod: _Pod, *, measured: bool) -> None:
        """Take back the node's disk from a pod that fills it, also after it was measured.

        Its container can write until it starts again.

        Raises:
            Unusable: it wrote too much.
            OSError: that cannot be found out.
        """
        if not self._folders.is_overfull(grant.uid):
            return
        if measured and not pod.done:
            self._give_up(grant, pod)
        await asyncio.to_thread(self._folders.empty, grant.uid)
        raise Unusable(
            f"the pod of claim {grant.namespace}/{grant.claim} fills the folder in which it is "
            "measured; what can be removed of that is removed"
        )

    async def _look_at(self, grant: Grant, device: Device, pod: _Pod) -> None:
        """Bring one pod's profile to the API server.

        Raises:
            Unusable, NotJudged: what it wrote is none, or cannot be judged.
            KubeError: the API server does not take it now.
            OSError: the file cannot be read, or no process be started.
        """
        if pod.profile is None:
            try:
                pod.profile = await self._news(grant, device, pod)
            except (Unusable, NotJudged):
                pod.unusable += 1
                if pod.unusable == _MOST_UNUSABLE:
                    self._give_up(grant, pod)
                raise
        if pod.profile is not None:
            await self._create(pod.profile)
            pod.profile, pod.done = None, True

    async def _news(self, grant: Grant, device: Device, pod: _Pod) -> Json | None:
        """The profile that a pod has written since the last look. Raises as `_look_at`."""
        named = f"the pod of claim {grant.namespace}/{grant.claim}"
        read = _read(self._folders.path(grant.uid) / MEASURED / PROFILE, pod.stamp)
        if read is None:
            return None
        stamp, content = read
        subject = Subject(
            namespace=grant.namespace,
            name=grant.terms.profile or grant.task,
            kind=device.kind.value,
            product=device.product,
        )
        try:
            line = _line_of(content)
            found = None if line is None else await _judged(line, subject)
        except Unusable as error:
            pod.stamp = stamp
            raise Unusable(f"{named} wrote a profile that cannot be used: {error}") from error
        except NotJudged as error:
            raise NotJudged(f"{named} wrote a profile that cannot be judged: {error}") from error
        pod.stamp = stamp
        if found is not None:  # a policy holds it against the node of the agent's token
            found["metadata"]["annotations"] = {NODE_LABEL: grant.pool}
        return found

    def _give_up(self, grant: Grant, pod: _Pod) -> None:
        """Let the program of a pod end that writes no profile however often it is asked."""
        pod.done = True
        self._folders.give_up(grant.uid)
        _log.warning(
            "the pod of claim %s/%s is not looked at any more; delete it to have MemTask/%s "
            "measured again",
            *(grant.namespace, grant.claim, grant.task),
        )

    async def _create(self, profile: Json) -> None:
        metadata, layers = profile["metadata"], profile["spec"]["layers"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await self._kube.create(MEMPROFILE, profile)
        except Conflict:
            _log.info("there is a MemProfile %s already; what was measured is left out", where)
        else:
            _log.info("measured MemProfile %s: %d layers", where, len(layers))


def _read(path: Path, known: _Stamp | None) -> tuple[_Stamp, bytes] | None:
    """The state and the content of a file that somebody else writes.

    None if there is none, or if it is as `known`. One byte too much is read of one that is too big.
    Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no plain file")
        stamp = found.st_ino, found.st_size, found.st_mtime_ns
        return None if stamp == known else (stamp, os.read(descriptor, _MOST_BYTES + 1))
    finally:
        os.close(descriptor)


def _line_of(content: bytes) -> bytes | None:
    """The line of the profile; None while it is not there, or not to its end.

    Raises:
        Unusable: there is more than a program writes.
    """
    if len(content) > _MOST_BYTES:
        raise Unusable(f"its file has more than {_MOST_BYTES} bytes")
    begins = PROFILE_LINE.encode()
    start = 0 if content.startswith(begins) else content.find(b"\n" + begins) + 1
    end = content.find(b"\n", start)
    if end < 0 or not content.startswith(begins, start):
        return None
    if end - start > _MOST_LINE_BYTES:
        raise Unusable(f"it has more than {_MOST_LINE_BYTES} bytes")
    return content[start:end]


async def _judged(line: bytes, subject: Subject) -> Json:
    """The API's object of a profile, as a process of its own made it (`judging`).

    Raises:
        Unusable: it is not what the API takes.
        NotJudged: the process did not come to an answer.
        OSError: it could not be started.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", judging.__name__, subject.written()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_JUDGING_S):
            printed, _ = await process.communicate(line)
    except TimeoutError as error:
        raise NotJudged(f"reading it took more than {_JUDGING_S:.0f} s") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == judging.UNUSABLE:
        raise Unusable(printed.decode())
    if process.returncode:
        raise NotJudged(f"the process that read it ended with status {process.returncode}")
    made: Json = json.loads(printed)
    return made
