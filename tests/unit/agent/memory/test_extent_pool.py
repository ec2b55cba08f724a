from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tierline_agent.devices.base import Identity
from tierline_agent.devices.cpu import CpuDevice
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.errors import DescriptorRefused, QuotaExceeded
from tierline_agent.memory.extents import ExtentPool, Pooled, Share, State
from tierline_agent.memory.lent import Owner
from tierline_agent.processes.identity import Process

EXTENT_BYTES = 64 << 10
LIMIT = 6
ALICE, BOB = Process(1, 1), Process(2, 2)
MOST = 4
SHARES = {domain: Share(f"task-{domain}", domain, MOST) for domain in "ab"}


def pool_of(extents: int = LIMIT) -> tuple[CpuDevice, ExtentPool]:
    device = CpuDevice(EXTENT_BYTES, extents * EXTENT_BYTES)
    return device, ExtentPool(device)


def fill(device: CpuDevice, pooled: Pooled, byte: bytes) -> None:
    def read(target: memoryview) -> int:
        target[:] = byte * len(target)
        return len(target)

    device.fill(pooled.extent, read)


def bytes_of(device: CpuDevice, pooled: Pooled) -> bytes:
    found = b""

    def read(target: memoryview) -> int:
        nonlocal found
        found = bytes(target)
        return 0

    device.fill(pooled.extent, read)
    return found


class PoolMachine(RuleBasedStateMachine):
    """Any order of taking, freeing and dying: no bytes cross domains, the limit holds."""

    def __init__(self) -> None:
        super().__init__()
        self.device, self.pool = pool_of()
        self.held: list[tuple[Pooled, str, Process]] = []

    @rule(
        domain=st.sampled_from("ab"),
        count=st.integers(1, 3),
        process=st.sampled_from([ALICE, BOB]),
    )
    def take(self, domain: str, count: int, process: Process) -> None:
        if sum(held[1] == domain for held in self.held) + count > MOST:
            return  # a session does not ask for more than its plan has
        try:
            taken = self.pool.take_resident(SHARES[domain], count, process)
        except QuotaExceeded:
            return
        for pooled in taken:
            assert pooled.importers == {process}
            assert set(bytes_of(self.device, pooled)) <= {0, ord(domain)}
            fill(self.device, pooled, domain.encode())
            self.held.append((pooled, domain, process))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), acknowledged=st.booleans())
    def free(self, which: int, acknowledged: bool) -> None:
        pooled, _, process = self.held.pop(which % len(self.held))
        if acknowledged:
            self.pool.unmapped([pooled], process)
        self.pool.give_up([pooled])
        assert pooled.state is (State.FREE if acknowledged else State.DRAINING)

    @rule(process=st.sampled_from([ALICE, BOB]))
    def die(self, process: Process) -> None:
        lost = [held for held in self.held if held[2] == process]
        self.held = [held for held in self.held if held[2] != process]
        self.pool.give_up(pooled for pooled, _, _ in lost)
        self.pool.died(process)

    @invariant()
    def within_the_limit(self) -> None:
        assert self.pool.bytes_held <= LIMIT * EXTENT_BYTES
        assert self.pool.count_by_state()[State.RESIDENT] == len(self.held)
        for share in SHARES.values():
            extents = self.pool._extents.values()
            kept = [one for one in extents if one.domain == share.domain and one.importers]
            assert len(kept) <= share.most

    def teardown(self) -> None:
        self.pool.close()


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_pool = pytest.mark.slow(PoolMachine.TestCase)


def test_a_ring_is_shared_inside_its_domain_and_grows() -> None:
    _, pool = pool_of()
    first = pool.ring("a", 2, ALICE)
    second = pool.ring("a", 3, BOB)
    assert second[:2] == first
    assert pool.count_by_state()[State.RING] == 3
    pool.shrink_ring("a", 1)
    assert pool.count_by_state() == {
        State.FREE: 0,
        State.RESIDENT: 0,
        State.RING: 1,
        State.WORKSPACE: 0,
        State.DRAINING: 2,
    }
    pool.died(ALICE)
    pool.died(BOB)
    assert pool.count_by_state()[State.FREE] == 2
    pool.close()


def test_the_workspace_is_kept_free() -> None:
    _, pool = pool_of(4)
    pool.reserve(EXTENT_BYTES + 1)
    with pytest.raises(QuotaExceeded, match="1 more"):
        pool.take_resident(SHARES["a"], 3, ALICE)
    assert len(pool.take_resident(SHARES["a"], 2, ALICE)) == 2
    pool.close()


