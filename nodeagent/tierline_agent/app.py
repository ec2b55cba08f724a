"""Starting and stopping the agent: what is made, in which order, and undone in reverse.

`run` is the whole story. Invariant: clients outlive the agent. Stopping leaves on disk, and in
the clients' flag words, what the next agent needs to go on; a SIGKILL leaves no less. Extents stay
mapped to the end of the process: workers may still write to them while everything else closes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tierline_agent.admin import server as admin
from tierline_agent.concurrency import attempt
from tierline_agent.config import AgentConfig, TierSettings
from tierline_agent.context import Node
from tierline_agent.devices.base import Device, Identity
from tierline_agent.devices.opening import open_devices, watch_errors
from tierline_agent.devices.preparation import Prepared
from tierline_agent.kubernetes.folders import Descriptions
from tierline_agent.kubernetes.readiness import object_at_first
from tierline_agent.kubernetes.thread import KubernetesThread
from tierline_agent.lifecycle.device_loss import Losses
from tierline_agent.lifecycle.handover import sole_agent
from tierline_agent.links.link import Link
from tierline_agent.memory.extents import ExtentPool
from tierline_agent.memory.lent import Owner
from tierline_agent.memory.workspaces import Workspaces
from tierline_agent.processes.identity import Process, ProcessWatch
from tierline_agent.processes.interventions import Interventions
from tierline_agent.processes.killing import Killing
from tierline_agent.processes.lives import Lives
from tierline_agent.processes.reclaim_latency import Reclaims
from tierline_agent.processes.state import BootFile, LeaseMark
from tierline_agent.registry import Capacity, DeviceCapacity, TaskRegistry
from tierline_agent.reporting import gauges
from tierline_agent.scheduling.cached_lease import cached_leases, close_all
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.scheduling.recovery import ClientBook, Recovery, Restarted
from tierline_agent.scheduling.unit import Unit
from tierline_agent.sessions.server import TaskServer, listen
from tierline_agent.sessions.session import Session
from tierline_agent.storage import probe
from tierline_agent.storage.node_tiers import Storage
from tierline_agent.telemetry.accounting import FastMemory, JobLog
from tierline_agent.telemetry.endpoint import Endpoint
from tierline_agent.telemetry.health import Health
from tierline_agent.telemetry.metrics import Metrics
from tierline_agent.tiers.resizing import fit
from tierline_agent.transport.closing import Closer
from tierline_agent.transport.in_flight import InFlight
from tierline_agent.transport.readiness import Readiness
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.fast_memory import OVERLAY

_log = logging.getLogger(__name__)
_GAUGE_PERIOD_S = 2.0
_ROUNDS = "rounds"
_CLIENTS = "clients.json"
_TASKS = "tasks.json"
_CONTENT = "content.json"


async def run(config: AgentConfig) -> None:
    """Be the agent until SIGTERM, SIGINT or `shutdown`.

    Raises:
        AlreadyRunning, ConfigError, TierError, OSError: it cannot start.
    """
    stop = asyncio.Event()
    async with AsyncExitStack() as stopping:
        undo = stopping.enter_context(ExitStack())
        state_dir, run_dir = Path(config.state_dir), Path(config.run_dir)
        if config.kubernetes is not None:
            Descriptions(Path(config.kubernetes.cdi_dir)).check()
        lock, prepared = await sole_agent(config)
        undo.enter_context(lock)
        lives = undo.enter_context(Lives(run_dir))
        _raise_descriptor_limit()
        devices, storage, book, notes = _open(config, prepared)
        undo.callback(storage.close)

        node = await _assemble(config, devices, storage, book, undo)
        node.notes = notes
        await _measure_links(node, state_dir / "links.json")
        for sentence in node.registry.load():
            _log.error("a task of before is dropped: %s", sentence)
        node.plans_changed()

        server = TaskServer(node, config.tasks_dir)
        undo.callback(server.close)
        undo.callback(_note_content, node, server)
        for task in node.registry:
            server.open(task)
        name = config.node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower()
        if config.kubernetes is not None:
            object_at_first(node.health.set)
        administrator = admin.Admin(node, server, name, stop.set)
        listener = listen(run_dir / "admin.sock", 0o600)
        undo.callback((run_dir / "admin.sock").unlink, missing_ok=True)
        admin_server = await admin.serve(administrator, listener, config.limits.admin_line_bytes)
        undo.callback(admin_server.close)
        losses = Losses(node, server)
        undo.callback(losses.close)
        undo.callback(watch_errors(devices, losses.hardware_error))
        kept = node.loop.create_task(_keep_gauges(node, server, losses))
        undo.callback(kept.cancel)
        if config.metrics_port is not None:
            gauges.update(node, server.sessions())
            endpoint = Endpoint(
                node.metrics.registry, node.health, config.metrics_address, config.metrics_port
            )
            undo.callback(endpoint.close)
            _log.info("metrics at http://%s:%d/metrics", config.metrics_address, endpoint.port)

        for number in (signal.SIGTERM, signal.SIGINT):
            node.loop.add_signal_handler(number, stop.set)
        if config.kubernetes is not None:
            thread = KubernetesThread(config, config.kubernetes, name, lives, node.health.set)
            thread.start()
            stopping.push_async_callback(asyncio.to_thread, thread.stop)
        _leave_to_the_end()
        _log.info("ready in %s", run_dir)
        await stop.wait()
        _log.info("stopping; clients keep what they have mapped")
        node.stop()


def _leave_to_the_end() -> None:
    """Have the garbage collector pass over all that there is by now.

    Nearly all of it lives as long as the agent. To look at 46,000 objects takes tens of
    milliseconds, in which no copy is issued and jobs wait. Until now it has not looked: a client
    that comes back during the start waits for no more than one collection.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _open(
    config: AgentConfig, prepared: Prepared
) -> tuple[dict[str, Device], Storage, ClientBook, tuple[str, ...]]:
    """Open devices, tiers and the book of clients; and what is not as it was configured.

    Raises ConfigError, TierError, OSError.
    """
    began_s = time.monotonic()
    devices = open_devices(config.all_devices, prepared.devices)
    devices_s = time.monotonic() - began_s
    book = ClientBook(Path(config.run_dir) / _CLIENTS)
    tiers, notes = _fit_tiers(config, book)
    storage = Storage.open(
        *(tiers, devices, config.extent_bytes, config.limits.queued_transfers), prepared.media
    )
    tiers_s = time.monotonic() - began_s - devices_s
    _log.info("opened the devices in %.2f s, the tiers in %.2f s", devices_s, tiers_s)
    return devices, storage, book, notes


