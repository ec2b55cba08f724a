from __future__ import annotations

import threading

import pytest
from tests.unit.agent.tiers.media_models import FailingMedium, MemoryMedium, WatchedMedium, content

from tierline_agent.tiers import (
    CorruptExtent,
    Medium,
    MediumFailure,
    MemoryChanged,
    NoSpace,
    Store,
    UnknownExtent,
    digest_of,
    domain_key,
)
from tierline_agent.tiers.digest import domain_tag
from tierline_agent.tiers.format import Record, SlotState, lay_out
from tierline_agent.tiers.memory import scratch

EXTENT_BYTES = 1 << 16
KEY = domain_key("vision")
OTHER_KEY = domain_key("speech")
PATIENCE_S = 120.0


def store_of(slots: int, medium: Medium | None = None) -> Store:
    return Store.open(medium or medium_of(slots), EXTENT_BYTES)


def medium_of(slots: int) -> MemoryMedium:
    table = -(-(1 + 2 * slots) * 4096 // EXTENT_BYTES) * EXTENT_BYTES
    medium = MemoryMedium(table + slots * EXTENT_BYTES + 4096)
    geometry = lay_out(EXTENT_BYTES, medium.size_bytes)
    assert geometry is not None
    assert geometry.slot_count == slots
    return medium


def read(store: Store, digest: bytes, key: bytes = KEY) -> bytes:
    target = scratch(EXTENT_BYTES)
    length = store.read_into(digest, key, target)
    return bytes(target[:length])


def spoil(medium: MemoryMedium, data: memoryview) -> None:
    """Flip one bit of stored content."""
    medium.content[medium.content.index(bytes(data[:64])) + 40] ^= 1


@pytest.mark.parametrize("size_bytes", [1, 4095, 4096, 40000, EXTENT_BYTES])
def test_content_reads_back_by_its_digest(size_bytes: int) -> None:
    store = store_of(2)
    data = content(1, size_bytes)
    digest = store.put(KEY, data)
    assert digest == digest_of(KEY, data)
    assert read(store, digest) == bytes(data)
    assert store.statistics().stored_bytes == size_bytes


@pytest.mark.parametrize("size_bytes", [0, EXTENT_BYTES + 1])
def test_content_of_no_or_too_many_bytes_is_a_mistake(size_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 65536"):
        store_of(1).put(KEY, memoryview(bytes(size_bytes)))


def test_too_little_memory_for_the_content_is_a_mistake() -> None:
    store = store_of(1)
    digest = store.put(KEY, content(1, 5000))
    with pytest.raises(ValueError, match="5000 bytes do not fit into 4096"):
        store.read_into(digest, KEY, scratch(4096))


def test_memory_beyond_the_content_is_not_touched() -> None:
    store = store_of(1)
    digest = store.put(KEY, content(1, 5000))
    target = content(2, EXTENT_BYTES)
    store.read_into(digest, KEY, target)
    assert target[5000:] == content(2, EXTENT_BYTES)[5000:]


def test_equal_content_is_stored_once_in_a_domain_and_twice_in_two() -> None:
    store = store_of(3)
    data = content(1, EXTENT_BYTES)
    assert store.put(KEY, data) == store.put(KEY, data)
    assert (store.statistics().stored, store.statistics().deduplicated) == (1, 1)
    assert store.put(OTHER_KEY, data) != digest_of(KEY, data)
    assert store.statistics().stored == 2


def test_content_of_another_domain_is_unknown_and_stays_unharmed() -> None:
    store = store_of(1)
    digest = store.put(KEY, content(1, 5000))
    with pytest.raises(UnknownExtent):
        read(store, digest, OTHER_KEY)
    with pytest.raises(UnknownExtent):
        store.acquire(digest, OTHER_KEY)
    assert store.acquire(digest, KEY) == 5000
    assert read(store, digest) == bytes(content(1, 5000))


@pytest.mark.parametrize("digest", [bytes(32), b"", b"short"])
def test_unknown_content_is_refused(digest: bytes) -> None:
    store = store_of(1)
    for call in (store.acquire, store.release, lambda d: read(store, d)):
        with pytest.raises(UnknownExtent, match="load the model's weights again"):
            call(digest)


def test_a_full_store_evicts_only_what_nobody_refers_to() -> None:
    store = store_of(2)
    first, second = (store.put(KEY, content(seed, 100)) for seed in (1, 2))
    with pytest.raises(NoSpace, match="all 2 slots hold content in use"):
        store.put(KEY, content(3, 100))
    store.release(first)
    third = store.put(KEY, content(3, 100))
    assert set(store.digests()) == {second, third}
    assert store.statistics().evicted == 1
    with pytest.raises(UnknownExtent):
        read(store, first)


def test_each_reference_counts() -> None:
    store = store_of(1)
    data = content(1, 100)
    digest = store.put(KEY, data)
    store.put(KEY, data)
    store.acquire(digest)
    store.release(digest)
    store.release(digest)
    with pytest.raises(NoSpace):
        store.put(KEY, content(2, 100))
    store.release(digest)
    with pytest.raises(ValueError, match="released but not acquired"):
        store.release(digest)
    store.put(KEY, content(2, 100))


def test_after_reopening_all_content_is_there_and_idle_and_the_oldest_goes_first() -> None:
    medium = medium_of(3)
    store = store_of(3, medium)
    digests = [store.put(KEY, content(seed, 100 + seed)) for seed in range(3)]
    again = store_of(3, medium.reopened())
    assert set(again.digests()) == set(digests)
    assert again.statistics().referenced == 0
    again.put(KEY, content(9, 100))
    assert set(digests) - set(again.digests()) == {digests[0]}
    assert [read(again, d) for d in digests[1:]] == [bytes(content(s, 100 + s)) for s in (1, 2)]


def test_corrupt_content_is_found_quarantined_for_good_and_repaired_by_a_put() -> None:
    medium = medium_of(2)
    store = store_of(2, medium)
    data = content(1, 5000)
    digest = store.put(KEY, data)
    spoil(medium, data)
    with pytest.raises(CorruptExtent, match="does not match its digest"):
        read(store, digest)
    for asked in (store, store_of(2, medium.reopened())):
        with pytest.raises(CorruptExtent):
            asked.acquire(digest)
        with pytest.raises(CorruptExtent):
            read(asked, digest)
        assert digest not in asked.digests()
        assert asked.statistics().unsound == 1
    assert store.put(KEY, data) == digest
    assert read(store, digest) == bytes(data)
    after = store.statistics()
    assert (after.corruptions, after.repaired, after.unsound, after.stored) == (1, 1, 0, 1)
    assert read(store_of(2, medium.reopened()), digest) == bytes(data)
    store.release(digest)  # the reference from before the corruption
    store.release(digest)


def test_quarantined_content_that_reads_right_again_is_still_not_used() -> None:
    medium = medium_of(1)
    store = store_of(1, medium)
    data = content(1, 5000)
    digest = store.put(KEY, data)
    spoil(medium, data)
    with pytest.raises(CorruptExtent):
        read(store, digest)
    place = medium.content.index(bytes(data[:32]))
    medium.content[place : place + data.nbytes] = data
    for asked in (store, store_of(1, medium.reopened())):
        with pytest.raises(CorruptExtent):
            read(asked, digest)


def test_a_quarantined_slot_is_read_back_when_rewritten_and_retired_if_it_fails_again() -> None:
    memory = medium_of(2)
    data = content(1, 5000)

    def stuck_bit(operation: str, _offset: int) -> None:
        if operation == "read" and bytes(data[:64]) in memory.content[: 2 * EXTENT_BYTES]:
            spoil(memory, data)

    store = store_of(2, WatchedMedium(memory, stuck_bit))
    digest = store.put(KEY, data)
    with pytest.raises(CorruptExtent):
        read(store, digest)
    store.put(KEY, data)  # into its old slot, which fails, then into the other one
    after = store.statistics()
    assert (after.retired, after.stored, after.free) == (1, 1, 0)
    again = store_of(2, memory.reopened())
    assert again.statistics().retired == 1
    assert read(again, digest) == bytes(data)
    again.put(KEY, content(2, 100))
    assert again.statistics().evicted == 1  # the retired slot is not used for it


def test_memory_that_somebody_else_writes_to_is_not_held_against_the_medium() -> None:
    memory = medium_of(1)
    target = scratch(EXTENT_BYTES)

    class Disturbing(FailingMedium):
        def read_into(self, offset: int, target: memoryview) -> None:
            super().read_into(offset, target)
            if target.obj is shared.obj:
                target[17] ^= 1

    shared = target
    store = store_of(1, Disturbing(memory))
    digest = store.put(KEY, content(1, 5000))
    with pytest.raises(MemoryChanged, match="no other process may write there"):
        store.read_into(digest, KEY, target)
    assert read(store, digest) == bytes(content(1, 5000))
    assert store.statistics().corruptions == 0


def test_content_that_cannot_be_read_is_written_again_by_a_put_and_forgiven_by_a_read() -> None:
    medium = FailingMedium(medium_of(2))
    store = store_of(2, medium)
    data = content(1, 5000)
    digest = store.put(KEY, data)
    medium.fails = lambda operation, _offset: operation == "read"
    with pytest.raises(MediumFailure, match="input/output error"):
        read(store, digest)
    medium.fails = lambda _operation, _offset: False
    assert read(store, digest) == bytes(data)
    assert store.statistics().unsound == 0
    medium.fails = lambda operation, _offset: operation == "read"
    with pytest.raises(MediumFailure):
        read(store, digest)
    medium.fails = lambda _operation, _offset: False
    store.put(KEY, data)
    assert store.statistics().repaired == 1
    assert read(store, digest) == bytes(data)


@pytest.mark.parametrize("operation", ["write", "flush"])
@pytest.mark.parametrize("step", range(3))
def test_a_put_that_fails_at_any_step_loses_nothing_and_can_be_repeated(
    operation: str, step: int
) -> None:
    memory = medium_of(2)
    medium = FailingMedium(memory)
    store = store_of(2, medium)
    kept = store.put(KEY, content(1, 5000))
    store.release(store.put(KEY, content(2, 5000)))  # its slot is used again: three steps a put
    calls = iter(range(100))

    medium.fails = lambda name, _offset: name == operation and next(calls) == step
    with pytest.raises(MediumFailure, match=f"cannot {operation}"):
        store.put(KEY, content(3, 5000))
    state = store.statistics()
    assert (state.free, state.stored, state.writing, state.failures) == (1, 1, 0, 1)
    for survivor in (store, store_of(2, memory.reopened())):
        assert read(survivor, kept) == bytes(content(1, 5000))
    digest = store.put(KEY, content(3, 5000))
    for survivor in (store, store_of(2, memory.reopened())):
        assert read(survivor, digest) == bytes(content(3, 5000))
        assert read(survivor, kept) == bytes(content(1, 5000))


def test_a_record_that_failed_to_be_flushed_never_claims_the_next_content() -> None:
    memory = medium_of(1)
    medium = FailingMedium(memory)
    store = store_of(1, medium)
    first, second = content(1, EXTENT_BYTES), content(2, EXTENT_BYTES)
    flushes = iter(range(100))
    medium.fails = lambda operation, _offset: operation == "flush" and next(flushes) == 1
    with pytest.raises(MediumFailure):
        store.put(KEY, first)  # the record is on the medium, for all we know
    writes = iter(range(100))
    medium.fails = lambda operation, _offset: operation == "flush" and next(writes) == 1
    with pytest.raises(MediumFailure):
        store.put(KEY, second)  # its content is on the medium, its record is not
    again = store_of(1, memory.reopened())
    assert again.digests() == []
    assert again.statistics().free == 1


def test_two_records_of_one_content_count_as_the_younger() -> None:
    medium = medium_of(3)
    store = store_of(3, medium)
    data = content(1, 5000)
    store.put(KEY, data)
    # A hostile or confused writer: the same content recorded in a second slot.
    volume = store._volume
    volume.write_content(2, data)
    record = Record(SlotState.STORED, 0, 5000, digest_of(KEY, data), domain_tag(KEY))
    volume.write_record(2, record)
    again = store_of(3, medium.reopened())
    state = again.statistics()
    assert (state.stored, state.free) == (1, 2)
    assert read(again, digest_of(KEY, data)) == bytes(data)


class Gate:
    """Once armed, stops a medium at one kind of operation until the test lets it go on."""

    def __init__(self, stops_at: str) -> None:
        self._stops_at = stops_at
        self.count = 0
        self.armed, self.reached, self.open = (threading.Event() for _ in range(3))

    def __call__(self, operation: str, _offset: int) -> None:
        if operation == self._stops_at and self.armed.is_set():
            self.count += 1
            self.reached.set()
            assert self.open.wait(PATIENCE_S)


def test_an_extent_being_read_is_not_evicted() -> None:
    gate = Gate("read")
    store = store_of(1, WatchedMedium(medium_of(1), gate))
    digest = store.put(KEY, content(1, 5000))
    store.release(digest)
    gate.armed.set()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read(store, digest)))
    reader.start()
    assert gate.reached.wait(PATIENCE_S)
    with pytest.raises(NoSpace):
        store.put(KEY, content(2, 5000))
    gate.open.set()
    reader.join()
    assert got == [bytes(content(1, 5000))]
    store.put(KEY, content(2, 5000))


