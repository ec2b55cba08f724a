"""Creates MemNodes or MemTasks at a rate, and tells how long each task waited for its verdict.

    KUBECONFIG=... python -m tests.bench.verdicts --namespace NAME --tasks 3000 --rate 100

A process of its own, so that making tasks and looking at them takes nothing of the time of whoever
measures. A task is created when it is due, however long the others take. Its time runs from the
moment before the request is sent until a watch shows a status in which it is admitted, or refused
with a reason. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.placement.fleets import node, profile, task

from tierline_api.schema.base import ApiModel
from tierline_kube.client import Kube
from tierline_kube.errors import Conflict, Unreachable
from tierline_kube.resource import MEMNODE, MEMPROFILE, MEMTASK, NODE, Json, Resource

AT_ONCE = 16
PERIODS_MS = (200, 250, 400)
MODELS = {"small": 32, "large": 64}
"""Names and sizes (MiB) of the models; 2 ms of compute each."""


def manifest(model: ApiModel, namespace: str = "") -> Json:
    """An object as a user writes it."""
    body = model.to_api()
    metadata = body["metadata"]
    body["metadata"] = {"name": metadata["name"], **({"namespace": namespace} if namespace else {})}
    return body


def numbered(number: int, namespace: str) -> Json:
    """One of the tasks."""
    models = list(MODELS)
    asked = task(
        f"t{number:06}",
        of=models[number % len(models)],
        period_ms=PERIODS_MS[number % len(PERIODS_MS)],
    )
    body = manifest(asked, namespace)
    body.pop("status", None)
    return body


def is_verdict(found: Json) -> bool:
    """Whether a task is told that it is admitted, or why not."""
    conditions = (found.get("status") or {}).get("conditions", ())
    said = next((one for one in conditions if one["type"] == "Admitted"), None)
    return said is not None and said["reason"] != "Pending"


async def paced(count: int, rate: float, make: Callable[[int], Awaitable[None]]) -> float:
    """Make `count` things, `rate` a second (0: as fast as it goes); returns the seconds it took."""
    begun = time.monotonic()
    free = asyncio.Semaphore(AT_ONCE if not rate else count)

    async def one(number: int) -> None:
        if rate:
            await asyncio.sleep(begun + number / rate - time.monotonic())
        async with free:
            await make(number)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return time.monotonic() - begun


async def made(kube: Kube, resource: Resource, body: Json) -> None:
    """Create an object, however often the API server has to be asked."""
    while True:
        try:
            await kube.create(resource, body)
        except Conflict:
            return
        except Unreachable:
            continue
        return


async def nodes(kube: Kube, count: int) -> None:
    """Publish MemNodes as their agents do, and Nodes as kubelets do that take no more pods."""

    async def make(number: int) -> None:
        body = manifest(node(f"node-{number:04}"))
        where = body["metadata"]["name"]
        await made(kube, NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": where}})
        # The API server taints a new Node as not ready, and nobody here would take that away.
        await kube.patch(NODE, "", where, {"spec": {"taints": None}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await kube.patch(NODE, "", where, {"status": ready}, subresource="status")
        status = body.pop("status")
        await made(kube, MEMNODE, body)
        name = body["metadata"]["name"]
        await kube.patch(MEMNODE, "", name, {"status": status}, subresource="status")

    await paced(count, 0, make)


async def models(kube: Kube, namespace: str) -> None:
    """The profiles that the tasks name."""
    for name, size in MODELS.items():
        model = profile(name, mib=size, compute_ms=2)
        await made(kube, MEMPROFILE, manifest(model, namespace))


async def waited(
    kube: Kube, namespace: str, count: int, rate: float, first: int
) -> dict[str, float]:
    """Create tasks at a rate; how long their verdicts took."""
    sent: dict[str, float] = {}
    took: dict[str, float] = {}
    everyone = asyncio.Event()
    version = (await kube.list_all(MEMTASK)).version

    async def watch() -> None:
        async for _, body in kube.watch(MEMTASK, version):
            name = body["metadata"].get("name")  # a bookmark has none
            if name in sent and name not in took and is_verdict(body):
                took[name] = time.monotonic() - sent[name]
                if len(took) == count:
                    everyone.set()

    async def make(number: int) -> None:
        body = numbered(first + number, namespace)
        sent[body["metadata"]["name"]] = time.monotonic()
        await made(kube, MEMTASK, body)

    watching = asyncio.create_task(watch())
    creating_s = await paced(count, rate, make)
    async with asyncio.timeout(200):
        await everyone.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    each = sorted(took.values())
    return {
        "creates_per_s": round(count / creating_s, 1),
        "verdict_p50_s": round(statistics.median(each), 2),
        "verdict_p99_s": round(each[-(-99 * count // 100) - 1], 2),
        "verdict_worst_s": round(each[-1], 2),
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    async with Kube("bench") as kube:
        await nodes(kube, options.nodes)
        await models(kube, options.namespace)
        if options.rate:
            return await waited(kube, options.namespace, options.tasks, options.rate, options.first)

        async def make(number: int) -> None:
            await made(kube, MEMTASK, numbered(options.first + number, options.namespace))

        return {"created_s": round(await paced(options.tasks, 0, make), 1)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--rate", type=float, default=0, help="tasks a second; 0: do not wait")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