def _fit_tiers(config: AgentConfig, book: ClientBook) -> tuple[list[TierSettings], tuple[str, ...]]:
    """Tiers as they are to be opened, and what is not as it was configured. Raises TierError."""
    content = Path(config.run_dir) / _CONTENT
    noted = BootFile(content).read(lambda found: frozenset(map(bytes.fromhex, found)))
    content.unlink(missing_ok=True)  # it says nothing of what comes from now on
    may_return = book.load() or book.has_unknown
    planned = TaskRegistry.homes_of_before(Path(config.state_dir) / _TASKS)
    tiers, notes = [], []
    for tier in config.tiers:
        fitted = fit(
            *(tier.name, Path(tier.path), tier.size_bytes, config.extent_bytes),
            planned_extents=planned[tier.name],
            needed=noted if may_return else (),
        )
        for sentence in filter(None, (fitted.objection, fitted.left)):
            _log.warning("%s", sentence)
        if fitted.objection:
            notes.append(fitted.objection)
        tiers.append(tier.model_copy(update={"size_bytes": fitted.size_bytes}))
    return tiers, tuple(notes)


def _note_content(node: Node, server: TaskServer) -> None:
    """Note what clients need of the tiers, for the next agent: it knows only when all are back."""
    back = {session.client.token: session.client.kept for session in server.sessions()}
    if all(back.get(record.token, -1) >= record.kept for record in node.clients.records):
        needed = {d.hex() for tier in node.storage.tiers.values() for d in tier.store.needed()}
        BootFile(Path(node.config.run_dir) / _CONTENT).write(sorted(needed))


