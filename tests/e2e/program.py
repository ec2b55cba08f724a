"""A task's program without PyTorch: weights in an arena, jobs that read them through the stream.

It knows of Tierline only what its pod was given: the library, the plugin's folder and the socket
are named by variables. Each job reads every byte and says whether they were the right ones.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from random import Random

EXTENTS = int(os.environ["EXTENTS"])
PERIOD_S = float(os.environ["PERIOD_S"])
DEADLINE_S = float(os.environ.get("DEADLINE_S", PERIOD_S))
COMPUTE = Path(os.environ.get("COMPUTE", os.devnull))
"""Says for how many seconds a job computes before it reads its weights; nothing for none."""


def be_measured(path: str) -> None:
    """Write what a program of PyTorch would have been seen to do, and end when it was planned."""
    if "TIERLINE_SOCKET" in os.environ:  # while others run: each job takes the lease
        from tierline_client import Client  # noqa: PLC0415

        client, now_ns = Client(os.environ["TIERLINE_SOCKET"], "measured"), time.monotonic_ns()
        client.job_end(client.job_begin(None, now_ns, now_ns + 10**9, warmup=True))
        print("measured during jobs of others", flush=True)
    layer = {"bytes": 64 << 10, "compute_s": 0.001, "pinned": False, "arena": 0}
    layers = [{"name": f"layer{number}", **layer} for number in range(EXTENTS)]
    profile = {"layers": layers, "workspace_bytes": 0, "weights_digest": "", "compute_s": [0.01]}
    Path(path).write_text(json.dumps({"profile": profile}) + "\n")
    while not Path(os.environ["TIERLINE_PLANNED"]).exists():
        time.sleep(0.1)
    sys.exit(75)


def main() -> None:
    # Found by PYTHONPATH, which the preloaded library has extended.
    from tierline_client import Client  # noqa: PLC0415

    client = Client(os.environ["TIERLINE_SOCKET"], "program")
    size = client.terms().extent_bytes
    data = Random(7).randbytes(EXTENTS * size)  # noqa: S311 - filler
    expected = hashlib.sha256(data).hexdigest()
    base = client.reserve(0, len(data), 0, 1)
    for extent in range(EXTENTS):
        client.store(0, extent, data[extent * size : (extent + 1) * size])
    client.seal(0, [(extent, extent) for extent in range(EXTENTS)])
    del data
    print("sealed", flush=True)
    while True:
        now_ns = time.monotonic_ns()
        job = client.job_begin(0, now_ns, now_ns + round(DEADLINE_S * 1e9))
        time.sleep(float(COMPUTE.read_text() or 0))
        seen = hashlib.sha256()
        for extent in range(EXTENTS):
            client.layer_begin(0, extent)
            seen.update(ctypes.string_at(base + extent * size, size))
            client.layer_end(0, extent)
        client.job_end(job)
        print("right" if seen.hexdigest() == expected else "WRONG", flush=True)
        left_s = PERIOD_S - (time.monotonic_ns() - now_ns) / 1e9
        time.sleep(max(0.0, left_s))


if __name__ == "__main__":
    if "TIERLINE_OBSERVE" in os.environ:
        be_measured(os.environ["TIERLINE_OBSERVE"])
    main()
