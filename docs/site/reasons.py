"""The page of reasons: each word that a status, a refusal or an event gives, with its sentence.

The words are those of the code, and each has its sentence here: a word without one, or a sentence
without its word, ends in a KeyError. What helps is what `kubectl tierline why-pending` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, get_args

from tierline_agent.processes.interventions import KillReason
from tierline_api.objects.conditions import ConditionType, Reason
from tierline_cli.cluster.why_pending import ADVICE
from tierline_operator.planning.answer import RefusalWord

PAGE = "reasons.md"
_HEAD = """# Reasons

A reason is one word for scripts, which keeps its spelling; a message next to it says more, with
names and figures. What the API server refuses has a sentence and no word:
[refusals](refusals.md).
"""
_TASK: Final = "of a MemTask; `status.reason` is that of the condition that decides its phase"
_NODE: Final = "of a MemNode"

_CONDITIONS: Final[Mapping[tuple[ConditionType, str], Mapping[Reason, str]]] = {
    (ConditionType.PROFILED, _TASK): {
        Reason.PROFILE_FOUND: "It has a MemProfile.",
        Reason.PROFILE_MISSING: "It has none, and none of its pods is being measured.",
        Reason.PROFILING: "Its first pod runs to be measured, or waits for that.",
        Reason.PROFILING_FAILED: "A pod ran to be measured, and left no profile in time.",
    },
    (ConditionType.ADMITTED, _TASK): {
        Reason.ADMITTED: "Each of its pods has a place where all deadlines are proven.",
        Reason.PENDING: "It waits for its turn, or until it is measured.",
        Reason.DEADLINE_INFEASIBLE: "A deadline, its own or another's, would not hold.",
        Reason.MEMORY_INSUFFICIENT: "Fast memory is missing, also for the smallest plans.",
        Reason.TIER_INSUFFICIENT: "Its tiers have no room for its weights, or are not there.",
        Reason.RING_TOO_SMALL: "One layer needs more fast memory at once than there is.",
        Reason.NO_MATCHING_DEVICE: "No device is of the kind and model that it names.",
        Reason.NOT_SCHEDULABLE: "Nodes with such devices do not take its pods.",
        Reason.NO_LONGER_HOLDS: "It was admitted, and what changed since breaks the proof.",
        Reason.CHANGE_REFUSED: "Its changed spec does not hold; it runs on as admitted.",
        Reason.NO_PODS: "Its place was given up, for no pod of it was there.",
        Reason.NO_CLAIM: "A pod of it runs without a claim: its device is kept for it alone.",
        Reason.QUOTA_EXCEEDED: "Its namespace would have more than its MemQuota grants.",
        Reason.NODE_GONE: "The device on which it has its place is gone.",
        Reason.BEING_DELETED: "It is being deleted, and its pods end.",
        Reason.INVALID_SPEC: "Its spec cannot be planned, by itself or with its MemProfile.",
    },
    (ConditionType.READY, _TASK): {
        Reason.RUNNING: "All of its pods are ready.",
        Reason.STARTING: "It has a place, and not all of its pods are ready.",
        Reason.NOT_RUNNING: "No pod is there, or none has a place.",
        Reason.NO_REPLICAS: "It wants no pod, and none is there: `spec.replicas` is 0.",
        Reason.REPLICA_FAILURE: "Its pods cannot be made, or not as it asks for them.",
        Reason.NO_CLAIM: "A pod of it runs without a claim, and has to be deleted.",
        Reason.STALLED: "It was admitted long ago, and is still not ready.",
    },
    (ConditionType.DEADLINES_MET, _TASK): {
        Reason.NO_MISSES: "No job ended after its deadline.",
        Reason.DEADLINES_MISSED: "Jobs ended after their deadlines.",
        Reason.NO_JOBS: "No job has ended yet.",
        Reason.OVERRUNS_NOT_HELD: "By what its jobs took, the proof does not hold any more.",
    },
    (ConditionType.READY, _NODE): {
        Reason.REGISTERED: "Pods with devices can start on it.",
        Reason.AGENT_STARTING: "Its agent has just started.",
        Reason.KUBELET_NOT_REGISTERED: "Its kubelet does not find the agent, or refuses it.",
        Reason.AGENT_SILENT: "Its agent gives no sign of life.",
        Reason.AGENT_CRASHING: "Its agent keeps ending soon after its start.",
    },
    (ConditionType.HEALTHY, _NODE): {
        Reason.ALL_WELL: "Devices, tiers and links do what plans count on.",
        Reason.NOT_AS_CONFIGURED: "All is well, but not as the agent's settings say.",
        Reason.LINK_DEGRADED: "A link is slower than plans were made with.",
        Reason.TIER_FAILED: "A tier cannot be read or written.",
        Reason.DEVICE_FAILED: "A device cannot be used.",
    },
}
_REFUSALS: Final[Mapping[RefusalWord, str]] = {
    "DeadlineMissed": "A job would end after its deadline.",
    "Overload": "The tasks need more than all of the device's time.",
    "UtilisationUnproven": "They need so nearly all of it that no proof ends.",
    "FastMemoryExceeded": "Not even the smallest plans fit.",
    "LayerTooLarge": "One layer is larger than a ring can be.",
    "TierFull": "The tiers that a task names have no room for its weights.",
    "TierUnknown": "The node lacks such a tier, or a link that was measured to it.",
}
_KILLS: Final[Mapping[KillReason, str]] = {
    KillReason.JOB_TOO_LONG: "A job had the device beyond its limit.",
    KillReason.REVOCATION_IGNORED: "A revoked job did not end.",
    KillReason.JOB_NOT_RESUMED: "The program did not come back after the agent's restart.",
    KillReason.JOB_NOT_ENDED: "The program left inside a job, and lives on.",
}


def page() -> str:
    """The whole page."""
    reasons = [reason for rows in _CONDITIONS.values() for reason in rows]
    _same(list(Reason), reasons)
    _same(get_args(RefusalWord), _REFUSALS)
    _same(list(KillReason), _KILLS)
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for (condition, of), rows in _CONDITIONS.items():
        yield f"\n## {condition.value}, {of.partition(';')[0]}\n\n"
        if of is _TASK and condition is ConditionType.PROFILED:
            yield f"A condition {of}.\n\n"
        helped = any(reason in ADVICE for reason in rows)
        yield _table(
            ("reason", "meaning", "what helps") if helped else ("reason", "meaning"),
            (
                (f"`{reason.value}`", meaning, *([ADVICE.get(reason, "")] if helped else []))
                for reason, meaning in rows.items()
            ),
        )
    yield "\n## Not admitted by `tierline run`, `admit` and `fit`\n\n"
    yield "In brackets after *not admitted*, and `reason` in their JSON.\n\n"
    yield _table(("reason", "meaning"), ((f"`{w}`", m) for w, m in _REFUSALS.items()))
    yield "\n## Programs that were ended\n\n"
    yield (
        "The label `reason` of `tierline_killed_programs_total`, and of an event of the pod; "
        "[what to do](../operations/runbooks.md#tierlineprogramskilled).\n\n"
    )
    yield _table(("reason", "meaning"), ((f"`{k.value}`", m) for k, m in _KILLS.items()))


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _same(words: Collection[str], told: Collection[str]) -> None:
    """Raise a KeyError unless each word has its sentence, and each sentence its word."""
    if different := {*words} ^ {*told}:
        raise KeyError(*sorted(different))
