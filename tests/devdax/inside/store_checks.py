"""Runs in the guest: what can be seen of the tier and its store on a real /dev/dax0.0.

Arguments: `first` (check the device and its traps too), `caches_persist` (what the machine says),
`expected` (numbers of the extents that must be there), `corrupt` (those of them that must be found
corrupt, and are repaired), `lost` (those that must not be there), `next` and `puts` (number of the
next extent, how many to put), `then` (what to do at last: "end", "go on" putting until killed, or
in which of the medium's operations to halt in a put that takes a slot of a full store).
Each check that passes is reported; the first that fails ends the program with its traceback.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_writer import KEY, DyingMedium, extent

from tierline_agent.tiers import (
    Store,
    TierError,
    digest_of,
    open_medium,
)
from tierline_agent.tiers.media import Kind
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.resizing import Fitted, fit
from tierline_agent.tiers.volume import Volume

DEVICE = "/dev/dax0.0"
ALL: tuple[tuple[Kind, str], ...] = (("pmem", DEVICE), ("nvme", "/dev/vda"))
EXTENT_BYTES = 64 << 10
STORE_BYTES = 4 << 20


def say(**what: object) -> None:
    """Tell the host; returns when it is told, so that no deed overtakes the word before it."""
    print(json.dumps(what), flush=True)
    termios.tcdrain(sys.stdout.fileno())


def refused(call: Callable[[], object], reason: str) -> None:
    """The call must fail, and say why."""
    try:
        call()
    except (OSError, ValueError, TierError) as error:
        if reason not in str(error):
            raise
    else:
        raise AssertionError(f"nobody said {reason!r}")


def the_device_is_what_the_design_says() -> None:
    """Facts that the tier is built on; if a kernel changes one, this is where it shows."""
    fd = os.open(DEVICE, os.O_RDWR)
    align = int(Path("/sys/bus/dax/devices/dax0.0/align").read_text())
    assert os.fstat(fd).st_size == 0
    assert align == 2 << 20
    refused(lambda: os.read(fd, 4096), "Invalid argument")
    refused(lambda: os.write(fd, bytes(4096)), "Invalid argument")
    refused(lambda: os.fsync(fd), "Invalid argument")
    refused(lambda: mmap.mmap(fd, align, mmap.MAP_PRIVATE), "Invalid argument")
    refused(lambda: mmap.mmap(fd, align - 4096, mmap.MAP_SHARED), "Invalid argument")
    refused(lambda: mmap.mmap(fd, align, mmap.MAP_SHARED, offset=4096), "Invalid argument")
    mapped = mmap.mmap(fd, align, mmap.MAP_SHARED)
    refused(mapped.flush, "Invalid argument")
    mapped.close()
    os.close(fd)


def touching_beyond_the_end_kills() -> None:
    size_bytes = int(Path("/sys/bus/dax/devices/dax0.0/size").read_text())
    child = os.fork()
    if child == 0:
        fd = os.open(DEVICE, os.O_RDWR)
        mapped = mmap.mmap(fd, size_bytes + (2 << 20), mmap.MAP_SHARED)
        mapped[size_bytes]
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGBUS, status


def the_tier_never_maps_beyond_the_end() -> None:
    size_bytes = int(Path("/sys/bus/dax/devices/dax0.0/size").read_text())
    refused(lambda: open_medium("pmem", DEVICE, size_bytes + 1), f"it has {size_bytes}")
    medium = open_medium("pmem", DEVICE)
    assert medium.size_bytes == size_bytes
    medium.read_into(size_bytes - 4096, scratch(4096))
    refused(lambda: medium.read_into(size_bytes - 4096, scratch(8192)), "outside")
    medium.close()


def sizes_are_rounded_to_the_alignment() -> None:
    refused(lambda: open_medium("pmem", DEVICE, 4096), "mapped in units of 2097152 bytes")
    medium = open_medium("pmem", DEVICE, (4 << 20) + 5)
    assert medium.size_bytes == 4 << 20
    medium.close()


def one_agent_at_a_time() -> None:
    medium = open_medium("pmem", DEVICE)
    refused(lambda: open_medium("pmem", DEVICE), "another process has it")
    medium.close()


def the_mode_is_honest(caches_persist: bool) -> None:
    medium = open_medium("pmem", DEVICE)
    if caches_persist:
        assert medium.mode == "mapped devdax, persistent memory, caches persistent (eADR)", (
            medium.mode
        )
        assert medium.durability == "a loss of power"
    else:
        assert medium.mode == "mapped devdax, persistent memory, cache lines not flushed", (
            medium.mode
        )
        assert "digests find them" in medium.durability
    medium.close()
    persisted: list[tuple[int, int]] = []
    medium = open_medium(
        "pmem", DEVICE, persist=lambda address, size: persisted.append((address, size))
    )
    assert medium.mode == "mapped devdax, persistent memory, cache lines flushed"
    medium.flush(4096, 8192)
    medium.flush(0, 4096)
    (second, size), (first, _) = persisted
    assert (second - first, size) == (4096, 8192)
    medium.close()


def a_raw_drive_is_an_nvme_tier() -> None:
    store = Store.open(open_medium("nvme", "/dev/vda"), EXTENT_BYTES)
    assert store.medium.mode == "O_DIRECT"
    data = extent(1, EXTENT_BYTES)
    target = scratch(EXTENT_BYTES)
    digest = store.put(KEY, data)
    store.close()
    store = Store.open(open_medium("nvme", "/dev/vda"), EXTENT_BYTES)
    assert target[: store.read_into(digest, KEY, target)] == data
    store.close()
    refused(lambda: open_medium("nvme", "/dev/vda", 1 << 40), "configure a smaller size")


def a_drive_reads_straight_into_persistent_memory() -> None:
    """Its pages can be the target of another tier's direct reads: no bounce between tiers."""
    device, drive = os.open(DEVICE, os.O_RDWR), os.open("/dev/vda", os.O_RDWR | os.O_DIRECT)
    mapped = mmap.mmap(device, 2 << 20, mmap.MAP_SHARED, offset=2 * STORE_BYTES)
    read = scratch(4096)
    assert os.preadv(drive, [read], 0) == 4096
    assert os.preadv(drive, [memoryview(mapped)[4096:8192]], 0) == 4096
    assert mapped[4096:8192] == read
    os.close(drive)
    os.close(device)