def test_what_programs_keep_apart_is_lent_to_nobody() -> None:
    _, pool = pool_of(4)
    pool.reserve(EXTENT_BYTES, EXTENT_BYTES)
    with pytest.raises(QuotaExceeded, match="1 more"):
        pool.take_resident(SHARES["a"], 3, ALICE)
    assert len(pool.take_resident(SHARES["a"], 2, ALICE)) == 2
    assert len(pool.workspace("a", 1, ALICE)) == 1
    with pytest.raises(QuotaExceeded, match="1 more"):
        pool.workspace("a", 2, ALICE)
    pool.close()


def test_a_workspace_in_extents_is_what_was_kept_free() -> None:
    _, pool = pool_of(4)
    pool.reserve(2 * EXTENT_BYTES)
    first = pool.workspace("a", 1, ALICE)
    assert pool.workspace("a", 2, BOB)[:1] == first
    assert len(pool.take_resident(SHARES["a"], 2, ALICE)) == 2
    with pytest.raises(QuotaExceeded, match="1 more"):
        pool.workspace("a", 3, ALICE)
    pool.shrink_workspace("a", 0)
    pool.died(ALICE)
    assert pool.count_by_state()[State.WORKSPACE] == 2  # BOB may have them mapped
    assert pool.workspace("a", 2, ALICE)[:1] == first
    pool.shrink_workspace("a", 0)
    pool.died(ALICE)
    pool.died(BOB)
    assert pool.count_by_state()[State.FREE] == 2
    pool.close()


def test_a_task_goes_without_what_its_own_processes_left_mapped() -> None:
    _, pool = pool_of(2 * MOST)
    left = pool.take_resident(SHARES["a"], 3, ALICE)
    pool.give_up(left)
    assert pool.take_resident(SHARES["a"], 3, ALICE) == left  # what it has mapped it may have
    pool.give_up(left)
    with pytest.raises(QuotaExceeded, match=r"3 are still mapped by processes .*; end process 1"):
        pool.take_resident(SHARES["a"], 2, BOB)
    assert len(pool.take_resident(SHARES["a"], 1, BOB)) == 1
    assert len(pool.take_resident(SHARES["b"], MOST, BOB)) == MOST
    pool.died(ALICE)
    assert len(pool.take_resident(SHARES["a"], 2, BOB)) == 2
    pool.close()


def test_a_task_takes_back_no_more_than_it_has_left_over() -> None:
    device, earlier = pool_of()
    offered = [
        device.export_extent(one.extent) for one in earlier.take_resident(SHARES["a"], 3, BOB)
    ]
    lent = earlier.owners()
    earlier.close()
    _, pool = pool_of()
    pool.expect(lent)
    pool.give_up(pool.take_resident(SHARES["a"], 2, ALICE))
    for descriptor in offered[:2]:
        pool.adopt_resident(SHARES["a"], descriptor, BOB)
    with pytest.raises(QuotaExceeded, match="end process 1"):
        pool.adopt_resident(SHARES["a"], offered[2], BOB)
    assert pool.bytes_held == MOST * EXTENT_BYTES
    for descriptor in offered:
        os.close(descriptor)
    pool.close()


def test_extents_come_back_by_identity_and_only_into_their_domain() -> None:
    device, earlier = pool_of()
    pooled = earlier.take_resident(SHARES["a"], 1, ALICE)[0]
    fill(device, pooled, b"x")
    descriptor = device.export_extent(pooled.extent)
    lent = earlier.owners()
    earlier.close()  # the agent dies; the client keeps the memory by its descriptor

    _, pool = pool_of()
    pool.expect(lent)
    with pytest.raises(DescriptorRefused, match="did not lend"):
        pool.adopt_resident(SHARES["b"], descriptor, ALICE)
    again = pool.adopt_resident(SHARES["a"], descriptor, ALICE)
    assert bytes_of(device, again) == b"x" * EXTENT_BYTES
    with pytest.raises(DescriptorRefused, match="in use"):
        pool.adopt_resident(SHARES["a"], descriptor, ALICE)
    os.close(descriptor)
    pool.close()


