"""A client that stops to answer in the middle of a job, and lives. One line is said for one read.

ring       loads extents, begins a job and hears no REVOKE            -> "inside"
workspace  borrows one, begins a job and leaves its connection in it -> "left"
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.agent.agent_process import EXTENT_BYTES, content
from tests.integration.agent.raw_client import RawClient

from tierline_agent.transport import protocol as p


def main() -> None:
    client = RawClient(Path(sys.argv[1]))
    client.hello()
    seed, extents = int(sys.argv[2]), int(sys.argv[3])
    if seed:
        client.load(content(seed, extents))
        print("sealed", flush=True)
        sys.stdin.readline()
        client.begin(0)
        print("inside", flush=True)
    else:
        asked = p.Workspace(extents * EXTENT_BYTES, p.WorkspaceFlags(0))
        lent = client.ask(asked, p.WorkspaceLent)
        client.expect_descriptors(p.DescriptorKind.WORKSPACE, lent.extent_count)
        print("sealed", flush=True)
        sys.stdin.readline()
        client.begin(p.NO_ARENA)
        client.close()
        print("left", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
