from __future__ import annotations

from contextlib import ExitStack

import pytest

from tierline_agent.tiers.memory import PAGE_BYTES, Warm, address_of


@pytest.mark.parametrize("size_bytes", [4096, 4 << 20])
def test_warm_memory_is_lent_to_one_at_a_time_and_kept_within_bounds(size_bytes: int) -> None:
    warm = Warm(size_bytes, 2)
    with ExitStack() as borrowed:
        pieces = [borrowed.enter_context(warm.borrow(size_bytes - 1)) for _ in range(3)]
        addresses = {address_of(piece) for piece in pieces}
        assert len(addresses) == 3
        assert all(address % PAGE_BYTES == 0 for address in addresses)
        for number, piece in enumerate(pieces):
            piece[:] = bytes([number]) * piece.nbytes
        assert [piece[-1] for piece in pieces] == [0, 1, 2]
    assert len(warm._idle) == 2
    with warm.borrow(10) as piece:
        assert piece.nbytes == 10
        assert address_of(piece) in addresses


def test_no_more_is_lent_than_there_is() -> None:
    with pytest.raises(ValueError, match="4097 bytes"), Warm(4096, 1).borrow(4097):
        pass


def test_memory_of_a_borrower_that_failed_is_not_lent_again_and_nobody_waits_for_it() -> None:
    warm = Warm(4096, 1)
    with pytest.raises(OSError, match="no"), warm.borrow(1):
        raise OSError("no")
    with warm.borrow(1) as piece:
        piece[0] = 1
