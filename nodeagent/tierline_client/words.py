"""Flag words: shared counters of 32 bits, waited on by futex. No client is needed.

An address must stay mapped and be a multiple of 4 during a call.
"""

from __future__ import annotations

from tierline_client.library import load

_SLICE_S = 0.1


def wait(address: int, at_least: int, timeout_s: float) -> bool:
    """Wait until the word is `at_least` or more; False if `timeout_s` passed before.

    The interpreter lock is released, and signals are handled between slices of 0.1 s.
    """
    word_wait = load().tierline_word_wait
    left_s = max(timeout_s, 0.0)
    while True:
        slice_s = min(left_s, _SLICE_S)
        if word_wait(address, at_least, int(slice_s * 1e9)) == 0:
            return True
        left_s -= slice_s
        if left_s <= 0:
            return False


def publish(address: int, value: int) -> None:
    """Store the word (release order) and wake all that wait for it."""
    load().tierline_word_publish(address, value)
