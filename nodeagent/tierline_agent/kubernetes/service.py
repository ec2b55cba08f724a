"""The Kubernetes part of the agent at work.

It watches this node's claims, answers the kubelet, and reports. Whatever fails is tried again after
a pause that grows; running pods need none of this, so nothing here ever ends the agent. Until the
node's claims have been read once, the kubelet is not answered and the agent is not ready.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tierline_agent.admin.client import Agent
from tierline_agent.config import AgentConfig, KubernetesSettings
from tierline_agent.errors import AgentError
from tierline_agent.kubernetes import gpus, pulse
from tierline_agent.kubernetes.driver import ClaimName, Driver
from tierline_agent.kubernetes.folders import Descriptions, Library, PodFolders
from tierline_agent.kubernetes.gpus import Access
from tierline_agent.kubernetes.grants import Grant, NotGranted, grant_of, is_of
from tierline_agent.kubernetes.measuring import Measuring
from tierline_agent.kubernetes.objects import pod_of
from tierline_agent.kubernetes.prepared_claims import PreparedClaims
from tierline_agent.kubernetes.pulse import Pulse
from tierline_agent.kubernetes.readiness import CLAIMS, KUBELET, Objection
from tierline_agent.kubernetes.reporting import ClaimReports, NodeReport
from tierline_agent.processes.lives import Lives
from tierline_agent.processes.state import boot_id
from tierline_api.devices.device import DeviceKind
from tierline_api.objects.conditions import Reason
from tierline_api.objects.optin import DRIVER, NODE_LABEL
from tierline_api.schema.metadata import label_value
from tierline_kube.client import BOOKMARK, Kube
from tierline_kube.errors import KubeError, NotFound
from tierline_kube.events import Reporter, event
from tierline_kube.resource import CLAIM, EVENT, MEMNODE, Json

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_RESYNC_S: Final = 30.0
_MEASURING_S: Final = 2.0
"""How often a pod that is measured is looked at: nothing says when it has written its profile."""
MANAGER: Final = "tierline-agent"
"""The field manager of everything that the agent applies."""


class Service:
    """The service that answers the kubelet. See `driver.Answers`."""

    def __init__(
        self,
        config: AgentConfig,
        settings: KubernetesSettings,
        node: str,
        lives: Lives,
        object_to: Objection,
    ) -> None:
        self._settings = settings
        self._node = node
        self._object_to = object_to
        self._kube = Kube(MANAGER)
        self._pulse_kube = Kube(pulse.MANAGER)
        self._own_claims = CLAIM.selected(f"{NODE_LABEL}={label_value(node)}")
        socket = Path(config.run_dir) / "admin.sock"
        self._agent = Agent(socket, config.limits.admin_line_bytes)
        period_s = settings.report_period_s
        self._node_report = NodeReport(self._kube, self._agent, node, period_s)
        self._claim_reports = ClaimReports(self._kube, self._agent, period_s)
        self._pulse = Pulse(self._pulse_kube, self._agent, node, settings.registry_dir, lives)
        self._folders = PodFolders(Path(settings.pods_dir))
        self._measuring = Measuring(self._kube, self._folders)
        self._claims: dict[str, Json] = {}
        self._listed = asyncio.Event()
        self._changed = asyncio.Event()
        self._slices_unsure = False
        self._told: set[tuple[str, str]] = set()
        self._interventions = 0
        """Number of the next program that was ended by the agent to tell of."""
        self._prepared: PreparedClaims | None = None

    async def run(self, ending: asyncio.Event) -> None:
        """Work until `ending` is set. Raises NoCluster."""
        async with self._kube, self._pulse_kube:
            driver = Driver(
                self,
                self._node,
                Path(self._settings.plugin_dir),
                Path(self._settings.registry_dir),
            )
            parts = [
                asyncio.create_task(self._again("serve the kubelet", self._serve, driver)),
                asyncio.create_task(self._again("watch claims", self._watch)),
                asyncio.create_task(self._again("give signs of life", self._beat)),
            ]
            await ending.wait()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await driver.stop()
            await self._agent.close()

    async def _again(self, what: str, act: Callable[..., Any], *arguments: Any) -> None:
        """Do something for ever; after a failure, again."""
        pause_s = _FIRST_PAUSE_S
        while True:
            begun_s = time.monotonic()
            try:
                await act(*arguments)
            except (AgentError, KubeError, OSError) as error:
                _log.warning("cannot %s: %s; trying again in %.1f s", what, error, pause_s)
            except Exception:
                _log.exception("cannot %s; trying again in %.1f s", what, pause_s)
            await asyncio.sleep(pause_s)
            went_well = time.monotonic() - begun_s > 2 * _LONGEST_PAUSE_S
            pause_s = _FIRST_PAUSE_S if went_well else min(2 * pause_s, _LONGEST_PAUSE_S)

    # -- claims

    async def _watch(self) -> None:
        """Keep up with the node's claims until the watch ends."""
        there = await self._kube.list_all(self._own_claims)
        # What the kubelet has asked about meanwhile is newer than this list.
        later = [claim for claim in self._claims.values() if _version(claim) > int(there.version)]
        self._claims = {claim["metadata"]["uid"]: claim for claim in (*there.items, *later)}
        self._object_to(CLAIMS, "")
        self._listed.set()
        self._changed.set()
        async for kind, claim in self._kube.watch(self._own_claims, there.version):
            if kind == BOOKMARK:
                continue
            if kind == "DELETED":
                self._claims.pop(claim["metadata"]["uid"], None)
            else:
                self._take(claim)
            self._changed.set()

    def _take(self, claim: Json) -> None:
        """Keep a claim, unless a later state of it is known."""
        uid = claim["metadata"]["uid"]
        known = self._claims.get(uid)
        if known is None or _version(known) <= _version(claim):
            self._claims[uid] = claim

    def _grants(self) -> Mapping[str, Grant | None]:
        """The node's claims, by uid; None for what grants nothing now."""
        found: dict[str, Grant | None] = {}
        for uid, claim in self._claims.items():
            if not is_of(claim, self._node):
                continue
            try:
                found[uid] = grant_of(claim, self._node)
            except NotGranted:
                found[uid] = None
        return found

    async def _beat(self) -> None:
        """Give signs of life; where no pod can start, tell so once."""
        while True:
            node = await self._pulse.beat()
            if node is not None:
                reason = Reason.KUBELET_NOT_REGISTERED
                about = MEMNODE.reference(node["metadata"])
                await self._warn(about, "Register", reason, self._pulse.state()[2])
            await self._pulse.pause()

    # -- the steady work

    async def _serve(self, driver: Driver) -> None:
        """Settle, then answer the kubelet and report, again and again."""
        await self._listed.wait()
        await self._node_report.read()
        self._prepared = prepared = self._make_prepared()
        await prepared.settle(self._grants)
        prepared.remove_unused_versions()
        await driver.start()
        _log.info("serving the kubelet of node %s", self._node)
        while True:
            self._changed.clear()
            await self._attempt("settle the node's claims", prepared.settle(self._grants))
            left = asyncio.to_thread(self._folders.remove_left)
            await self._attempt("remove what pods left", left)
            look_again, self._slices_unsure = self._slices_unsure, False
            report = self._node_report.write(look_again=look_again)
            await self._attempt("report on the node", report)
            grants = self._grants()
            await self._attempt("report on claims", self._claim_reports.write(grants))
            await self._attempt("tell whose programs were ended", self._tell_interventions())
            profiles = self._measuring.look(grants.values(), self._node_report.devices)
            await self._attempt("write what was measured", profiles)
            await self._pause(measuring=self._measuring.awaits(grants.values()))

    @staticmethod
    async def _attempt(what: str, work: Awaitable[None]) -> None:
        """Do one of the steady things; a failure is only logged: it is done again soon."""
        try:
            await work
        except (AgentError, KubeError, OSError) as error:
            _log.warning("cannot %s: %s", what, error)
        except Exception:
            # Nothing that one of them meets may end the others, and with them the kubelet's server.
            _log.exception("cannot %s", what)

    async def _pause(self, *, measuring: bool) -> None:
        """Wait until something changed, or the next look is due."""
        usual_s = min(_RESYNC_S, self._settings.report_period_s)
        longest_s = min(_MEASURING_S, usual_s) if measuring else usual_s
        try:
            await asyncio.wait_for(self._changed.wait(), longest_s)
        except TimeoutError:
            return

    def _make_prepared(self) -> PreparedClaims:
        settings = self._settings
        library = Library(Path(settings.bundle_dir), Path(settings.library_dir))
        return PreparedClaims(
            self._agent,
            library,
            library.install(version("tierline")),
            self._folders,
            Descriptions(Path(settings.cdi_dir)),
            boot_id(),
            self._open,
            reconnect_s=settings.reconnect_s,
        )

    def _open(self, grant: Grant) -> Access:
        """The access to its device for a pod. Raises OSError."""
        device = next((d for d in self._node_report.devices if d.name == grant.device), None)
        if device is None:
            raise FileNotFoundError(f"there is no device {grant.device} on this node any more")
        if device.kind is DeviceKind.CPU:
            return Access()
        known = gpus.nvidia_devices((gpus.STATIC, Path(self._settings.cdi_dir)))
        minor = gpus.minor_of(device.uuid) if device.uuid else None
        return gpus.access_to(device, known, minor, Path("/dev"))

    # -- what the kubelet asks for

    async def prepare(self, claim: ClaimName) -> tuple[Grant, tuple[str, ...]]:
        """Prepare a claim as it is now."""
        prepared = self._ready()
        try:
            body = await self._kube.get(CLAIM, claim.namespace, claim.name)
        except NotFound as error:
            raise NotGranted(f"there is no claim {claim.namespace}/{claim.name}") from error
        if body["metadata"]["uid"] != claim.uid:
            raise NotGranted(f"claim {claim.namespace}/{claim.name} is another one by now")
        self._take(body)
        try:
            grant = grant_of(body, self._node)
            described = await prepared.prepare(grant)
        except NotGranted as refusal:
            await self._tell(body, "NotAllocated", str(refusal))
            raise
        return grant, described

    async def unprepare(self, claim: ClaimName) -> None:
        """Unprepare a claim, whether it is known or not."""
        await self._ready().unprepare(claim.uid)

    async def registered(self, error: str) -> None:
        """The kubelet knows the driver, and may have removed its slices before."""
        self._pulse.registered(error)
        if error:
            _log.error("the kubelet refuses the driver: %s", error)
            self._object_to(KUBELET, f"it refuses the driver: {error}")
            return
        _log.info("the kubelet has registered the driver")
        self._object_to(KUBELET, "")
        self._slices_unsure = True
        self._changed.set()

    async def health(self) -> Mapping[str, str]:
        """The fault of each device."""
        return self._node_report.health

    def _ready(self) -> PreparedClaims:
        if self._prepared is None:
            raise AgentError("the agent has not read the node's claims yet")
        return self._prepared

    async def _tell(self, claim: Json, reason: str, note: str) -> None:
        """Write an event about a claim, once; a failure is only logged."""
        metadata = claim["metadata"]
        if (metadata["uid"], note) in self._told:
            return
        self._told.add((metadata["uid"], note))
        await self._warn(CLAIM.reference(metadata), "Prepare", reason, note)

    async def _tell_interventions(self) -> None:
        """Write an event about the pod of each program whose job was revoked, or that was ended."""
        answer = await self._agent.ask("interventions", since=self._interventions)
        self._interventions = answer["cursor"]
        for one in answer["interventions"]:
            claim = self._claims.get(one["task"])
            pod = pod_of(claim["metadata"]) if claim is not None else None
            if pod is not None:
                await self._warn(pod, one["action"], one["reason"], one["sentence"])

    async def _warn(self, about: Json, action: str, reason: str, note: str) -> None:
        """Write an event; a failure is only logged: no event is part of the truth."""
        reporter = Reporter(f"{DRIVER}/agent", self._node, action)
        told = event(reporter, about, reason, note, time.time_ns(), normal=False)
        try:
            await self._kube.create(EVENT, told)
        except KubeError as error:
            _log.warning("cannot write an event: %s", error)


def _version(claim: Mapping[str, Any]) -> int:
    """An object's resourceVersion, which grows with every change (Kubernetes 1.35 and later)."""
    return int(claim["metadata"]["resourceVersion"])
