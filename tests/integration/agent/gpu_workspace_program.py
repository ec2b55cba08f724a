"""A process that keeps a workspace on a GPU and does what it is told, one line for one.

write MARK     one job that fills the workspace with it -> "written"
read           one job                                  -> the marks of all extents, each once
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from cuda.bindings import driver
from tests.integration.agent.gpu_client import POSIX_FD, READ_WRITE, GpuClient, ok, start_cuda

from tierline_agent.transport import protocol as p


class Program:
    """The task."""

    def __init__(self, socket_path: Path, extents: int) -> None:
        start_cuda()
        self.client = GpuClient(socket_path)
        self.extent_bytes = self.client.hello().extent_bytes
        self.extents = extents
        self.size = extents * self.extent_bytes
        asked = p.Workspace(self.size, p.WorkspaceFlags.PRESERVE)
        lent = self.client.ask(asked, p.WorkspaceLent)
        descriptors = self.client.expect_descriptors(p.DescriptorKind.WORKSPACE, lent.extent_count)
        self.client.expect_descriptors(p.DescriptorKind.BACKUP, 1)
        self.base = int(ok(driver.cuMemAddressReserve(self.size, 0, 0, 0)))
        for number, descriptor in enumerate(descriptors):
            handle = ok(driver.cuMemImportFromShareableHandle(descriptor, POSIX_FD))
            at = self.base + number * self.extent_bytes
            ok(driver.cuMemMap(at, self.extent_bytes, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = READ_WRITE
        ok(driver.cuMemSetAccess(self.base, self.size, [access], 1))

    def obey(self, command: str) -> str:
        verb, _, argument = command.partition(" ")
        job = self.client.begin(p.NO_ARENA)
        if verb == "write":
            ok(driver.cuMemsetD8(self.base, int(argument), self.size))
            ok(driver.cuCtxSynchronize())
            answer = "written"
        else:
            host = ctypes.create_string_buffer(self.size)
            ok(driver.cuMemcpyDtoH(host, self.base, self.size))
            answer = " ".join(str(byte) for byte in sorted(set(host.raw)))
        ended = p.JobEnd(job, time.monotonic_ns(), self.size, 0, 0)
        self.client.ask(ended, p.Ended)
        return answer


def main() -> None:
    program = Program(Path(sys.argv[1]), int(sys.argv[3]))
    print("sealed", flush=True)
    for line in sys.stdin:
        print(program.obey(line.strip()), flush=True)
    program.client.close()


if __name__ == "__main__":
    main()
