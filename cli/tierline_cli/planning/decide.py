"""Admission on one machine: profiles and measured links in, a proof or a refusal out."""

from collections.abc import Mapping, Sequence
from typing import Any

from tierline_api.devices.margins import MARGINS
from tierline_api.devices.overheads import OVERHEADS
from tierline_api.objects.memnode import Device, Health, MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_operator.planning import from_api, planner
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand

_ENDLESS_S = 1e8
"""No period is so long."""


def device_for(node: MemNode, kind: str) -> Device:
    """The first device of a kind.

    Raises:
        CommandError: the node has none.
    """
    for device in node.status.devices:
        if device.kind.value == kind:
            return device
    have = ", ".join(d.kind.value for d in node.status.devices) or "no device"
    raise CommandError(
        f"MemNode/{node.name} has {have} and the tasks want {kind}; change spec.device.kind",
        EXIT_BAD_INPUT,
    )


def one_kind(tasks: Sequence[MemTask]) -> str:
    """The kind of device that all tasks want.

    Raises:
        CommandError: they want several; one run drives one device.
    """
    kinds = sorted({task.spec.device.kind.value for task in tasks})
    if len(kinds) != 1:
        raise CommandError(
            f"the tasks want several kinds of device ({', '.join(kinds)}); run each kind by itself",
            EXIT_BAD_INPUT,
        )
    return kinds[0]


def decide(
    tasks: Sequence[MemTask],
    profiles: Mapping[str, MemProfile],
    node: MemNode,
    margin: float | None,
) -> Admitted | Infeasible:
    """Ask the planner whether all `tasks` can run on the node's device together.

    Without a `margin`, with that of the kind of device.

    Raises:
        CommandError: the question makes no sense as it stands.
    """
    return planner.plan(*question_of_all(tasks, profiles, node, margin))


def question_of_all(
    tasks: Sequence[MemTask],
    profiles: Mapping[str, MemProfile],
    node: MemNode,
    margin: float | None,
) -> tuple[list[TaskDemand], DeviceCapacity]:
    """The demands of all `tasks`, and the capacity of the node's one device for them.

    Raises:
        CommandError: the question makes no sense as it stands.
    """
    one_kind(tasks)
    asked = [question_of(task, profiles[task.name], node, margin) for task in tasks]
    return [demand for demand, _ in asked], asked[0][1]


def question_of(
    task: MemTask, profile: MemProfile, node: MemNode, margin: float | None
) -> tuple[TaskDemand, DeviceCapacity]:
    """The demand of one task, and the capacity of the node's device for it.

    Raises:
        CommandError, QuestionError: the question makes no sense as it stands.
    """
    device = device_for(node, task.spec.device.kind.value)
    if Health.FAILED in (node.status.health, device.health):
        failed = "it" if node.status.health is Health.FAILED else f"its device {device.name}"
        raise CommandError(
            f"MemNode/{node.name}: {failed} has failed, and runs no task; mend it, or name "
            "another node",
            EXIT_BAD_INPUT,
        )
    own = OVERHEADS[device.kind]
    chosen = MARGINS[device.kind] if margin is None else margin
    capacity = from_api.capacity_of(
        *(node, device, Margins(chosen, chosen)),
        dispatch_s=own.dispatch_s,
        gate_s=own.gate_s,
        supports=from_api.supports_of(device),
    )
    if not task.spec.device.matches(device.kind, device.product):
        raise CommandError(
            f"MemTask/{task.name}: spec.device.model wants {task.spec.device.model!r} in the "
            f"product name of the device, which is {device.product!r}; change it, or name another "
            "node",
            EXIT_BAD_INPUT,
        )
    for refusal in (from_api.measured_elsewhere, from_api.stated_below_mean):
        wrong = refusal(task.spec, profile, device)
        if wrong is not None:
            raise CommandError(f"MemTask/{task.name}: {wrong}", EXIT_BAD_INPUT)
    return from_api.demand_of(task, profile, device.extent_bytes), capacity


def scheduling_sentence(answer: Admitted) -> str:
    """How jobs share the device, in words."""
    yielding = [plan.name for plan in answer.plans if plan.preemptible]
    if not yielding:
        return f"scheduling: {answer.scheduling.value}; every job keeps the device to its end"
    return (
        f"scheduling: {answer.scheduling.value}; "
        f"{', '.join(yielding)} give{'s' if len(yielding) == 1 else ''} way where a layer ends"
    )


def training_sentences(tasks: Sequence[MemTask], answer: Admitted) -> list[str]:
    """The share of the device that those have which train, in words."""
    return [
        f"{task.name} trains in the rest, and yields within {plan.first_s * 1e3:,.0f} ms at worst"
        for task, plan in zip(tasks, answer.plans, strict=True)
        if task.spec.training is not None
    ]


def slack_sentence(answer: Admitted) -> str:
    """How tight the proof is, in words."""
    if answer.slack_s > _ENDLESS_S:
        return "no task has a deadline that is guaranteed"
    return (
        f"the device is busy at most {answer.utilisation:.0%} of the time; the tightest window "
        f"({answer.critical_time_s * 1e3:,.0f} ms) has {answer.slack_s * 1e3:,.0f} ms to spare"
    )


def memory_sentence(answer: Admitted, device: DeviceCapacity) -> str:
    """The planned part of the fast memory, in words."""
    which = "the largest; jobs have them in turns"
    if not device.workspaces_overlay:
        which = "all together; programs on this device keep theirs between jobs"
    return (
        f"fast memory: {answer.fast_bytes_used / 2**20:,.0f} of "
        f"{device.fast_bytes / 2**20:,.0f} MiB are planned, "
        f"{answer.workspace_bytes / 2**20:,.0f} MiB of it for workspaces ({which})"
    )


def answer_json(answer: Admitted | Infeasible) -> dict[str, Any]:
    """The verdict for programs."""
    if isinstance(answer, Admitted):
        return {
            "admitted": True,
            "utilisation": answer.utilisation,
            "critical_time_s": answer.critical_time_s,
            "slack_s": answer.slack_s,
            "blocker": answer.blocker,
            "scheduling": answer.scheduling.value,
            "fast_bytes_used": answer.fast_bytes_used,
            "workspace_bytes": answer.workspace_bytes,
            "remarks": list(answer.remarks),
            "tasks": [
                {
                    "name": plan.name,
                    "plan": from_api.plan_of(plan, answer.scheduling).to_api(),
                    "job_time_s": plan.job_time_s,
                    "response_s": plan.response_s,
                    "preemptible": plan.preemptible,
                    "streamed_bytes_per_job": plan.streamed_bytes,
                }
                for plan in answer.plans
            ],
        }
    return {
        "admitted": False,
        "reason": answer.reason,
        "message": answer.sentence,
        "constraint": answer.kind,
        "task": answer.task,
        "object": None
        if answer.wish is None
        else dict(zip(("task", "name"), answer.wish, strict=True)),
        "critical_time_s": answer.critical_time_s,
        "blocker": answer.blocker,
        "shortfall_s": _finite(answer.shortfall_s),
        "missing_bytes": answer.missing_bytes,
        "cut_short": answer.cut_short,
    }


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == float("inf") else seconds
