"""For each alert: series of a healthy system, and of one in which it fires.

Series are written as promtool writes them: `a+bxn` begins with a and adds b, n times, a minute
apart. Everything is judged at the end of the hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TASK = 'node="a", domain="vision", task="vit"'
AT = "60m"
_LINK = 'tierline_link_{}{{node="a", device="cpu", link="h2d"}}'
_DEVICE = 'tierline_device_{}{{node="a", device="gpu-0"}}'
_TIER = 'tierline_tier_{}{{node="a", tier="nvme"}}'


@dataclass(frozen=True)
class Case:
    """One alert."""

    alert: str
    well: dict[str, str]
    broken: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    value: str = ""
    """How the value shows in the annotations."""


def _steady(*series: str) -> dict[str, str]:
    return dict.fromkeys(series, "0x60")


def _of_task(name: str) -> str:
    return f"tierline_{name}{{{TASK}}}"


def _verdicts(slow: str) -> dict[str, str]:
    name = 'tierline_operator_verdict_seconds_bucket{{job="tierline-operator", le="{}"}}'
    values = {"5": slow, "10": slow, "30": "0+10x60", "+Inf": "0+10x60"}
    return {name.format(bound): series for bound, series in values.items()}


_ON_TASK = {"node": "a", "domain": "vision", "task": "vit"}
_ON_DEVICE = {"node": "a", "device": "gpu-0"}
_ON_LINK = {"node": "a", "device": "cpu", "link": "h2d"}
_ON_TIER = {"node": "a", "tier": "nvme"}
_HARD = f'tierline_task_info{{{TASK}, device="cpu", criticality="Hard"}}'
_SOFT = f'tierline_task_info{{{TASK}, device="cpu", criticality="Soft"}}'
_MISSES, _JOBS = _of_task("deadline_misses_total"), _of_task("jobs_total")
_OVERRUNS, _REVOKED = _of_task("overrun_jobs_total"), _of_task("revoked_jobs_total")
_KILLED = 'tierline_killed_programs_total{node="a", reason="JobTooLong"}'
_LATE = _of_task("late_yields_total")
_TRAINS, _READY = _of_task("task_trains"), _of_task("task_ready")
_ERRORS = 'tierline_operator_api_requests_total{method="GET", outcome="error"}'
_ANSWERS = 'tierline_operator_api_requests_total{method="GET", outcome="200"}'
_REFUSED = 'tierline_operator_blocked_tasks{reason="NoLongerHolds"}'
_PENDING = 'tierline_operator_blocked_tasks{reason="MemoryInsufficient"}'
_LEADER = 'tierline_operator_leader{{instance="{}"}}'

CASES = (
    Case(
        "TierlineTasksStalled",
        {"tierline_operator_stalled_tasks": "0x60"},
        {"tierline_operator_stalled_tasks": "2x60"},
        value="2",
    ),
    Case(
        "TierlineNodeUnready",
        {'tierline_operator_node_ready{node="a", reason="Registered"}': "1x60"},
        {'tierline_operator_node_ready{node="a", reason="KubeletNotRegistered"}': "0x60"},
        {"node": "a", "reason": "KubeletNotRegistered"},
    ),
    Case(
        "TierlineAgentDown",
        {'up{job="tierline-agent", node="a"}': "1x60", 'up{job="other", node="a"}': "0x60"},
        {'up{job="tierline-agent", node="a"}': "1x50 0x10"},
        {"job": "tierline-agent", "node": "a"},
    ),
    Case(
        "TierlineNoLeader",
        {_LEADER.format("one"): "0x60", _LEADER.format("two"): "1x60"},
        {_LEADER.format("one"): "1x50 0x10"},
    ),
    Case(
        "TierlineTasksWaiting",
        {"tierline_operator_waiting_tasks": "2x50 0x10"},
        {"tierline_operator_waiting_tasks": "0x10 2x50"},
        value="2",
    ),
    Case(
        "TierlineTasksRefused",
        {_REFUSED: "0x60", _PENDING: "3x60"},
        {_REFUSED: "0x50 3x10"},
        {"reason": "NoLongerHolds"},
        value="3",
    ),
    Case("TierlineSlowVerdicts", _verdicts("0+10x60"), _verdicts("0x60"), value="29.8s"),
    Case(
        "TierlineApiErrors",
        {_ERRORS: "0+1x60", _ANSWERS: "0+99x60"},
        {_ERRORS: "0+20x60", _ANSWERS: "0+80x60"},
        value="20%",
    ),
    Case(
        "TierlineHardDeadlineMissed",
        {_MISSES: "0x54 0+1x6", _SOFT: "1x60"},
        {_MISSES: "0x54 1x6", _HARD: "1x60"},
        _ON_TASK,
    ),
    Case(
        "TierlineDeadlinesMissed",
        {_MISSES: "0+1x60", _JOBS: "0+100x60"},
        {_MISSES: "0+10x60", _JOBS: "0+100x60"},
        _ON_TASK,
        value="10%",
    ),
    Case(
        "TierlineTaskOverruns",
        {_OVERRUNS: "0+50x60", _JOBS: "0+100x60", _SOFT: "1x60"},
        {_OVERRUNS: "0+50x60", _JOBS: "0+100x60", _HARD: "1x60"},
        _ON_TASK,
        value="50%",
    ),
    Case(
        "TierlineLateYields",
        {_LATE: "0+1x60", _JOBS: "0+200x60"},
        {_LATE: "0+10x60", _JOBS: "0+200x60"},
        _ON_TASK,
    ),
    Case(
        "TierlineTrainingStalled",
        {_TRAINS: "1x60", _READY: "1x60", _JOBS: "0+1x60"},
        {_TRAINS: "1x60", _READY: "1x60", _JOBS: "0+1x40 40x20"},
        _ON_TASK,
    ),
    Case("TierlineJobsRevoked", _steady(_REVOKED), {_REVOKED: "0x54 1x6"}, _ON_TASK),
    Case(
        "TierlineProgramsKilled",
        _steady(_KILLED),
        {_KILLED: "0x54 1x6"},
        {"node": "a", "reason": "JobTooLong"},
    ),
    Case(
        "TierlineDeviceDown",
        {_DEVICE.format("up"): "1x40 0x1 1x20"},
        {_DEVICE.format("up"): "1x50 0x10"},
        _ON_DEVICE,
    ),
    Case(
        "TierlineDeviceErrors",
        _steady(_DEVICE.format("errors_total"), _DEVICE.format("losses_total")),
        {_DEVICE.format("errors_total"): "0x60", _DEVICE.format("losses_total"): "0x54 1x6"},
        _ON_DEVICE,
    ),
    Case(
        "TierlineLinkDrifted",
        {_LINK.format("drifted"): "0x50 1x5 0x5"},
        {_LINK.format("drifted"): "0x40 1x20"},
        _ON_LINK,
    ),
    Case(
        "TierlineLinkErrors",
        _steady(_LINK.format("errors_total")),
        {_LINK.format("errors_total"): "0x54 1x6"},
        _ON_LINK,
    ),
    Case(
        "TierlineTierCorrupt",
        _steady(_TIER.format("corruptions_total")),
        {_TIER.format("corruptions_total"): "0x54 1x6"},
        _ON_TIER,
    ),
    Case(
        "TierlineTierFailing",
        _steady(_TIER.format("failures_total")),
        {_TIER.format("failures_total"): "0x54 1x6"},
        _ON_TIER,
    ),
    Case(
        "TierlineTierNearlyFull",
        {_TIER.format("promised_bytes"): "80x60", _TIER.format("capacity_bytes"): "100x60"},
        {_TIER.format("promised_bytes"): "95x60", _TIER.format("capacity_bytes"): "100x60"},
        _ON_TIER,
        value="95%",
    ),
)
