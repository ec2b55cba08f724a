"""Each mend can be taken out of the agent's source as it is: see `tests.mends`."""

from __future__ import annotations

import pytest
from tests.mends.copies import patched
from tests.mends.mends import MENDS, Mend


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_a_mend_can_be_taken_out(mend: Mend) -> None:
    assert patched(mend)