def test_what_was_not_brought_back_yet_stays_known_when_others_are_lent_memory() -> None:
    descriptors = writable_extents(1)
    _, pool = pool_of()
    pool.expect({identity_of(descriptors[0]): Owner("a", "")})
    pool.ring("b", 1, BOB)
    assert pool.owners()[identity_of(descriptors[0])] == Owner("a", "")
    pool.expect_no_more()
    assert identity_of(descriptors[0]) not in pool.owners()
    os.close(descriptors[0])
    pool.close()


def writable_extents(count: int) -> list[int]:
    """Extents as agents lent them that sealed nothing."""
    found = []
    for _ in range(count):
        memory = SharedMemory.create("test", EXTENT_BYTES)
        found.append(memory.export(writable=True))
        memory.close()
    return found


def identity_of(descriptor: int) -> Identity:
    about = os.fstat(descriptor)
    return Identity(about.st_dev, about.st_ino)


def test_ring_slots_come_back_in_order_and_are_the_same_for_all() -> None:
    descriptors = writable_extents(2)
    _, pool = pool_of()
    pool.expect({identity_of(one): Owner("a", "") for one in descriptors})
    with pytest.raises(DescriptorRefused, match="not the next"):
        pool.adopt_ring("a", 1, descriptors[1], ALICE)
    first, second = [
        [pool.adopt_ring("a", slot, fd, who) for slot, fd in enumerate(descriptors)]
        for who in (ALICE, BOB)
    ]
    assert first == second
    with pytest.raises(DescriptorRefused, match="another one"):
        pool.adopt_ring("a", 0, descriptors[1], BOB)
    for descriptor in descriptors:
        os.close(descriptor)
    pool.close()


def test_what_clients_could_write_is_never_lent_as_resident_extents() -> None:
    """It is destroyed where there is no room for other memory."""
    device, pool = pool_of(2)
    lent = pool.workspace("a", 2, ALICE)
    for one in lent:
        os.close(device.export_extent(one.extent, writable=True))
    pool.shrink_workspace("a", 0)
    pool.died(ALICE)
    residents = pool.take_resident(SHARES["a"], 2, BOB)
    assert not {one.key for one in residents} & {one.key for one in lent}
    pool.close()


def test_what_is_away_counts_in_its_own_plan_until_it_is_back_or_dead() -> None:
    """After a restart: a task that leaves memory mapped goes without, and nobody else."""
    device, earlier = pool_of()
    residents = earlier.take_resident(SHARES["a"], 2, BOB)
    (slot,) = earlier.ring("a", 1, BOB)
    idle = earlier.take_resident(SHARES["b"], 1, ALICE)
    descriptor = device.export_extent(residents[0].extent)
    earlier.give_up(idle)
    earlier.died(ALICE)
    lent = earlier.owners()
    earlier.close()
    _, pool = pool_of()
    limit = pool.limit
    pool.expect(lent)
    assert (pool.limit, pool.bytes_held) == (limit, 0), "all are waited for"
    pool.away(("task-a",), ("a",))
    assert (pool.limit, pool.bytes_held) == (limit - 3, 3 * EXTENT_BYTES)
    assert pool.count_by_state()[State.DRAINING] == 3
    with pytest.raises(QuotaExceeded, match="have not come back since the agent started again"):
        pool.take_resident(SHARES["a"], SHARES["a"].most - 1, ALICE)
    pool.take_resident(SHARES["b"], 1, ALICE)
    back = pool.adopt_resident(SHARES["a"], descriptor, BOB)
    assert pool.count_by_state()[State.DRAINING] == 2
    assert back.task == "task-a"
    pool.away((), ())
    assert (pool.limit, pool.count_by_state()[State.DRAINING]) == (limit, 0)
    pool.expect_no_more()
    assert slot.extent.identity not in pool.owners()
    os.close(descriptor)
    pool.close()


def test_what_was_brought_back_is_lent_to_nobody_else() -> None:
    device, earlier = pool_of()
    (resident,) = earlier.take_resident(SHARES["a"], 1, ALICE)
    descriptor = device.export_extent(resident.extent, sealed=True)
    lent = earlier.owners()
    earlier.close()
    _, pool = pool_of()
    pool.expect(lent)
    with pytest.raises(DescriptorRefused, match="nobody can write"):
        pool.adopt_ring("a", 0, descriptor, ALICE)
    back = pool.adopt_resident(SHARES["a"], descriptor, ALICE)
    pool.give_up([back])
    pool.died(ALICE)
    assert pool.ring("a", 1, BOB) != [back]
    os.close(descriptor)
    pool.close()