async def _assemble(
    config: AgentConfig,
    devices: Mapping[str, Device],
    storage: Storage,
    book: ClientBook,
    undo: ExitStack,
) -> Node:
    """Make the parts that sessions share."""
    loop = asyncio.get_running_loop()
    run_dir = Path(config.run_dir)
    metrics = Metrics(version("tierline"))
    readiness = Readiness(loop)
    undo.callback(readiness.close)
    watch = ProcessWatch(loop)
    undo.callback(watch.close)
    killing = Killing(watch, loop)
    undo.callback(killing.close)
    units = {
        name: _make_unit(name, device, run_dir, metrics, killing, undo)
        for name, device in devices.items()
    }
    killing.on_outlived += [unit.workspaces.outlived for unit in units.values()]
    for link in storage.links:
        link.on_drift = _report_drift
    _set_margins(storage, devices, config)
    interventions = Interventions(killing, metrics)

    capacity = Capacity(
        {name: _capacity_of(name, device) for name, device in devices.items()}, storage.slots()
    )
    registry = TaskRegistry(Path(config.state_dir) / _TASKS, capacity, config.limits.tasks)

    def away(tasks: Collection[str]) -> None:
        domains = {domain for task in tasks if (domain := registry.domain_of(task)) is not None}
        for unit in units.values():
            unit.pool.away(tasks, domains)

    def all_back() -> None:
        for unit in units.values():
            unit.pool.expect_no_more()

    recovery = Recovery(
        book=book,
        devices=[_restarted(unit, watch) for unit in units.values()],
        watch=watch,
        interventions=interventions,
        recovery_s=config.recovery_s,
        holder_grace_s=config.holder_grace_s,
        domain_of=registry.domain_of,
        all_back=all_back,
        away=away,
    )
    undo.callback(recovery.close)
    killing.on_outlived.append(recovery.outlived)
    return Node(
        config=config,
        loop=loop,
        readiness=readiness,
        units=units,
        storage=storage,
        registry=registry,
        clients=book,
        recovery=recovery,
        watch=watch,
        closer=Closer(),
        in_flight=InFlight(metrics.refused_descriptors.inc),
        interventions=interventions,
        jobs=JobLog(config.limits.job_records),
        reclaims=Reclaims(metrics.reclaim_s.observe),
        metrics=metrics,
        health=Health(),
        files=(book.file, *(unit.lent for unit in units.values())),
        instance=secrets.token_hex(8),
    )


def _make_unit(
    name: str, device: Device, run_dir: Path, metrics: Metrics, killing: Killing, undo: ExitStack
) -> Unit:
    """Put a device to work."""
    memory = FastMemory(device.fast_bytes, told=device.kind == "cuda")
    lent = BootFile(run_dir / f"extents-{name}.json")

    def extents_changed() -> None:
        memory.set_extents(pool.bytes_held)
        lent.note([[i.device, i.inode, *owner] for i, owner in pool.owners().items()])

    pool = ExtentPool(device, extents_changed)
    pool.expect(lent.read(_parse_lent) or {})
    extents_changed()  # so that the file has its place on the disk
    mark = LeaseMark(run_dir / f"lease-{name}")
    undo.callback(mark.close)
    close_all(cached_leases(run_dir, name), mark)
    leases = LeaseManager(time.monotonic_ns, metrics.lease_wait_s.observe)
    executor = Executor(
        device=device,
        leases=leases,
        mark=mark,
        memory=memory,
        on_placed=lambda _size_bytes, latency_s: metrics.swap_in_s.observe(latency_s),
    )
    undo.callback(executor.close)
    workspaces = Workspaces(device, pool, killing.has_outlived)
    return Unit(name, device, pool, memory, leases, mark, executor, workspaces, lent)


def _restarted(unit: Unit, watch: ProcessWatch) -> Restarted:
    def left_inside(domain: str, process: Process) -> None:
        unit.workspaces.left_inside(domain, process)
        watch.on_death(process, unit.workspaces.died)

    executor = unit.executor
    return Restarted(
        unit.name, unit.mark, unit.leases, executor.fence, executor.unfence, left_inside
    )


