"""A load of which the agent cannot time the end, on the simulated driver (test_loads.py runs it).

Invariant under test: the caller of a copy may use its source again, whether the copy failed or not.
"""

import sys
from pathlib import Path

from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import CudaFailed, call, driver
from tierline_agent.devices.cuda.kept import KeptCalls
from tierline_agent.devices.cuda.loads import Loader
from tierline_agent.devices.cuda.pinned import Buffers

SIZE_BYTES = 2 << 20


def main() -> None:
    """The second of a copy's two events is refused, when the copy is under way."""
    call("start", driver.cuInit, 0)
    context = Context(0, KeptCalls())
    context.enter()
    buffers = Buffers(context, 1, SIZE_BYTES)
    loader = Loader(context, buffers.all, lambda: True)
    target = int(call("allocate", driver.cuMemAlloc, SIZE_BYTES))
    Path(sys.argv[1]).write_text("call cuEventRecord 2 OUT_OF_MEMORY\n")
    refused = False
    with loader.buffer() as buffer:
        buffer.view[:] = b"\x5a" * SIZE_BYTES
        try:
            loader.copy(target, buffer.address, SIZE_BYTES)
        except CudaFailed:
            refused = True
    assert refused, "the fault was not injected"
    with loader.buffer() as buffer:
        buffer.view[:] = bytes(SIZE_BYTES)
    call("wait", driver.cuCtxSynchronize)
    found = bytearray(SIZE_BYTES)
    call("look", driver.cuMemcpyDtoH, found, target, SIZE_BYTES)
    assert found == b"\x5a" * SIZE_BYTES, "the copy read what was there for the next one"


if __name__ == "__main__":
    main()
