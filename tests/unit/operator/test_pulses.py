"""Which nodes have a silent agent, as a leader hears it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tierline_api.objects.memnode import MemNode
from tierline_operator.cluster.pulses import CRASHING_S, SILENCE_S, Pulses

START = datetime(2026, 11, 21, tzinfo=UTC)
LONG_AGO = START - timedelta(days=1)


def said(at: datetime | None, ready: str | None = None, reason: str = "Test") -> MemNode:
    """A MemNode with an agent that gave its last sign of life at that time."""
    status: dict[str, Any] = {"lastSeen": at}
    if ready:
        times = {"lastTransitionTime": START}
        status["conditions"] = [{"type": "Ready", "status": ready, "reason": reason, **times}]
    return MemNode.from_api({"metadata": {"name": "a"}, "status": status})


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_silence_counts_from_when_it_was_heard_and_not_from_what_it_says() -> None:
    pulses = Pulses()
    pulses.take(said(LONG_AGO))  # of a node with a slow clock
    assert pulses.turn(START) == (set(), after(SILENCE_S))
    assert pulses.turn(after(SILENCE_S - 1)) == (set(), after(SILENCE_S))
    assert pulses.unfit("a") == ""
    assert pulses.turn(after(SILENCE_S)) == ({"a"}, None)
    assert "no sign of life" in pulses.unfit("a")
    assert pulses.turn(after(SILENCE_S + 1)) == (set(), None), "once"


def test_the_same_word_again_is_no_sign_and_a_new_one_is() -> None:
    pulses = Pulses()
    pulses.take(said(LONG_AGO))
    pulses.turn(START)
    pulses.take(said(LONG_AGO))
    assert pulses.turn(after(SILENCE_S))[0] == {"a"}
    assert list(pulses.nodes()) == [("a", "AgentSilent", False)]
    pulses.take(said(LONG_AGO, "Unknown", "AgentSilent"))  # what the operator itself wrote
    assert pulses.unfit("a")
    pulses.take(said(LONG_AGO + timedelta(seconds=10), "True"))
    assert pulses.unfit("a") == ""
    assert list(pulses.nodes()) == [("a", "Test", True)]
    assert pulses.turn(after(SILENCE_S + 1))[1] == after(2 * SILENCE_S + 1)


def test_a_new_leader_believes_what_was_written_of_the_silent() -> None:
    pulses = Pulses()
    pulses.take(said(LONG_AGO, "Unknown", "AgentSilent"))
    assert pulses.turn(START) == (set(), None)
    assert "no sign of life" in pulses.unfit("a")


def test_an_agent_of_before_is_taken_to_be_well() -> None:
    pulses = Pulses()
    pulses.take(said(None))
    assert pulses.turn(after(1e6)) == (set(), None)
    assert pulses.unfit("a") == ""


def test_where_the_kubelet_does_not_know_the_driver_no_pod_can_start() -> None:
    pulses = Pulses()
    pulses.take(said(START, "False", "KubeletNotRegistered"))
    assert pulses.unfit("a").endswith("(KubeletNotRegistered)")
    assert list(pulses.nodes()) == [("a", "KubeletNotRegistered", False)]
    pulses.forget("a")
    assert pulses.unfit("a") == ""


def test_an_agent_that_keeps_ending_is_not_called_silent_before_it_could_start_again() -> None:
    pulses = Pulses()
    pulses.take(said(START, "False", "AgentCrashing"))
    assert pulses.turn(START) == (set(), after(CRASHING_S))
    assert pulses.turn(after(SILENCE_S)) == (set(), after(CRASHING_S))
    assert pulses.unfit("a").endswith("(AgentCrashing)")
    assert pulses.turn(after(CRASHING_S)) == ({"a"}, None)
    assert "no sign of life" in pulses.unfit("a")
