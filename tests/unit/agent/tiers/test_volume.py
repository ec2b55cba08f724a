from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.agent.tiers.media_models import MemoryMedium

import tierline_agent.tiers.volume as volume_module
from tierline_agent.tiers import ForeignContent, MediumUnusable, OtherGeometry
from tierline_agent.tiers.format import Record, SlotState, smallest_medium
from tierline_agent.tiers.medium import BLOCK_BYTES
from tierline_agent.tiers.volume import Volume

EXTENT_BYTES = 1 << 16
SIZE_BYTES = 4 << 20
STORED = Record(SlotState.STORED, 0, 100, b"d" * 32, b"t" * 16)


@pytest.mark.parametrize(
    ("offset", "mark"),
    [
        pytest.param(510, b"\x55\xaa", id="a partition table"),
        pytest.param(1080, b"\x53\xef", id="ext4"),
        pytest.param(0, b"XFSB", id="xfs"),
        pytest.param(512, b"LABELONE", id="a volume manager"),
        pytest.param(65600, b"_BHRfS_M", id="btrfs"),
        pytest.param(4086, b"SWAPSPACE2", id="swap"),
        pytest.param(SIZE_BYTES - 512, b"EFI PART", id="a backup partition table"),
        pytest.param(SIZE_BYTES - 65536, b"\xfc\x4e\x2b\xa9", id="raid metadata at the end"),
        pytest.param(0, b"TIERSTOR", id="the ruins of a store"),
    ],
)
def test_foreign_content_is_refused(offset: int, mark: bytes) -> None:
    medium = MemoryMedium(SIZE_BYTES)
    medium.content[offset : offset + len(mark)] = mark
    before = bytes(medium.content)
    with pytest.raises(ForeignContent, match=r"not a Tierline store .* remove the file"):
        Volume.open(medium, EXTENT_BYTES)
    assert bytes(medium.content) == before
    assert medium.closed
    assert _slots(Volume.make(medium.reopened(), EXTENT_BYTES)) > 0


def test_a_blank_medium_is_formatted_and_opens_again_as_the_same_store() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    first = Volume.open(medium, EXTENT_BYTES)
    again = Volume.open(medium.reopened(), EXTENT_BYTES)
    assert (again.uuid, again.geometry) == (first.uuid, first.geometry)


def test_a_volatile_medium_is_formatted_in_each_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    medium = MemoryMedium(SIZE_BYTES)
    medium.content[:] = random.Random(7).randbytes(SIZE_BYTES)  # noqa: S311 - filler
    medium.volatile = True

    def opened(boot: str) -> Volume:
        (tmp_path / "boot_id").write_text(boot)
        monkeypatch.setattr(volume_module, "_BOOT_ID", tmp_path / "boot_id")
        again = medium.reopened()
        again.volatile = True
        return Volume.open(again, EXTENT_BYTES)

    first = opened("first")
    assert {record.state for _, record in first.scan()} == {SlotState.FREE}
    first.write_record(5, STORED)
    medium.content[:] = first.medium.content  # type: ignore[attr-defined]  # a MemoryMedium
    again = opened("first")
    assert again.uuid == first.uuid
    assert [slot for slot, record in again.scan() if record.names_content] == [5]
    later = opened("second")
    assert later.uuid != first.uuid
    assert not any(record.names_content for _, record in later.scan())


@pytest.mark.parametrize("which", ["first", "last"])
def test_one_destroyed_superblock_is_made_whole(which: str) -> None:
    medium = MemoryMedium(SIZE_BYTES)
    volume = Volume.open(medium, EXTENT_BYTES)
    for _ in volume.scan():
        pass
    volume.write_record(5, STORED)
    whole = bytes(medium.content)
    offset = 0 if which == "first" else volume.geometry.last_block
    medium.content[offset + 20] ^= 4
    again = medium.reopened()
    assert Volume.open(again, EXTENT_BYTES).uuid == volume.uuid
    assert bytes(again.content) == whole


