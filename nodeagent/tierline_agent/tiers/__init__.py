"""Lower tiers: where weights live that are not in fast memory.

`open_medium` opens what a tier is made of, `Store.open` the content-addressed store on it.

    medium.py  the interface; mapped.py, files.py: its kinds; media.py: choosing and allocating
    resizing.py  a store of another size than before
    format.py  bytes on the medium; volume.py: reading and writing them
    catalogue.py  what is held and what may go; store.py: all of it under one lock
"""

from tierline_agent.tiers.digest import DIGEST_BYTES, Digest, digest_of, domain_key
from tierline_agent.tiers.errors import (
    CorruptExtent,
    ForeignContent,
    MediumFailure,
    MediumUnusable,
    MemoryChanged,
    NoSpace,
    OtherGeometry,
    TierError,
    UnknownExtent,
)
from tierline_agent.tiers.format import content_offset
from tierline_agent.tiers.mapped import MappedMedium
from tierline_agent.tiers.media import Kind, map_early, open_medium
from tierline_agent.tiers.medium import Durability, Medium
from tierline_agent.tiers.store import Store, StoreStatistics

__all__ = [
    "DIGEST_BYTES",
    "CorruptExtent",
    "Digest",
    "Durability",
    "ForeignContent",
    "Kind",
    "MappedMedium",
    "Medium",
    "MediumFailure",
    "MediumUnusable",
    "MemoryChanged",
    "NoSpace",
    "OtherGeometry",
    "Store",
    "StoreStatistics",
    "TierError",
    "UnknownExtent",
    "content_offset",
    "digest_of",
    "domain_key",
    "map_early",
    "open_medium",
]
