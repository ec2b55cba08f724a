"""The use of a MemQuota, as its status says it: whole Mi and percent, rounded up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tierline_api.objects.memquota import MemQuota, MemQuotaStatus, QuotaAmounts, TierQuota
from tierline_api.objects.plan import Tier
from tierline_operator.placement.books.quota import Usage

_MI: Final = 2**20
_JITTER: Final = 1e-9
"""Of sums of shares: what they may be above a whole percent, and still are it."""


def quota_status(quota: MemQuota, used: Usage) -> MemQuotaStatus:
    """The status of a quota whose namespace takes that much."""
    spec = quota.spec
    share = max(used.link_share.values(), default=0.0)
    return MemQuotaStatus(
        observed_generation=quota.metadata.generation,
        limit=QuotaAmounts(
            fast_memory_bytes=spec.fast_memory_bytes,
            tiers=spec.tiers,
            link_percent=spec.link_percent,
        ),
        used=QuotaAmounts(
            fast_memory_bytes=_whole(used.fast_bytes),
            tiers=tuple(
                TierQuota(tier=tier, capacity_bytes=_whole(used.tier_bytes[tier.value]))
                for tier in Tier
                if tier.value in used.tier_bytes
            ),
            link_percent=math.ceil(share * 100 - _JITTER),
        ),
    )


def shares(status: MemQuotaStatus) -> Iterator[tuple[str, float]]:
    """Of each thing that a quota limits, which share of the limit is taken; 1 of nothing."""
    limit, used = status.limit or QuotaAmounts(), status.used or QuotaAmounts()
    if limit.fast_memory_bytes is not None:
        yield "fast-memory", _share(used.fast_memory_bytes or 0, limit.fast_memory_bytes)
    taken = {one.tier: one.capacity_bytes for one in used.tiers}
    for one in limit.tiers:
        yield one.tier.value, _share(taken.get(one.tier, 0), one.capacity_bytes)
    if limit.link_percent is not None:
        yield "link", _share(used.link_percent or 0, limit.link_percent)


def _share(used: int, limit: int) -> float:
    return used / limit if limit else 1.0


def _whole(size_bytes: int) -> int:
    return math.ceil(size_bytes / _MI) * _MI
