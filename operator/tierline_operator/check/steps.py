"""Steps of a check; each answers what works, or what does not and the fix."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tierline_api.objects.optin import GATE, TASK
from tierline_api.pods import installed
from tierline_kube.client import Kube
from tierline_kube.errors import KubeError, NotFound, Refused
from tierline_kube.resource import LEASE, MEMNODE, MEMTASK, POD, Json, Resource
from tierline_operator.check.dummy import Dummy, why_not
from tierline_operator.cluster.outside import outside

MANAGER: Final = "tierline-check"
AGENTS: Final = "app.kubernetes.io/component=agent"
DAEMONSET: Final = Resource("apps/v1", "DaemonSet", "daemonsets", AGENTS)
AGENT_POD: Final = Resource("v1", "Pod", "pods", AGENTS)
_ADMISSION: Final = (
    Resource("resource.k8s.io/v1", "DeviceClass", "deviceclasses"),
    *(
        Resource("admissionregistration.k8s.io/v1", kind, plural)
        for kind, plural in (
            ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
            ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        )
    ),
)
"""The kinds of what the chart installs for admission."""
POOL: Final = "tierline.io/pool"
_LEASE: Final = "tierline-operator"
_NAMED: Final = 5
"""So many pods are told by name."""
_LOOK_S: Final = 0.5
_TASK_S: Final = 180.0
"""An image may have to be fetched, and the kubelet tries a claim again only after a minute."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    wrong: str = ""
    """The fault that was found, and the fix; empty if there is none."""


async def check(kube: Kube, namespace: str, *, tasks: bool) -> AsyncIterator[Finding]:
    """Look at everything in turn; runs a task on each pool if `tasks`. Raises KubeError."""
    yield await _leader(kube, namespace)
    yield await _policies(kube, namespace)
    yield await _outside(kube)
    pools = (await kube.list_all(DAEMONSET, namespace)).items
    if not pools:
        fix = "name a pool in agent.pools, or give the namespace of the release"
        yield Finding("pools", f"namespace {namespace} has no agents; {fix}")
    for agents in pools:
        name = f"pool {(agents['metadata'].get('labels') or {}).get(POOL, '?')}"
        wrong, node = await _agents(kube, agents)
        yield Finding(f"{name}: agents are ready, known to their kubelets, as configured", wrong)
        if tasks:
            yield Finding(f"{name}: a task is admitted and runs", await _run(kube, agents, node))


async def _leader(kube: Kube, namespace: str) -> Finding:
    """Whether the Lease is renewed: seen by its change, as clocks of machines differ."""
    what = "an operator leads"
    try:
        first = (await kube.get(LEASE, namespace, _LEASE))["spec"]
        patience_s = float(first.get("leaseDurationSeconds") or 15)

        async def renewed() -> bool:
            now = (await kube.get(LEASE, namespace, _LEASE))["spec"]
            return bool(now.get("holderIdentity")) and now != first

        if await _until(renewed, patience_s):
            return Finding(what)
    except NotFound:
        return Finding(what, f"there is no Lease/{_LEASE} in namespace {namespace}; is it there?")
    see = f"see kubectl -n {namespace} get pods, and the operator's log"
    return Finding(what, f"nobody has renewed Lease/{_LEASE} for {patience_s:.0f} s; {see}")


async def _policies(kube: Kube, namespace: str) -> Finding:
    """Whether all policies are there; a pod that opts in gets its gate, a wrong one is refused."""
    what = "the admission policies are in force"
    absent = await _absent(kube)
    if absent:
        return Finding(what, f"{absent}; install them again (helm upgrade with your values)")
    fix = "see kubectl get mutatingadmissionpolicybindings,validatingadmissionpolicybindings"
    made = await kube.create(POD, _asking(namespace, {}), dry_run=True)
    gates = [gate.get("name") for gate in made["spec"].get("schedulingGates") or ()]
    if GATE not in gates:
        return Finding(what, f"a pod with the annotation {TASK} does not get its gate; {fix}")
    try:
        await kube.create(POD, _asking(namespace, {"tierline.io/period": "soon"}), dry_run=True)
    except Refused as refused:
        if "period" in refused.message:
            return Finding(what)
        raise
    return Finding(what, f"a pod with a nonsensical annotation is not refused; {fix}")


async def _outside(kube: Kube) -> Finding:
    """Whether pods run that were made while no policy was in force."""
    what = "pods that opted in have their claims"
    found = sorted(f"{pod.meta.namespace}/{pod.meta.name}" for pod in await outside(kube))
    if not found:
        return Finding(what)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return Finding(
        what,
        f"{', '.join(found[:_NAMED])}{more} run outside of Tierline: made while its admission "
        "policies were not in force, they have neither claim nor gate; delete them, the next ones "
        "get both",
    )


