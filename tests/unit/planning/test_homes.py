"""Homes in the lower tiers: in order, shared inside a domain, and refused by name."""

from __future__ import annotations

from tests.unit.planning.shapes import LINK, task

from tierline_operator.planning.answer import HomeRun, Infeasible
from tierline_operator.planning.homes import place_homes, runs
from tierline_operator.planning.request import TaskDemand, TierCapacity

MB = 10**6


def tiers(**sizes: int) -> dict[str, TierCapacity]:
    return {name: TierCapacity(size * MB, LINK) for name, size in sizes.items()}


def wanting(name: str, *allowed: str, digest: str = "", domain: str = "default") -> TaskDemand:
    return task(name, 100, 100, 1, tiers=allowed, weights_digest=digest, domain=domain)


def placed(tasks: list[TaskDemand], **sizes: int) -> list[list[HomeRun]]:
    homes = place_homes(tasks, tiers(**sizes))
    assert not isinstance(homes, Infeasible)
    return [list(runs(home)) for home in homes]


def test_the_first_allowed_tier_with_room_is_taken_extent_by_extent() -> None:
    first, second = placed(
        [wanting("a", "dram", "nvme"), wanting("b", "dram", "nvme")], nvme=100, dram=14
    )
    assert first == [HomeRun("dram", 10)]
    assert second == [HomeRun("dram", 4), HomeRun("nvme", 6)]


def test_equal_weights_of_one_domain_are_stored_once() -> None:
    same = [wanting("a", "dram", digest="x"), wanting("b", "dram", digest="x")]
    assert placed(same, dram=10) == [[HomeRun("dram", 10)]] * 2

    other = [wanting("a", "dram", digest="x"), wanting("b", "dram", digest="x", domain="other")]
    refused = place_homes(other, tiers(dram=10))
    assert isinstance(refused, Infeasible)


def test_a_full_tier_is_said_with_what_is_missing() -> None:
    refused = place_homes([wanting("a", "dram"), wanting("b", "dram")], tiers(dram=12, nvme=99))
    assert isinstance(refused, Infeasible)
    assert (refused.kind, refused.reason, refused.task) == ("tier", "TierFull", "b")
    assert refused.missing_bytes == 8 * MB
    assert "7.6 MiB are missing" in refused.sentence


def test_a_tier_the_device_does_not_have_is_no_home() -> None:
    refused = place_homes([wanting("a", "pmem")], tiers(dram=12))
    assert isinstance(refused, Infeasible)
    assert refused.reason == "TierUnknown"
    assert "only live in pmem" in refused.sentence
    assert "dram" in refused.sentence