def a_device_takes_another_size_once_nobody_needs_what_it_holds() -> None:
    """There is no place on it for a second store, from which the first could be filled."""
    for kind, path in ALL:
        sizes = functools.partial(fit, kind, Path(path), extent_bytes=EXTENT_BYTES)
        Volume.make(open_medium(kind, path, 2 * STORE_BYTES), EXTENT_BYTES).close()
        store = Store.open(open_medium(kind, path, 2 * STORE_BYTES), EXTENT_BYTES)
        digest, slots = store.put(KEY, extent(1, EXTENT_BYTES)), store.statistics().slots
        store.close()
        here = f"the {kind} tier {path} keeps its {2 * STORE_BYTES} bytes instead of {STORE_BYTES}:"
        for planned, needed, why in (
            (0, None, "programs that run may need 1 extents of it, and a device has no room for a"),
            (0, {digest}, "programs that run may need 1 extents of it, and a device has no room"),
            (slots, (), f"tasks of this node may need {slots} extents of it, and"),
        ):
            fitted = sizes(size_bytes=STORE_BYTES, planned_extents=planned, needed=needed)
            assert fitted.size_bytes == 2 * STORE_BYTES
            assert fitted.objection.startswith(f"{here} {why}"), fitted.objection
            assert fitted.objection.endswith("; end tasks, then restart the agent")
            same = sizes(size_bytes=2 * STORE_BYTES, planned_extents=planned, needed=needed)
            assert same == Fitted(2 * STORE_BYTES)
        store = Store.open(open_medium(kind, path, 2 * STORE_BYTES), EXTENT_BYTES)
        store.acquire(digest, KEY)
        store.close()

        fitted = sizes(size_bytes=STORE_BYTES, planned_extents=0, needed=())
        assert (fitted.size_bytes, fitted.objection) == (STORE_BYTES, "")
        assert "1 of the 1 extents that it held are gone" in fitted.left
        store = Store.open(open_medium(kind, path, STORE_BYTES), EXTENT_BYTES)
        assert (store.statistics().slots < slots, list(store.digests())) == (True, [])
        store.close()
        larger = sizes(size_bytes=2 * STORE_BYTES, planned_extents=slots, needed=None)
        assert larger == Fitted(2 * STORE_BYTES), larger
        assert sizes(size_bytes=STORE_BYTES, planned_extents=0, needed=()) == Fitted(STORE_BYTES)
        refused(
            lambda: sizes(size_bytes=1 << 40, planned_extents=0, needed=()),  # noqa: B023 - at once
            "configure a smaller size",
        )


