"""What a MemQuota says of how much of it is taken."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.placement.fleets import quota

from tierline_api.objects.memquota import MemQuota, TierQuota
from tierline_api.objects.plan import Tier
from tierline_operator.controller.quotas import quota_status, shares
from tierline_operator.placement.books.quota import Usage, total

SIZES = st.integers(0, 2**50)
TIERS = st.sampled_from([tier.value for tier in Tier])
USAGES = st.builds(
    Usage,
    SIZES,
    st.dictionaries(TIERS, SIZES),
    st.dictionaries(TIERS, st.floats(0, 1)),
)
LIMITS = st.builds(
    lambda fast, tiers, link: quota("q", fast_mib=fast, tiers=tiers, link_percent=link),
    st.none() | st.integers(0, 2**20),
    st.dictionaries(st.sampled_from(list(Tier)), SIZES).map(
        lambda of: tuple(TierQuota(tier=tier, capacity_bytes=size) for tier, size in of.items())
    ),
    st.none() | st.integers(0, 100),
)


@given(LIMITS, st.lists(USAGES, max_size=4))
def test_it_tells_the_sum_in_whole_mi_and_never_less(of: MemQuota, parts: list[Usage]) -> None:
    status = quota_status(of, total(parts))
    assert status.used is not None

    fast_bytes = sum(part.fast_bytes for part in parts)
    assert 0 <= (status.used.fast_memory_bytes or 0) - fast_bytes < 2**20
    for tier in status.used.tiers:
        taken = sum(part.tier_bytes.get(tier.tier.value, 0) for part in parts)
        assert 0 <= tier.capacity_bytes - taken < 2**20
        assert tier.capacity_bytes % 2**20 == 0
    worst = max((share for part in parts for share in part.link_share.values()), default=0.0)
    assert 0 <= (status.used.link_percent or 0) - Fraction(worst) * 100 + Fraction(1, 10**6) < 2
    assert MemQuota.from_api(of.model_copy(update={"status": status}).to_api()).status == status


@given(LIMITS, USAGES)
def test_there_is_a_share_of_all_that_is_limited_and_of_nothing_else(
    of: MemQuota, used: Usage
) -> None:
    spec = of.spec
    said = dict(shares(quota_status(of, used)))

    wanted = {tier.tier.value for tier in spec.tiers}
    wanted |= {"fast-memory"} if spec.fast_memory_bytes is not None else set()
    wanted |= {"link"} if spec.link_percent is not None else set()
    assert said.keys() == wanted
    if spec.fast_memory_bytes and used.fast_bytes <= spec.fast_memory_bytes:
        assert said["fast-memory"] <= 1
