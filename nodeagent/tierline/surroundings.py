"""Whether Tierline is around this process at all, told without loading PyTorch."""

import os


def managed() -> bool:
    """Whether the process is a task whose layers are streamed, or is being observed."""
    return not swapped() and bool(
        os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE")
    )


def swapped() -> bool:
    """Whether the process is a task that is swapped whole, by the preloaded library alone."""
    return bool(os.environ.get("TIERLINE_SWAP") and os.environ.get("TIERLINE_SOCKET"))
