from __future__ import annotations

import os

from tierline_agent.devices.cuda.same_file import OpenFiles, compare


def test_a_duplicate_is_the_same_open_file_and_a_second_opening_is_not() -> None:
    first, second = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    copy = os.dup(first)
    assert compare(first, copy) == 0
    assert compare(first, second) == -compare(second, copy) != 0
    for descriptor in (first, second, copy):
        os.close(descriptor)


def test_values_are_found_by_any_descriptor_of_their_file() -> None:
    files: OpenFiles[int] = OpenFiles()
    originals = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
    copies = [os.dup(descriptor) for descriptor in originals]
    for number, descriptor in enumerate(originals):
        assert files.find(descriptor) is None
        files.add(descriptor, number)
    assert [files.find(descriptor) for descriptor in copies] == list(range(40))
    files.remove(originals[7])
    assert files.find(copies[7]) is None
    assert files.find(copies[8]) == 8
    for descriptor in originals + copies:
        os.close(descriptor)
