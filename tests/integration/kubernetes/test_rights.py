"""The table of what each token may do is what the API server says."""

from __future__ import annotations

from tests.integration.kubernetes.rights import TABLE, settled

from tierline_cluster.control_plane import ControlPlane


def test_the_table_of_rights_is_true(opting_in: ControlPlane) -> None:
    assert settled(opting_in) == TABLE.read_text(), (
        "rights have changed: run `PYTHONPATH=cluster python -m "
        "tests.integration.kubernetes.rights`, and see that each is needed"
    )