async def _absent(kube: Kube) -> str:
    """Objects of the chart for admission that are not there, or not as they were installed."""
    there: dict[tuple[str, str], Json] = {}
    for resource in _ADMISSION:
        for found in (await kube.list_all(resource)).items:
            there[resource.kind, found["metadata"]["name"]] = found
    wanted, of_root = [*installed.always()], [*installed.of_root()]
    if any(_named(manifest) in there for manifest in of_root):
        wanted += of_root  # else the chart's values leave it out
    gone: dict[str, list[str]] = {}
    changed: list[str] = []
    for manifest in wanted:
        kind, name = _named(manifest)
        if (kind, name) not in there:
            gone.setdefault(kind, []).append(name)
        elif (
            kind.endswith("Binding")
            and manifest not in of_root  # what that does, the chart's values say
            and there[kind, name]["spec"] != manifest["spec"]
        ):
            changed.append(f"{kind} {name} is not as this release installs it")
    missing = [
        f"{kind} {', '.join(names)} {'are' if len(names) > 1 else 'is'} not there"
        for kind, names in gone.items()
    ]
    return "; ".join([*missing, *changed])


def _named(manifest: Json) -> tuple[str, str]:
    """Kind and name of an object."""
    return manifest["kind"], manifest["metadata"]["name"]


def _asking(namespace: str, more: dict[str, str]) -> Json:
    """A pod that opts in."""
    name = f"{MANAGER}-asks"  # the pod in which this runs has the other
    metadata = {"name": name, "namespace": namespace, "annotations": {TASK: MANAGER, **more}}
    containers = [{"name": "main", "image": "none"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers},
    }


async def _agents(kube: Kube, agents: Json) -> tuple[str, Json | None]:
    """The faults of a pool's agents, and a MemNode of it that takes tasks."""
    namespace, name = agents["metadata"]["namespace"], agents["metadata"]["name"]
    pool = agents["metadata"]["labels"][POOL]
    all_ = (await kube.list_all(AGENT_POD, namespace)).items
    pods = [pod for pod in all_ if (pod["metadata"].get("labels") or {}).get(POOL) == pool]
    if not pods:
        return f"DaemonSet/{name} has no pod: no node has the labels of its nodeSelector", None
    wrong, good = [], None
    for pod in sorted(pods, key=lambda one: str(one["spec"].get("nodeName"))):
        node = pod["spec"].get("nodeName") or "(none yet)"
        found = await _memnode(kube, node)
        status = found.get("status") or {}
        unfit = [c for c in status.get("conditions") or () if c["status"] != "True"]
        if not _is(pod.get("status") or {}, "Ready") and not (unfit and _runs(pod)):
            wrong.append(f"node {node}: its agent is not ready, {why_not(pod)}")
            continue
        if not found:
            wrong.append(f"node {node}: its agent has not published a MemNode; see its log")
        wrong += [f"node {node}: {c.get('message') or c['reason']} ({c['reason']})" for c in unfit]
        if _is(status, "Ready") and status.get("devices"):
            good = good or found
    return "; ".join(wrong), good


async def _memnode(kube: Kube, node: str) -> Json:
    """The MemNode of a node; empty if there is none."""
    try:
        return await kube.get(MEMNODE, "", node)
    except NotFound:
        return {}


def _runs(pod: Json) -> bool:
    """Whether all containers of a pod run: if it is not ready then, it says itself why."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return bool(statuses) and all("running" in (one.get("state") or {}) for one in statuses)


def _is(status: Json, kind: str) -> bool:
    """Whether a condition is true."""
    conditions: Iterable[Json] = status.get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


async def _run(kube: Kube, agents: Json, node: Json | None) -> str:
    """Run a task on a node of a pool; returns why it does not, if it does not."""
    if node is None:
        return "no node of the pool can take one; see above"
    devices = node["status"]["devices"]
    usable = next((one for one in devices if one.get("health") != "Failed"), devices[0])
    name = f"{MANAGER}-{secrets.token_hex(3)}"
    namespace = agents["metadata"]["namespace"]
    dummy = Dummy(name, namespace, node["metadata"]["name"], usable, agents)
    made = dummy.manifests()
    try:
        for resource, manifest in made:
            await kube.create(resource, manifest)

        async def over() -> bool:
            pod = await kube.get(POD, namespace, name)
            return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}

        await _until(over, _TASK_S)
        pod = await kube.get(POD, namespace, name)
        if (pod.get("status") or {}).get("phase") == "Succeeded":
            return ""
        return await _why_task(kube, pod, namespace, name)
    except Refused as refused:
        return f"the API server refuses: {refused.message}"
    finally:
        for resource, _ in reversed(made):
            with contextlib.suppress(NotFound):
                await kube.delete(resource, namespace, name)


async def _why_task(kube: Kube, pod: Json, namespace: str, name: str) -> str:
    """Why a task's pod does not run: what the task says, as long as it is not admitted."""
    on = pod["spec"].get("nodeName") or "no node"
    if not pod["spec"].get("schedulingGates"):
        return f"its pod on {on} was admitted, but {why_not(pod)}"
    try:
        task = await kube.get(MEMTASK, namespace, name)
    except KubeError as error:
        return f"its pod waits at its gate, and {error}"
    said = [c for c in (task.get("status") or {}).get("conditions") or () if c["status"] != "True"]
    told = "; ".join(f"{c.get('message', '')} ({c['reason']})" for c in said[:1])
    return f"it is not admitted within {_TASK_S:.0f} s: {told or 'no operator has looked at it'}"


async def _until(holds: Callable[[], Awaitable[bool]], patience_s: float) -> bool:
    """Look again and again; returns whether it held in time."""
    deadline = time.monotonic() + patience_s
    while not await holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