def _capacity_of(name: str, device: Device) -> DeviceCapacity:
    others = (device.uuid, name.removeprefix("gpu-")) if device.uuid else ()
    return DeviceCapacity(
        *(device.fast_bytes, device.extent_bytes, others),
        memory_bytes=device.memory_bytes,
        context_bytes=device.context_bytes,
        overlay=OVERLAY[DeviceKind(device.kind)],
    )


def _parse_lent(value: list[list[Any]]) -> dict[Identity, Owner]:
    """Rows of identity, domain and task; those of an agent of before that knew no tasks, too."""
    rows = [(*row, None)[:4] for row in value]
    return {
        Identity(int(device), int(inode)): Owner(str(domain), None if task is None else str(task))
        for device, inode, domain, task in rows
    }


def _raise_descriptor_limit() -> None:
    """Take all descriptors that the user may have: an extent costs two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _measure_links(node: Node, path: Path) -> None:
    """Measure, unless clients from before the restart are on their way: see `probe`."""
    if node.recovery.pending and probe.restore(node.storage, path):
        _log.info("planning with the link rates of %s", path)
        return
    await probe.measure(node.storage, {name: unit.device for name, unit in node.units.items()})
    probe.save(node.storage, path)
    for link in node.storage.links:
        rate = link.rate()
        if rate is not None:
            _log.info(
                "link %s: %.2f GB/s, worst %.2f GB/s, overhead %.0f us",
                link,
                rate.bandwidth_bytes_per_s / 1e9,
                rate.worst_bytes_per_s / 1e9,
                rate.overhead_s * 1e6,
            )


def _set_margins(storage: Storage, devices: Mapping[str, Device], config: AgentConfig) -> None:
    """Tell each link how much slower than measured it may be: as plans of all its devices bear."""
    for link in storage.links:
        kinds = {
            device.kind
            for name, device in devices.items()
            if any(link is one for one, _ in storage.links_of(name))
        }
        link.meter.margin = min(one.plan_margin for one in config.all_devices if one.kind in kinds)


def _report_drift(link: Link) -> None:
    rate, now = link.rate(), link.meter.offered_bytes_per_s
    if rate is not None and now is not None:
        _log.warning(
            "link %s is slower than plans were made with: %.2f GB/s instead of %.2f GB/s; what it "
            "does now is reported, so that admission is run again",
            link,
            now / 1e9,
            rate.worst_bytes_per_s / 1e9,
        )


async def _keep_gauges(node: Node, server: TaskServer, losses: Losses) -> None:
    """Look after everything, again and again; what fails in one look keeps nothing from others."""
    while True:
        node.health.turned()
        for look in _looks(node, server, losses):
            attempt(_ROUNDS, look)
            await asyncio.sleep(0)  # a turn each: many jobs may be due for revocation at once
        await asyncio.sleep(_GAUGE_PERIOD_S)


def _looks(node: Node, server: TaskServer, losses: Losses) -> Iterator[Callable[[], None]]:
    """The looks of one round, a turn each."""
    yield losses.look
    for unit in [*node.units.values()]:
        yield partial(_mend, unit)
    for session in [*server.sessions()]:
        yield partial(_look_at_job, session)
    yield lambda: gauges.update(node, [*server.sessions()])
    yield partial(_judge, node)


def _look_at_job(session: Session) -> None:
    session.jobs.look(time.monotonic_ns())


def _mend(unit: Unit) -> None:
    for sentence in unit.executor.mend():
        _log.error("%s: %s", unit.name, sentence)


def _judge(node: Node) -> None:
    """Say what the node is not ready for."""
    works = any(not unit.device.lost for unit in node.units.values())
    node.health.set("devices", "" if works else "none can be used")
    waits = "clients of before the restart are awaited" if node.recovery.pending else ""
    node.health.set("recovery", waits)
    for file in node.files:
        file.retry()
    unwritten = f"{node.config.run_dir} cannot be written" * any(f.failed for f in node.files)
    node.health.set("run_dir", unwritten)
    node.health.set("agent", "it stops" if node.stopping else "")
