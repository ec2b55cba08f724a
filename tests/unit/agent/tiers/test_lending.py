"""Content used where it lies: verified once, pinned while it is lent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.tiers.media_models import MemoryMedium, content

from tierline_agent.tiers import CorruptExtent, NoSpace, Store, domain_key, open_medium

EXTENT_BYTES = 1 << 16
KEY = domain_key("vision")


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "store"


def open_store(path: Path, slots: int = 3) -> Store:
    return Store.open(open_medium("dram", path, (slots + 1) * EXTENT_BYTES), EXTENT_BYTES)


def lent_bytes(store: Store, digest: bytes) -> bytes:
    """What a device would copy."""
    offset, length = store.lend(digest, KEY)
    assert store.mapped is not None
    found = bytes(store.mapped.view(offset, length))
    store.take_back(digest)
    return found


def test_what_was_written_is_lent_without_another_look(path: Path) -> None:
    store = open_store(path)
    data = content(1, 40000)
    digest = store.put(KEY, data)
    assert store.may_lend(digest, KEY)
    assert lent_bytes(store, digest) == bytes(data)
    store.close()


def test_a_device_sees_it_in_a_mapping_of_its_own(path: Path) -> None:
    store = open_store(path)
    data = content(1, 40000)
    digest = store.put(KEY, data)
    offset, length = store.lend(digest, KEY)
    assert store.mapped is not None
    with store.mapped.map_again() as mapping:
        assert mapping[offset : offset + length] == bytes(data)
    store.close()


@pytest.mark.parametrize("spoilt", [False, True])
def test_after_a_restart_it_is_verified_first(path: Path, spoilt: bool) -> None:
    store = open_store(path)
    data = content(1, EXTENT_BYTES)
    digest = store.put(KEY, data)
    offset, _ = store.lend(digest, KEY)
    store.close()
    if spoilt:
        with path.open("r+b") as file:
            file.seek(offset + 7)
            file.write(b"\xff" if data[7] != 0xFF else b"\0")
    store = open_store(path)
    assert not store.may_lend(digest, KEY)
    if spoilt:
        for _ in range(2):
            with pytest.raises(CorruptExtent):
                store.lend(digest, KEY)
        with pytest.raises(CorruptExtent):
            store.may_lend(digest, KEY)
        assert store.put(KEY, data) == digest  # repairs it
    assert lent_bytes(store, digest) == bytes(data)
    assert store.may_lend(digest, KEY)
    store.close()


def test_lent_content_keeps_its_place(path: Path) -> None:
    store = open_store(path)
    slots = store.statistics().slots
    digests = [store.put(KEY, content(number, 5000)) for number in range(slots)]
    store.lend(digests[0], KEY)
    for digest in digests:
        store.release(digest)
    for number in range(slots - 1):
        store.put(KEY, content(100 + number, 5000))
    with pytest.raises(NoSpace):
        store.put(KEY, content(200, 5000))
    store.take_back(digests[0])
    store.put(KEY, content(200, 5000))
    store.close()


def test_what_is_not_memory_is_not_lent() -> None:
    store = Store.open(MemoryMedium(8 * EXTENT_BYTES), EXTENT_BYTES)
    digest = store.put(KEY, content(1, 5000))
    assert store.mapped is None
    with pytest.raises(ValueError, match="not mapped"):
        store.lend(digest, KEY)
