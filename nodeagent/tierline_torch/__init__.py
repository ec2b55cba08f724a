"""The in-pod PyTorch plugin: finds a model's weights, lays them into an arena, gates its modules.

PyTorch calls `autoload` at the end of `import torch` (entry point group `torch.backends`).
It returns at once, and imports nothing, unless the process is a Tierline task; in a Python or with
a PyTorch that it is not made for it stands aside, or ends a program that must be managed
(`loading`, `serving`).
TIERLINE_SOCKET names the agent's socket, or TIERLINE_OBSERVE the file of an observed run, or both,
where that takes the lease for its jobs; with the former alone, TIERLINE_LEARNED names what an
earlier observed run wrote (`learned`). A program that is swapped whole (TIERLINE_SWAP) has no
layers for it.
Nothing here connects to anything; the first job does, so that a worker process that merely
imports torch has no connection. Only where TIERLINE_PLANNED is there and the
program was measured already, it waits for its plan here (`until_planned`).
"""

import os
import sys

__all__ = ["autoload"]


def autoload() -> None:
    """Hook module calls if this process is a Tierline task that the plugin serves.

    Raises SystemExit if it must be managed and cannot: any other exception PyTorch would answer by
    telling how to switch the plugin off.
    """
    task = os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE")
    if not task or os.environ.get("TIERLINE_SWAP"):
        return
    from tierline_torch import loading  # noqa: PLC0415  # others must not pay for it
    from tierline_torch.errors import TierlineError  # noqa: PLC0415

    try:
        if not loading.load():
            return
    except TierlineError as error:
        sys.exit(f"tierline: {error}")
    observed, planned = os.environ.get("TIERLINE_OBSERVE"), os.environ.get("TIERLINE_PLANNED")
    if observed and planned:
        from tierline_torch.backends import until_planned  # noqa: PLC0415

        until_planned.wait_if_measured(observed, planned)