def test_with_both_superblocks_destroyed_nothing_is_touched() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    volume = Volume.open(medium, EXTENT_BYTES)
    for offset in (0, volume.geometry.last_block):
        medium.content[offset + 20] ^= 4
    with pytest.raises(ForeignContent, match="superblocks are destroyed"):
        Volume.open(medium.reopened(), EXTENT_BYTES)


def test_formatting_that_was_cut_off_is_finished() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    geometry = Volume.open(medium, EXTENT_BYTES).geometry
    medium.content[0:BLOCK_BYTES] = bytes(BLOCK_BYTES)
    assert Volume.open(medium.reopened(), EXTENT_BYTES).geometry == geometry
    torn = geometry.last_block + 40
    medium.content[torn : geometry.medium_bytes] = bytes(geometry.medium_bytes - torn)
    assert Volume.open(medium.reopened(), EXTENT_BYTES).geometry == geometry


def test_another_extent_size_is_refused() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    Volume.open(medium, EXTENT_BYTES)
    with pytest.raises(OtherGeometry, match="extents of 65536 bytes, not 131072"):
        Volume.open(medium.reopened(), 2 * EXTENT_BYTES)
    again = Volume.make(medium.reopened(), 2 * EXTENT_BYTES)
    assert again.geometry.extent_bytes == 2 * EXTENT_BYTES


def test_a_medium_that_has_shrunk_is_refused_and_one_that_has_grown_is_not() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    geometry = Volume.open(medium, EXTENT_BYTES).geometry
    smaller, larger = MemoryMedium(SIZE_BYTES // 2), MemoryMedium(SIZE_BYTES * 2)
    smaller.content[:] = medium.content[: SIZE_BYTES // 2]
    larger.content[:SIZE_BYTES] = medium.content
    with pytest.raises(OtherGeometry, match="give it its former size"):
        Volume.open(smaller, EXTENT_BYTES)
    assert Volume.open(larger, EXTENT_BYTES).geometry == geometry


def test_a_medium_too_small_for_one_extent_is_refused() -> None:
    size_bytes = smallest_medium(EXTENT_BYTES)
    with pytest.raises(MediumUnusable, match=f"configure at least {size_bytes}"):
        Volume.open(MemoryMedium(size_bytes - BLOCK_BYTES), EXTENT_BYTES)
    assert _slots(Volume.open(MemoryMedium(size_bytes), EXTENT_BYTES)) == 1


def test_a_store_made_again_forgets_every_record() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    volume = Volume.open(medium, EXTENT_BYTES)
    for _ in volume.scan():
        pass
    volume.write_record(3, STORED)
    medium.content[0] ^= 1
    medium.content[volume.geometry.last_block] ^= 1
    again = Volume.make(medium.reopened(), EXTENT_BYTES)
    assert {record.state for _, record in again.scan()} == {SlotState.FREE}
    assert again.torn_records == 1


def test_a_slot_is_in_its_newest_state_and_in_the_one_before_if_that_is_torn() -> None:
    medium = MemoryMedium(SIZE_BYTES)
    volume = Volume.open(medium, EXTENT_BYTES)
    for _ in volume.scan():
        pass
    states = [SlotState.STORED, SlotState.QUARANTINED, SlotState.FREE, SlotState.RETIRED]
    for newest, state in enumerate(states):
        volume.write_record(2, Record(state, 0, 100, b"d" * 32, b"t" * 16))
        assert _state(medium.reopened(), 2) == state
        torn = medium.reopened()
        torn.content[volume.geometry.record_offset(2, newest % 2) + 50] ^= 1
        assert _state(torn, 2) == (states[newest - 1] if newest else SlotState.FREE)


def _slots(volume: Volume) -> int:
    return volume.geometry.slot_count


def _state(medium: MemoryMedium, slot: int) -> SlotState:
    return dict(Volume.open(medium, EXTENT_BYTES).scan())[slot].state
