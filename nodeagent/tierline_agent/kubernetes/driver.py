"""The kubelet's calls: registration, prepare, unprepare, and the health of devices.

Each claim of a request is answered for itself; a failure is a sentence in the answer, which the
kubelet shows in the pod's events before it asks again. Nothing is decided here.

Invariant: the registration socket appears after the driver's own, so that the kubelet never calls
what does not listen yet; what an earlier agent left at either path is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from tierline_agent.errors import AgentError, ConfigError
from tierline_agent.kubernetes.grants import Grant
from tierline_agent.kubernetes.kubelet import dra_pb2, health_pb2, registration_pb2
from tierline_api.objects.optin import DRIVER
from tierline_kube.errors import KubeError

_log = logging.getLogger(__name__)
_DRA: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_VERSION: Final = "v1.DRAPlugin"
_REGISTRATION: Final = "pluginregistration.Registration"
_HEALTH: Final = "v1alpha1.DRAResourceHealth"
_HEALTH_PERIOD_S: Final = 10.0
_HEALTH_VALID_S: Final = 60
"""The kubelet calls a device's health unknown when it has heard nothing for so long."""
_LONGEST_PATH: Final = 107
_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class ClaimName:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


class Answers(Protocol):
    """Does what the kubelet asks for. Failures are AgentError, KubeError or OSError."""

    async def prepare(self, claim: ClaimName) -> tuple[Grant, tuple[str, ...]]:
        """Prepare a claim; returns what it grants, and the CDI devices that its pod gets."""

    async def unprepare(self, claim: ClaimName) -> None:
        """Unprepare a claim."""

    async def registered(self, error: str) -> None:
        """The kubelet has accepted the driver, or refused it with `error`."""

    async def health(self) -> Mapping[str, str]:
        """The fault of each device; an empty text is none."""


class Driver:
    """The sockets towards the kubelet."""

    def __init__(self, answers: Answers, pool: str, plugin_dir: Path, registry_dir: Path) -> None:
        self._answers = answers
        self._pool = pool
        self._endpoint = plugin_dir / "dra.sock"
        self._registration = registry_dir / f"{DRIVER}-reg.sock"
        self._servers: list[grpc.aio.Server] = []
        self._ending = asyncio.Event()

    async def start(self) -> None:
        """Listen, again if an earlier start failed on its way. Raises ConfigError, OSError."""
        await self._close(None)
        await self._listen(
            self._endpoint,
            _methods(
                _DRA,
                NodePrepareResources=(
                    self._prepare,
                    dra_pb2.NodePrepareResourcesRequest,
                    dra_pb2.NodePrepareResourcesResponse,
                ),
                NodeUnprepareResources=(
                    self._unprepare,
                    dra_pb2.NodeUnprepareResourcesRequest,
                    dra_pb2.NodeUnprepareResourcesResponse,
                ),
            ),
            _stream(
                _HEALTH,
                "NodeWatchResources",
                self._watch,
                health_pb2.NodeWatchResourcesRequest,
                health_pb2.NodeWatchResourcesResponse,
            ),
        )
        await self._listen(
            self._registration,
            _methods(
                _REGISTRATION,
                GetInfo=(self._info, registration_pb2.InfoRequest, registration_pb2.PluginInfo),
                NotifyRegistrationStatus=(
                    self._notified,
                    registration_pb2.RegistrationStatus,
                    registration_pb2.RegistrationStatusResponse,
                ),
            ),
        )

    async def stop(self) -> None:
        """Leave the kubelet: first no new calls, then those in progress have a moment."""
        self._ending.set()
        await self._close(_GRACE_S)
        for path in (self._registration, self._endpoint):
            path.unlink(missing_ok=True)

    async def _close(self, grace_s: float | None) -> None:
        for server in reversed(self._servers):
            await server.stop(grace_s)
        self._servers.clear()

    async def _listen(self, path: Path, *handlers: grpc.GenericRpcHandler) -> None:
        if len(str(path).encode()) > _LONGEST_PATH:
            raise ConfigError(
                f"cannot listen at {path}: a socket's path has at most {_LONGEST_PATH} bytes"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(handlers)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    # -- the kubelet's calls

    async def _info(self, _request: Any, _context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[_VERSION, _HEALTH],
        )

    async def _notified(
        self, request: registration_pb2.RegistrationStatus, _context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        error = "" if request.plugin_registered else request.error or "it gave no reason"
        await self._answers.registered(error)
        return registration_pb2.RegistrationStatusResponse()

    async def _prepare(
        self, request: dra_pb2.NodePrepareResourcesRequest, _context: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        reply = dra_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            name = ClaimName(claim.namespace, claim.name, claim.uid)
            answer = reply.claims[claim.uid]

            async def prepare(
                name: ClaimName = name, answer: dra_pb2.NodePrepareResourceResponse = answer
            ) -> None:
                grant, described = await self._answers.prepare(name)
                answer.devices.add(
                    request_names=list(grant.requests),
                    pool_name=grant.pool,
                    device_name=grant.device,
                    cdi_device_ids=list(described),
                    share_id=grant.share_id,
                )

            answer.error = await _failure(f"prepare claim {name.namespace}/{name.name}", prepare)
        return reply

    async def _unprepare(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, _context: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        reply = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            name = ClaimName(claim.namespace, claim.name, claim.uid)

            async def unprepare(name: ClaimName = name) -> None:
                await self._answers.unprepare(name)

            what = f"unprepare claim {name.namespace}/{name.name}"
            reply.claims[claim.uid].error = await _failure(what, unprepare)
        return reply

    async def _watch(
        self, _request: Any, _context: Any
    ) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        while not self._ending.is_set():
            reply = health_pb2.NodeWatchResourcesResponse()
            for device, trouble in (await self._answers.health()).items():
                reply.devices.add(
                    device=health_pb2.DeviceIdentifier(pool_name=self._pool, device_name=device),
                    health=health_pb2.UNHEALTHY if trouble else health_pb2.HEALTHY,
                    last_updated_time=int(time.time()),
                    health_check_timeout_seconds=_HEALTH_VALID_S,
                    message=trouble,
                )
            yield reply
            try:
                await asyncio.wait_for(self._ending.wait(), _HEALTH_PERIOD_S)
            except TimeoutError:
                continue


async def _failure(what: str, act: Callable[[], Awaitable[None]]) -> str:
    """Why `act` failed, as a sentence; empty if it did not."""
    try:
        await act()
    except (AgentError, KubeError, OSError) as error:
        _log.warning("cannot %s: %s", what, error)
        return str(error)
    except Exception:
        _log.exception("cannot %s", what)
        return f"the agent failed to {what}; its log says why"
    _log.info("done: %s", what)
    return ""


def _methods(service: str, **methods: tuple[Any, Any, Any]) -> grpc.GenericRpcHandler:
    """Methods with one request and one answer: each with its types."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )
        for name, (method, request, answer) in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)


def _stream(
    service: str, name: str, method: Any, request: Any, answer: Any
) -> grpc.GenericRpcHandler:
    """A method with one request and many answers."""
    handler = grpc.unary_stream_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=answer.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(service, {name: handler})
