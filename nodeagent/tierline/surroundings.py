"""Whether Tierline is around this process at all, told without loading PyTorch."""

import os


def managed() -> bool:
    """Whether the process is a task of an agent, or is being observed."""
    return bool(os.environ.get("TIERLINE_SOCKET") or os.environ.get("TIERLINE_OBSERVE"))
