"""Two tasks streamed from a real /dev/dax0.0 by the real agent, in one boot of a guest."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.devdax import guest
from tests.devdax.backing import make_backing
from tests.devdax.initramfs import REPOSITORY
from tests.faults.store_folders import store_folder

from tierline_client.library import library_path


def metadata() -> Path:
    """What the installed distribution says of itself: the agent tells its version."""
    files = distribution("tierline").files or ()
    (found,) = (file for file in files if file.name == "METADATA")
    return Path(str(found.locate()))


FILES = {
    "job/main.py": REPOSITORY / "tests/devdax/inside/agent_streams.py",
    "job/tests/integration/agent": REPOSITORY / "tests/integration/agent",
    "job/tests/nursery.py": REPOSITORY / "tests/nursery.py",
    "tierline/tierline_agent": REPOSITORY / "nodeagent/tierline_agent",
    "tierline/tierline_client": REPOSITORY / "nodeagent/tierline_client",
    "tierline/tierline_api": REPOSITORY / "crds/tierline_api",
    "tierline/tierline_kube": REPOSITORY / "crds/tierline_kube",
    "tierline/libtierline.so": library_path(),
    f"tierline/{metadata().parent.name}/METADATA": metadata(),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_tasks_stream_from_devdax_what_they_stored_there() -> None:
    with store_folder("disk") as folder:
        backing = folder / "nvdimm"
        make_backing(backing, 64 << 20)
        report = guest.boot(backing, FILES, {})
    assert report.status == 0, str(report)
    assert report.values("passed") == ["two tasks streamed from devdax"], str(report)
