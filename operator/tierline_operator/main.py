"""The operator as kopf runs it: `python -m tierline_operator`, or
`kopf run -m tierline_operator.main --all-namespaces --standalone`.

kopf has the process: its start and end, signals, and the health endpoint. No object has a handler
of its own: the engine decides for all of them together, and watches them itself
(controller/loop.py), since kopf does not show what was deleted while a watch was too old to go on.
kopf's own peering is not used either: the leader holds a Lease (leadership/lease.py). When the
Lease is lost the process ends, and its Deployment starts a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from dataclasses import replace
from typing import Any

import kopf

from tierline_api.devices.device import DeviceKind
from tierline_kube.client import Kube
from tierline_kube.errors import NoCluster
from tierline_operator import logs, metrics, settings
from tierline_operator.cluster.resources import FIELD_MANAGER
from tierline_operator.controller.allowance import Allowance
from tierline_operator.controller.loop import Engine
from tierline_operator.leadership.lease import Leadership, NoLongerLeader
from tierline_operator.leadership.renewal import Leading
from tierline_operator.placement.books.rules import KindRules, Rules
from tierline_operator.planning.request import Margins
from tierline_operator.settings import Settings

log = logging.getLogger(__name__)
_PATIENCE_S = 10.0
"""How long the end of the process waits for answers to writes."""
_COLLECT = (50_000, 20, 20)
"""Nearly all that the operator has is kept: looking for garbage in it often costs a tenth of its
processor time."""
REGISTRY = kopf.get_default_registry()
"""Where the handlers below are known, for the caller that runs kopf."""


def rules_of(chosen: Settings) -> Rules:
    """The rules of placement with the administrator's margins and headroom."""
    margins = {DeviceKind.CPU: chosen.cpu_margin, DeviceKind.CUDA: chosen.cuda_margin}
    return Rules(
        by_kind={
            kind: KindRules(Margins(margins[kind], margins[kind]), rules.dispatch_s, rules.gate_s)
            for kind, rules in Rules().by_kind.items()
        },
        headroom=chosen.headroom,
        keep_free_s=chosen.keep_free_s,
    )


class Operator:
    """One replica, from its start to its end."""

    def __init__(self, chosen: Settings) -> None:
        self._settings = chosen
        allowance = Allowance()

        def count(method: str, outcome: str) -> None:
            metrics.count_request(method, outcome)
            allowance.charge(time.monotonic())

        self._kube = Kube(FIELD_MANAGER, count)
        of_the_lease = Kube(FIELD_MANAGER, metrics.count_request)
        self.leadership = Leadership(of_the_lease, chosen)
        self._leading = Leading(self.leadership, of_the_lease)
        self.engine = Engine(self._kube, self.leadership, chosen, rules_of(chosen), allowance)
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and begin to seek the lead."""
        await self._kube.__aenter__()
        await self._leading.__aenter__()
        self._life = asyncio.create_task(self._live(), name="tierline")

    async def stop(self) -> None:
        """End all writes, then give up the Lease."""
        finished = await self.engine.finish(_PATIENCE_S)
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        if finished:
            await self._leading.release()
        await self._leading.__aexit__()
        await self._kube.__aexit__()

    async def _live(self) -> None:
        try:
            await self._leading.acquire()
            async with asyncio.TaskGroup() as all_:
                all_.create_task(self._leading.keep(), name="lease")
                all_.create_task(self.engine.lead(), name="engine")
                all_.create_task(self.engine.follow(), name="watches")
        except* NoLongerLeader as lost:
            log.warning("stops: %s", lost.exceptions[0])
            os.kill(os.getpid(), signal.SIGTERM)
        except* Exception:
            log.exception("stops: this is a mistake in the operator; a fresh process begins again")
            os.kill(os.getpid(), signal.SIGTERM)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Read the settings and start this replica."""
    chosen = read_settings()
    logs.configure(chosen.log_format, chosen.log_level)
    settings.scanning.disabled = True
    gc.set_threshold(*_COLLECT)
    if chosen.metrics_port:
        metrics.serve(chosen.metrics_port)
    operator = Operator(chosen)
    try:
        await operator.start()
    except NoCluster as error:
        raise kopf.PermanentError(f"cannot start: {error}") from error
    memo.operator = operator


@kopf.on.login()
def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Let kopf ask which kinds there are: as the service account, or the user of KUBECONFIG."""
    in_cluster = kopf.login_with_service_account(**kwargs)
    return _by_address(in_cluster) if in_cluster else kopf.login_with_kubeconfig(**kwargs)


def _by_address(found: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    """The API server by the address that every pod is told: it is there before names are."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End in good order."""
    if "operator" in memo:
        await memo.operator.stop()


@kopf.on.probe(id="turning")
async def turning(memo: kopf.Memo, **_: Any) -> bool:
    """Fail the kubelet's probe when the loop hangs."""
    if memo.operator.engine.stuck:
        raise kopf.PermanentError("the loop has not turned for two minutes")
    return True


def read_settings() -> Settings:
    """The settings of this process; a mistake in them ends it with one sentence."""
    try:
        return settings.read(os.environ)
    except settings.SettingsError as error:
        raise kopf.PermanentError(f"cannot start: {error}") from error
