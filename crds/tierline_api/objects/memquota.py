"""MemQuota: how much a namespace may take of all devices together; written by administrators.

What is limited is what plans need: memory that nobody needs and that Auto tasks get on top is not
given to tasks under a quota for fast memory. A namespace may have several; each one must hold.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from tierline_api.objects.plan import Tier
from tierline_api.schema.base import API_VERSION, ApiModel, Rule
from tierline_api.schema.fields import Bytes, Count
from tierline_api.schema.metadata import LABEL_NAME, ObjectMeta


class TierQuota(ApiModel):
    """How much of one tier."""

    tier: Tier
    """The tier."""
    capacity_bytes: Annotated[
        Bytes, Field(validation_alias="capacity", serialization_alias="capacity")
    ]
    """Bytes of weights that tasks may keep in it, over all nodes."""


class MemQuotaSpec(ApiModel):
    """What the tasks of the namespace may take together; what is absent is not limited."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.tiers.all(t, self.tiers.exists_one(u, u.tier == t.tier))",
            "tiers must not repeat a tier",
            ".tiers",
        ),
    )

    fast_memory_bytes: Annotated[
        Bytes | None, Field(validation_alias="fastMemory", serialization_alias="fastMemory")
    ] = None
    """Fast memory of all devices: resident weights, and on each device one ring and workspace."""
    tiers: Annotated[tuple[TierQuota, ...], Field(max_length=3)] = ()
    """Tiers, each named once."""
    link_percent: (
        Annotated[int, Field(strict=True, ge=0, le=100, json_schema_extra={"format": "int32"})]
        | None
    ) = None
    """The share of each link's time that streaming may need, in percent."""

    @field_validator("tiers")
    @classmethod
    def _tiers_differ(cls, tiers: tuple[TierQuota, ...]) -> tuple[TierQuota, ...]:
        names = [quota.tier for quota in tiers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the tier {name.value} is named twice; name each tier once")
        return tiers


class QuotaAmounts(ApiModel):
    """Amounts of what a quota limits."""

    fast_memory_bytes: Annotated[
        Bytes | None, Field(validation_alias="fastMemory", serialization_alias="fastMemory")
    ] = None
    """Fast memory of all devices."""
    tiers: Annotated[tuple[TierQuota, ...], Field(max_length=3)] = ()
    """Bytes of weights in tiers, over all nodes."""
    link_percent: Count | None = None
    """The share of a link's time, in percent."""


class MemQuotaStatus(ApiModel):
    """How much of the quota is taken."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""
    limit: QuotaAmounts | None = None
    """What the spec allows."""
    used: QuotaAmounts | None = None
    """What plans of the namespace's tasks take, in whole Mi and percent, rounded up; of links the
    busiest one."""


class MemQuota(ApiModel):
    """How much a namespace may take of all devices together."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (LABEL_NAME,)

    api_version: Literal["tierline.io/v1alpha1"] = API_VERSION
    """tierline.io/v1alpha1."""
    kind: Literal["MemQuota"] = "MemQuota"
    """MemQuota."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: MemQuotaSpec
    """What the tasks of the namespace may take together."""
    status: MemQuotaStatus | None = None
    """What they take; written by the operator."""

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.metadata.name