def test_puts_of_the_same_content_at_once_write_it_once() -> None:
    gate = Gate("write")
    store = store_of(4, WatchedMedium(medium_of(4), gate))
    data = content(1, 5000)
    gate.armed.set()
    threads = [threading.Thread(target=store.put, args=(KEY, data)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert gate.reached.wait(PATIENCE_S)
    gate.open.set()
    for thread in threads:
        thread.join()
    state = store.statistics()
    assert gate.count == 2  # the content and its record
    assert (state.puts, state.deduplicated, state.stored) == (1, 3, 1)
    for _ in threads:
        store.release(digest_of(KEY, data))


def test_a_repair_waits_until_nobody_reads_the_bad_slot() -> None:
    memory = medium_of(1)
    gate = Gate("read")
    failing = FailingMedium(WatchedMedium(memory, gate))
    store = store_of(1, failing)
    data = content(1, 5000)
    digest = store.put(KEY, data)
    failing.fails = lambda operation, _offset: operation == "read"
    with pytest.raises(MediumFailure):
        read(store, digest)
    failing.fails = lambda _operation, _offset: False
    gate.armed.set()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read(store, digest)))
    reader.start()
    assert gate.reached.wait(PATIENCE_S)
    repairer = threading.Thread(target=store.put, args=(KEY, data))
    repairer.start()
    repairer.join(0.2)
    assert repairer.is_alive()
    gate.open.set()
    for thread in (reader, repairer):
        thread.join()
    # The read succeeded, so that there was nothing left to repair.
    assert got == [bytes(data)]
    assert (store.statistics().deduplicated, store.statistics().repaired) == (1, 0)


def test_readers_of_the_same_corrupt_content_all_learn_it_and_it_is_counted_once() -> None:
    medium = medium_of(1)
    store = store_of(1, medium)
    data = content(1, 5000)
    digest = store.put(KEY, data)
    spoil(medium, data)
    outcomes: list[type[BaseException]] = []

    def attempt() -> None:
        try:
            read(store, digest)
        except CorruptExtent as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [CorruptExtent] * 4
    assert store.statistics().corruptions == 1
