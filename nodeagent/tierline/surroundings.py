"""Whether Tierline is around this process at all, told without loading PyTorch where it is not."""

import os

from tierline_torch.loading import serves


def managed() -> bool:
    """Whether the process is a task whose layers are streamed, or is being observed.

    Raises TierlineError if it must be, and the plugin cannot run in it.
    """
    task = os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE")
    return bool(task) and not swapped() and serves()


def swapped() -> bool:
    """Whether the process is a task that is swapped whole, by the preloaded library alone."""
    return bool(os.environ.get("TIERLINE_SWAP") and os.environ.get("TIERLINE_SOCKET"))
