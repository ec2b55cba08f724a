"""The name of content: a BLAKE3 digest, keyed by the trust domain in which it may be shared.

In addition there is a checksum, four times as fast, by which content whose digest was verified once
is told from damaged content at every later read of the same process.

Equal content of two domains has different digests, so it is never shared between them, and one
domain cannot ask by digest whether another holds some content. A domain's name is no secret: the
key separates domains, it does not authenticate anybody.
"""

from __future__ import annotations

import os
import secrets
from typing import Final, TypeAlias

from blake3 import blake3
from xxhash import xxh3_128_digest

Digest: TypeAlias = bytes
"""32 bytes."""

Checksum: TypeAlias = bytes
"""16 bytes, meaningful in this process only."""

DIGEST_BYTES: Final = 32
TAG_BYTES: Final = 16
_CONTEXT: Final = "tierline trust domain"
_SEED: Final = secrets.randbits(64)
"""Drawn in every process: an attacker that changes a medium cannot aim at equal checksums."""
_THREADS: Final = max(1, min(4, len(os.sched_getaffinity(0)) // 4))
"""Of one digest. A link's two workers may hash at once; most processors are the programs'."""
_LONG_BYTES: Final = 4 << 20
"""From where on threads that are made for it are worth it."""


def domain_key(domain: str) -> bytes:
    """The 32-byte key of a trust domain (a namespace's name)."""
    return blake3(domain.encode(), derive_key_context=_CONTEXT).digest()


def digest_of(key: bytes, content: memoryview) -> Digest:
    """Digest of `content` in the domain of `key`; long content is hashed without Python's lock."""
    threads = _THREADS if content.nbytes >= _LONG_BYTES else 1
    return blake3(content, key=key, max_threads=threads).digest()


def domain_tag(key: bytes) -> bytes:
    """The form of a key in a record, to tell domains apart without storing the key itself."""
    return blake3(key).digest(TAG_BYTES)


def checksum_of(content: memoryview) -> Checksum:
    """Checksum of `content`; long content is read without Python's lock."""
    return xxh3_128_digest(content, _SEED)