def everything_expected_is_there(store: Store, expected: list[int], corrupt: list[int]) -> None:
    state = store.statistics()
    assert state.free + state.stored + state.unsound == state.slots, state
    target = scratch(EXTENT_BYTES)
    right = set()
    for number in expected:
        data = extent(number, EXTENT_BYTES)
        digest = digest_of(KEY, data)
        right.add(digest)
        if number in corrupt:
            _must_be_repaired(store, digest, data)
        store.acquire(digest, KEY)
        length = store.read_into(digest, KEY, target)
        assert target[:length] == data, number
    for digest in set(store.digests()) - right:
        length = store.read_into(digest, KEY, target)
        assert digest_of(KEY, target[:length]) == digest
    assert store.statistics().corruptions == len(corrupt)


def _must_be_repaired(store: Store, digest: bytes, data: memoryview) -> None:
    target = scratch(EXTENT_BYTES)
    for _ in range(2):
        refused(lambda: store.read_into(digest, KEY, target), "does not match its digest")
    store.put(KEY, data)
    store.release(digest)


def what_is_lost_is_unknown(store: Store, lost: list[int]) -> None:
    for number in [*lost, 10**6]:
        digest = digest_of(KEY, extent(number, EXTENT_BYTES))
        refused(functools.partial(store.acquire, digest), "is not in the pmem tier")


def halt() -> None:
    """The host ends this machine here."""
    say(halted=True)
    while True:
        signal.pause()


class Writer:
    """Puts extents as the arguments say, and says what it did."""

    def __init__(self, store: Store, arguments: dict[str, Any]) -> None:
        self._store, self._arguments = store, arguments
        self._number: int = arguments["next"]
        self._held: list[int] = list(arguments["expected"])

    def run(self, medium: DyingMedium) -> None:
        for _ in range(self._arguments["puts"]):
            self._put()
        while self._arguments["then"] == "go on":
            self._make_room()
            self._put()
        if isinstance(self._arguments["then"], int):
            while self._store.statistics().free:
                self._put()
            self._make_room()
            medium.left = self._arguments["then"]
            self._put()

    def _put(self) -> None:
        self._store.put(KEY, extent(self._number, EXTENT_BYTES))
        say(stored=self._number)
        self._held.append(self._number)
        self._number += 1

    def _make_room(self) -> None:
        if not self._store.statistics().free:
            oldest = self._held.pop(0)
            self._store.release(digest_of(KEY, extent(oldest, EXTENT_BYTES)))
            say(released=oldest)


def main() -> None:
    arguments: dict[str, Any] = json.loads(Path("/job/arguments.json").read_text())
    if arguments["first"]:
        checks: list[Callable[[], None]] = [
            the_device_is_what_the_design_says,
            touching_beyond_the_end_kills,
            the_tier_never_maps_beyond_the_end,
            sizes_are_rounded_to_the_alignment,
            one_agent_at_a_time,
            a_raw_drive_is_an_nvme_tier,
            a_drive_reads_straight_into_persistent_memory,
            a_device_takes_another_size_once_nobody_needs_what_it_holds,
        ]
        for check in checks:
            check()
            say(passed=check.__name__)
    the_mode_is_honest(arguments["caches_persist"])
    medium = DyingMedium(open_medium("pmem", DEVICE, STORE_BYTES), 0, halt)
    store = Store.open(medium, EXTENT_BYTES)
    everything_expected_is_there(store, arguments["expected"], arguments["corrupt"])
    what_is_lost_is_unknown(store, arguments["lost"])
    say(slots=store.statistics().slots, passed="everything expected is there")
    Writer(store, arguments).run(medium)
    store.close()


if __name__ == "__main__":
    main()
