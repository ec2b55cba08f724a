"""Bits that flip on the medium, in content, records and superblocks: found, and never used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.store_folders import store_folder
from tests.unit.agent.tiers.media_models import content

from tierline_agent.tiers import (
    CorruptExtent,
    ForeignContent,
    Kind,
    NoSpace,
    Store,
    UnknownExtent,
    domain_key,
    open_medium,
)
from tierline_agent.tiers.format import Geometry, lay_out
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.memory import scratch

EXTENT_BYTES = 1 << 16
SIZE_BYTES = 1 << 20
KEY = domain_key("faults")
PLACES = [
    pytest.param("dram", "memory", id="dram"),
    pytest.param("pmem", "disk", id="pmem"),
    pytest.param("nvme", "disk", id="nvme"),
]


@pytest.fixture
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    with store_folder(request.param) as folder:
        yield folder / "medium"


def _open(kind: Kind, path: Path) -> Store:
    return Store.open(open_medium(kind, path, SIZE_BYTES), EXTENT_BYTES)


def _geometry() -> Geometry:
    geometry = lay_out(EXTENT_BYTES, SIZE_BYTES)
    assert geometry is not None
    return geometry


def _fill(kind: Kind, path: Path) -> dict[bytes, memoryview]:
    """A full store: content by digest, in slot order."""
    store = _open(kind, path)
    filled = {}
    for seed in range(store.statistics().slots):
        data = content(seed, EXTENT_BYTES - 777 * seed)
        filled[store.put(KEY, data)] = data
    store.close()
    return filled


def _flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize(("kind", "path"), PLACES, indirect=["path"])
def test_a_flipped_bit_of_content_is_found_by_its_digest(kind: Kind, path: Path) -> None:
    filled = _fill(kind, path)
    digests = list(filled)
    _flip(path, 8 * (_geometry().slot_offset(2) + 5000) + 3)
    target = scratch(EXTENT_BYTES)
    for _ in range(2):  # also after a restart
        store = _open(kind, path)
        with pytest.raises(CorruptExtent):
            store.read_into(digests[2], KEY, target)
        for digest in digests[:2] + digests[3:]:
            length = store.read_into(digest, KEY, target)
            assert target[:length] == filled[digest]
        store.close()
    store = _open(kind, path)
    store.put(KEY, filled[digests[2]])
    assert store.read_into(digests[2], KEY, target) == filled[digests[2]].nbytes
    assert target[: filled[digests[2]].nbytes] == filled[digests[2]]
    store.close()


@pytest.mark.parametrize(("kind", "path"), PLACES, indirect=["path"])
def test_a_bit_that_flips_after_a_good_read_is_found_by_its_checksum(
    kind: Kind, path: Path
) -> None:
    digest, data = next(iter(_fill(kind, path).items()))
    target = scratch(EXTENT_BYTES)
    store = _open(kind, path)
    for _ in range(2):
        assert store.read_into(digest, KEY, target) == data.nbytes
    _flip(path, 8 * (_geometry().slot_offset(0) + 5000) + 3)
    with pytest.raises(CorruptExtent):
        store.read_into(digest, KEY, target)
    store.put(KEY, data)
    assert target[: store.read_into(digest, KEY, target)] == data
    store.close()


@pytest.mark.parametrize(("kind", "path"), PLACES, indirect=["path"])
def test_a_flipped_bit_of_a_record_hides_its_content_and_no_other(kind: Kind, path: Path) -> None:
    filled = _fill(kind, path)
    digests = list(filled)
    _flip(path, 8 * (_geometry().record_offset(2, 0) + 40))
    store = _open(kind, path)
    assert set(store.digests()) == set(digests) - {digests[2]}
    assert (store.statistics().torn_records, store.statistics().free) == (1, 1)
    with pytest.raises(UnknownExtent):
        store.acquire(digests[2])
    assert store.put(KEY, filled[digests[2]]) == digests[2]
    store.close()
    store = _open(kind, path)
    assert set(store.digests()) == set(digests)
    store.close()


@pytest.mark.parametrize(("kind", "path"), PLACES, indirect=["path"])
def test_a_flipped_bit_of_a_superblock_is_mended_from_the_other_one(kind: Kind, path: Path) -> None:
    filled = _fill(kind, path)
    whole = path.read_bytes()
    first, last = 8 * 21, 8 * (_geometry().last_block + 21)
    for bit in (first, last):
        _flip(path, bit)
        store = _open(kind, path)
        assert set(store.digests()) == set(filled)
        store.close()
        assert path.read_bytes() == whole
    _flip(path, first)
    _flip(path, last)
    with pytest.raises(ForeignContent):
        _open(kind, path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), PLACES[:1], indirect=["path"])
def test_wherever_bits_flip_no_wrong_byte_is_read(kind: Kind, path: Path) -> None:
    filled = _fill(kind, path)
    whole = path.read_bytes()
    chance = random.Random(3)  # noqa: S311 - reproducible, not secret
    target = scratch(EXTENT_BYTES)
    for _ in range(150):
        path.write_bytes(whole)
        bits = chance.sample(range(8 * SIZE_BYTES), 2)
        # Most of a medium is content; let most flips hit what has structure.
        bits += [8 * BLOCK_BYTES * chance.randrange(2 * len(filled)) + chance.randrange(800)]
        for bit in bits:
            _flip(path, bit)
        store = _open(kind, path)
        before = store.statistics()
        assert before.free + before.stored == before.slots
        for digest, data in filled.items():
            try:
                length = store.read_into(digest, KEY, target)
            except (CorruptExtent, UnknownExtent):
                continue
            assert target[:length] == data
        after = store.statistics()
        assert after.free + after.stored + after.unsound == after.slots
        assert after.unsound == after.corruptions
        store.close()


@pytest.mark.parametrize(("kind", "path"), PLACES, indirect=["path"])
def test_a_full_medium_says_so_and_loses_nothing(kind: Kind, path: Path) -> None:
    store = _open(kind, path)
    filled = {}
    for seed in range(store.statistics().slots):
        data = content(seed, EXTENT_BYTES)
        filled[store.put(KEY, data)] = data
    for _ in range(2):
        with pytest.raises(NoSpace, match="configure a larger tier"):
            store.put(KEY, content(1000, EXTENT_BYTES))
    store.close()
    store = _open(kind, path)
    target = scratch(EXTENT_BYTES)
    for digest, data in filled.items():
        store.read_into(digest, KEY, target)
        assert target == data
    store.close()
