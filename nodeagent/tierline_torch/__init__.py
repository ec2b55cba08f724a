"""The in-pod PyTorch plugin: finds a model's weights, lays them into an arena, gates its modules.

PyTorch calls `autoload` at the end of `import torch` (entry point group `torch.backends`).
It returns at once, and imports nothing, unless the process is a Tierline task:
TIERLINE_SOCKET names the agent's socket, or TIERLINE_OBSERVE the file of an observed run, or both,
where that takes the lease for its jobs; beside the former alone TIERLINE_LEARNED names what an
earlier observed run wrote (`learned`). A program that is swapped whole (TIERLINE_SWAP) has no
layers for it.
Nothing here connects to anything; the first job does, so that a worker process that merely
imports torch costs neither time nor a connection. Only where TIERLINE_PLANNED is there and the
program was measured already, it waits for its plan here (`parking`).
"""

import os

__all__ = ["autoload"]


def autoload() -> None:
    """Hook module calls if this process is a Tierline task. Never raises."""
    task = os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE")
    if task and not os.environ.get("TIERLINE_SWAP"):
        from tierline_torch import calls, parking  # noqa: PLC0415  # others must not pay for it

        calls.install()
        observed, planned = (os.environ.get(f"TIERLINE_{name}") for name in ("OBSERVE", "PLANNED"))
        if observed and planned:
            parking.wait_if_measured(observed, planned)
